"""Trainers of whole steps of reinforcement learning: what each can run, and who writes its files.

verl b178a3c, NeMo-RL 7ea279a, TRL f2cd577, slime 624b824, OpenRLHF 3c3be62, prime-rl 559b447,
AReaL 4aef98d.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

WayName = Literal["synchronous", "one step off-policy", "asynchronous"]
Where = Literal["same", "other"]
Trainer = Literal["verl", "nemo-rl", "trl", "slime", "openrlhf", "prime-rl", "areal"]
Scores = Literal["always", "in step", "never"]
TOGETHER: tuple[WayName, Where] = ("synchronous", "same")
APART: tuple[WayName, Where] = ("synchronous", "other")
ONE_BEHIND: tuple[WayName, Where] = ("one step off-policy", "other")
ASYNCHRONOUS: tuple[WayName, Where] = ("asynchronous", "other")
# Policy updates that a response lags behind, at least.
STALENESS: dict[WayName, float] = {
    "synchronous": 0.0, "one step off-policy": 1.0, "asynchronous": 2.0,
}  # fmt: skip


@dataclass(frozen=True)
class StepTrainer:
    """What a trainer of whole steps can run.

    module: with its `render`.  framework: whose plans of the training are searched.  limits: the
    values of plan fields that are left of those; runs_as: what of a plan differs from what the
    framework's search assumes; training: fields of a training that is left open.
    ways: in which order steps run, and where responses are generated.  says: fields of the step
    that it has options for, beside those that all have, and in_step those that it
    has only where generation and training alternate.  offloads: whether models can wait for
    their turn in host memory.  pads: whether a pass has responses of different lengths, filled up
    to the longest.  one_server: whether engines apart are one server on one node.
    whole_experts: whether an engine's accelerators can hold whole experts, instead of parts.
    node_engines: whether an engine's accelerators are of one node.  prefixes: whether the samples
    of a prompt compute it once.  one_update: whether engines get new weights after each optimizer
    step.  scores: when the policy scores the responses again, beside its engines' probabilities.
    references: whether a frozen copy can score them.  adapters: whether a policy with adapters
    reaches its engines.  no_critic: ways that have none.
    """

    title: str
    module: str
    framework: str
    ways: tuple[tuple[WayName, Where], ...]
    algorithms: tuple[str, ...] = ("grpo",)
    says: tuple[str, ...] = ()
    in_step: tuple[str, ...] = ()
    limits: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    runs_as: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    offloads: bool = True
    pads: bool = False
    one_server: bool = False
    whole_experts: bool = True
    node_engines: bool = False
    prefixes: bool = True
    one_update: bool = False
    scores: Scores = "always"
    references: bool = True
    adapters: bool = False
    no_critic: tuple[tuple[WayName, Where], ...] = ()

    def ways_of(self, algorithm: str) -> tuple[tuple[WayName, Where], ...]:
        """The ways to run the steps of an algorithm."""
        left_out = self.no_critic if algorithm == "ppo" else ()
        return tuple(way for way in self.ways if way not in left_out)

    @property
    def apart(self) -> bool:
        """Whether engines always have nodes of their own."""
        return TOGETHER not in self.ways

    @property
    def freshest(self) -> float:
        """The fewest policy updates that a response lags behind."""
        return min(STALENESS[name] for name, _ in self.ways)


# Where layers are computed again, all of them are, each on its own.
_ALL_LAYERS: Mapping[str, tuple[Any, ...]] = {
    "recompute_method": ("uniform",), "recompute_num_layers": (1,),
}  # fmt: skip
# What NeMo-RL's configuration of Megatron-Core has no key for.
_NEMO_RL: Mapping[str, tuple[Any, ...]] = {
    "vpp": (1,), "schedule": ("1f1b",), "moe_dispatcher": ("alltoall",), "overlap_p2p": (False,),
    "overlap_tp": (False,), "overlap_ep": (False,), "recompute": ("none", "full"),
    "offload_optimizer": (False,), "zero_stage": (1,), **_ALL_LAYERS,
}  # fmt: skip
# DeepSpeed's ZeRO 3 under OpenRLHF: packed samples need flash attention.
_OPENRLHF: Mapping[str, tuple[Any, ...]] = {
    "cp": (1,), "zero_stage": (3,), "dp_shard": (0,), "attention_kernel": ("flash2",),
    "compile": (False,), "offload_activations": (False,), "runtime": ("transformers",),
    "reshard_after_forward": (True,),
}  # fmt: skip
# prime-rl's FSDP 2, whose micro-batches are one packed sequence.
_PRIME_RL: Mapping[str, tuple[Any, ...]] = {
    "tp": (1,), "pp": (1,), "zero_stage": (3,), "micro_batch_size": (1,), "cp_kind": ("a2a",),
    "recompute": ("none", "full"), "attention_kernel": ("flash", "flash2"), **_ALL_LAYERS,
}  # fmt: skip
# What AReaL's MegatronEngineConfig has no key for; it splits layers over stages itself.
_AREAL: Mapping[str, tuple[Any, ...]] = {
    **{name: values for name, values in _NEMO_RL.items() if name not in _ALL_LAYERS},
    "first_stage_layers": (0,), "last_stage_layers": (0,), "sequence_parallel": (True,),
}  # fmt: skip
# FSDP 2 by accelerate's configuration, and DeepSpeed, reduce gradients in the type of activations.
_HALF = {"gradient_reduce_dtype": "bf16"}
TRAINERS: Mapping[Trainer, StepTrainer] = {
    "verl": StepTrainer(
        "verl", "planner.frameworks.verl.step", "verl", (TOGETHER, ONE_BEHIND, ASYNCHRONOUS),
        ("grpo", "ppo"), ("generation_precision", "max_num_seqs", "epochs"), scores="in step",
    ),
    "nemo-rl": StepTrainer(
        "NeMo-RL", "planner.frameworks.nemo_rl.step", "verl",
        (TOGETHER, APART, ONE_BEHIND, ASYNCHRONOUS),
        says=("generation_precision", "max_num_seqs", "generated_per_trained"),
        in_step=("generated_per_trained",), limits=_NEMO_RL,
    ),
    "trl": StepTrainer(
        "TRL", "planner.frameworks.trl.step", "trl", (TOGETHER, APART),
        says=("epochs",), training=_HALF, offloads=False, pads=True, one_server=True,
        whole_experts=False, adapters=True,
    ),
    "slime": StepTrainer(
        "slime", "planner.frameworks.slime.step", "slime",
        (TOGETHER, APART, ONE_BEHIND, ASYNCHRONOUS),
        says=("max_num_seqs", "generated_per_trained", "oversampling", "partial_rollouts"),
    ),
    "openrlhf": StepTrainer(
        "OpenRLHF", "planner.frameworks.openrlhf.step", "accelerate",
        (TOGETHER, APART, ONE_BEHIND, ASYNCHRONOUS), ("grpo", "ppo"),
        ("epochs", "generated_per_trained"), limits=_OPENRLHF, runs_as={"runtime": "deepspeed"},
        training=_HALF, whole_experts=False, no_critic=(APART,),
    ),
    "prime-rl": StepTrainer(
        "prime-rl", "planner.frameworks.prime_rl.step", "pytorch", (ONE_BEHIND, ASYNCHRONOUS),
        says=("max_num_seqs",), limits=_PRIME_RL, runs_as={"cross_entropy": "chunked"},
        offloads=False, whole_experts=False, node_engines=True, one_update=True, scores="never",
        references=False,
    ),
    "areal": StepTrainer(
        "AReaL", "planner.frameworks.areal.step", "verl", (APART, ONE_BEHIND, ASYNCHRONOUS),
        ("grpo", "ppo"), ("max_num_seqs",), limits=_AREAL, offloads=False, prefixes=False,
    ),
}  # fmt: skip
