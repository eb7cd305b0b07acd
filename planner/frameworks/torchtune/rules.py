"""Rules for what torchtune's recipes refuse or have no option for.

Read from torchtune's main of April 2026 (bd2a0fc): recipes, training/_distributed.py,
models/llama3/_parallelism.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cost_models.plans import Plans
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules
from planner.frameworks.accelerate import peft
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.accelerate.rules import (
    OFFLOADED_CHECKPOINTS,
    OPTIMIZERS_OF_SHARDS,
    SHARD_GROUPS,
    WHOLE_LAYERS,
)
from planner.frameworks.base import rule, unsupported
from planner.frameworks.torchtune.components import component_of, differences
from planner.frameworks.torchtune.settings import ATTENTION, MLP, OPTIMIZERS

# Components whose modules base_llama_tp_plan names, and whose output layer is a matrix of its own.
SPLIT = ("llama2", "llama3", "llama3_1", "mistral")
# Components whose matrices without adapters are plain ones (lora_qwen2_self_attention).
QWEN = ("qwen2", "qwen3")


def lacks(model: ModelSpec) -> Iterator[str]:
    """Why no component builds the model."""
    found = differences(model, False)
    family = min(found, key=lambda name: len(found[name]))
    if found[family]:
        yield (
            f"torchtune has no component for {model.name}: {family} comes closest and differs in "
            + ", ".join(found[family])
        )


def _split(c: Context, p: Plans) -> BoolArray:
    """Whether the matrices of a component can be split over tp."""
    one = component_of(c.model, c.training.seq_length, adapted=False)
    able = one is not None and one.family in SPLIT and not c.training.lora_rank
    return np.asarray((p.tp == 1) | able)


def _sees_all(c: Context) -> bool:
    """Whether a token of a sequence attends to all before it."""
    return c.model.sliding_window is None or c.model.sliding_window >= c.training.seq_length


def _kept(training: TrainingSpec) -> tuple[str, str, str]:
    return training.gradient_dtype, training.gradient_reduce_dtype, training.optimizer_state_dtype


def _in_one_type(training: TrainingSpec) -> bool:
    """Whether all that is kept has the type of the weights, and nothing has a second copy."""
    masters = "fp32" if training.precision == "fp32" else "none"
    same = _kept(training) == (training.precision,) * 3
    return same and training.master_weights_dtype == masters


def _whole_mlp(training: TrainingSpec) -> bool:
    adapted = set(training.lora_targets)
    return not training.lora_rank or (
        bool(adapted & set(ATTENTION)) and len(adapted & set(MLP)) in (0, len(MLP))
    )


def _adapted_family(c: Context) -> str:
    """The component that has the adapters; "" without any."""
    one = component_of(c.model, c.training.seq_length, adapted=True)
    return one.family if one is not None and c.training.lora_rank else ""


def _quantizes(c: Context) -> bool:
    """Whether the matrices of all layers are in four bits, if they are to be."""
    family = _adapted_family(c)
    if c.training.frozen_dtype != "nf4" or family not in (*QWEN, "llama3"):
        return True
    return family in QWEN and set(c.training.lora_targets) == set(NAMES)


def _projects_back(c: Context) -> bool:
    """Whether the output matrix of attention has its heads as rows."""
    m = c.model
    square = m.num_attention_heads * m.head_dim == m.hidden_size
    return square or "o_proj" in c.training.lora_targets or _adapted_family(c) not in QWEN


RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.optimizers(*OPTIMIZERS, others="torch's Muon takes matrices alone"),
    *OPTIMIZERS_OF_SHARDS,
    rules.HALF_BESIDE_PACKED,
    unsupported(
        _split,
        lambda c, p: (
            f"tensor parallelism is that of full_finetune_distributed for {', '.join(SPLIT)}: "
            f"tp 1, not {p.tp}"
        ),
    ),
    rules.KV_HEADS,
    rule(
        "sequence_parallel",
        lambda c, p: (p.tp == 1) | (p.sequence_parallel > 0),
        "its plan of tensor parallelism splits the sequence: sequence_parallel with tp > 1",
        "groups",
    ),
    unsupported(
        lambda c, p: (p.tp == 1) | (c.training.optimizer == "adam") | (p.dp * p.tp == 1),
        lambda c, p: f"with tp {p.tp} weights are DTensors of two meshes: Adam only",
    ),
    unsupported(
        lambda c, p: _sees_all(c),
        lambda c, p: (
            f"its components have no sliding window: {c.model.sliding_window} tokens are fewer "
            f"than the {c.training.seq_length} of a sequence"
        ),
        "degrees",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage == 3) == (p.dp > 1),
        lambda c, p: (
            "FSDP shards over data-parallel ranks, of which there are copies of shard groups at "
            f"most: ZeRO 3 with dp > 1, else 0; got {p.zero_stage} with dp {p.dp}"
        ),
    ),
    SHARD_GROUPS,
    *WHOLE_LAYERS,
    OFFLOADED_CHECKPOINTS,
    unsupported(
        lambda c, p: _in_one_type(c.training),
        lambda c, p: (
            f"its recipes train in bf16 or fp32, not in {c.training.precision}"
            if c.training.precision not in ("bf16", "fp32")
            else "weights, gradients and states all have one type, bf16 or fp32, without a second "
            f"copy: gradients {c.training.gradient_dtype}, reduced in "
            f"{c.training.gradient_reduce_dtype}, states {c.training.optimizer_state_dtype}, "
            f"master weights {c.training.master_weights_dtype} with {c.training.precision}"
        ),
    ),
)
PARTIAL_TRAINING: tuple[Rule, ...] = (
    peft.NO_FROZEN_PARTS,
    peft.NAMED_TARGETS,
    unsupported(
        lambda c, p: _whole_mlp(c.training),
        lambda c, p: (
            f"lora_targets have a matrix of attention ({', '.join(ATTENTION)}) and of the MLP all "
            f"({', '.join(MLP)}) or none, not " + ", ".join(c.training.lora_targets)
        ),
        "degrees",
    ),
    unsupported(
        lambda c, p: not (c.training.lora_rank and c.training.optimizer_in_backward),
        "its recipes for adapters step after the backward pass: leave optimizer_in_backward out",
        "degrees",
    ),
    unsupported(
        lambda c, p: _quantizes(c),
        lambda c, p: (
            f"its {_adapted_family(c)} keeps matrices without adapters in bf16: nf4 needs "
            f"lora_targets {', '.join(NAMES)}"
            if _adapted_family(c) in QWEN
            else "its llama3 fails on frozen weights in nf4: its scaler_block_size is None"
        ),
        "degrees",
    ),
    unsupported(
        lambda c, p: _projects_back(c),
        lambda c, p: (
            f"its {_adapted_family(c)} has a square o_proj unless that has an adapter, and "
            f"{c.model.num_attention_heads} heads of {c.model.head_dim} are not "
            f"{c.model.hidden_size}: o_proj in lora_targets"
        ),
        "degrees",
    ),
)
