"""Axolotl: supervised tuning of weights or adapters, by one YAML."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan, code
from planner.constraints import Context
from planner.frameworks import accelerate
from planner.frameworks.accelerate import rules, settings, trainer_yaml, trainers
from planner.frameworks.accelerate.trainer_keys import kept_in
from planner.frameworks.base import cannot, rule, says, unsupported
from planner.frameworks.yaml_files import Row

VERSIONS = "0.18 (main of July 2026, 067b021) to 0.19, transformers 5, accelerate 1.15"
# All of them keep the samples of a packed sequence apart (schemas/enums.py).
KERNELS = {"flash": "sdpa", "flash2": "flash_attention_2", "unfused": "eager"}
RING = "varlen_llama3"  # the one for packed samples
LIGER_KEYS = (trainers.CHUNKED[0], *trainers.LIGER_LAYERS)
LIGER = "axolotl.integrations.liger.LigerPlugin"


def rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """Axolotl's own keys."""
    yield "base_model", ".", "overridden by MODEL of launch.sh"
    if c.training.lora_rank:
        packed = c.training.frozen_dtype == "nf4"
        yield "adapter", "qlora" if packed else "lora", "training of adapters only"
        bits = ("load_in_4bit", True, "frozen weights in nf4")
        yield from trainer_yaml.adapters(c, "lora_r", "lora_target_modules", bits)
        if packed and c.model.moe is not None:
            yield "quantize_moe_experts", True, "of experts too, one parameter of a layer"
    data = "datasets.0."
    yield data + "path", "mhenrichsen/alpaca_2k_test", "a sample: put your data set here"
    yield data + "type", "alpaca", "format of its samples"
    yield "sequence_len", c.training.seq_length, "tokens of one sequence"
    yield "sample_packing", True, "samples are packed into full sequences"
    yield "pad_to_sequence_len", True, "every sequence has all tokens"
    yield "attn_implementation", KERNELS[plan.attention_kernel], "attention kernel"
    if plan.cross_entropy in ("chunked", "liger"):
        yield "plugins", [LIGER], "where the keys of Liger's kernels are from"
        yield trainers.CHUNKED[0], True, "output layer and loss in chunks of tokens"
    if plan.cross_entropy == "liger":
        for key in trainers.LIGER_LAYERS:
            yield key, True, "one kernel each way, not one per operator"
    yield "gradient_checkpointing", plan.recompute == "full", "full recompute"
    if plan.offload_activations:
        yield "activation_offloading", "hidden_states", "checkpoints are kept in host memory"
    if plan.zero_stage:
        yield from _shards(plan)
    if plan.cp > 1:
        yield "context_parallel_size", plan.cp, "ranks of a sequence: axolotl[ring-flash-attn]"
        yield "ring_attn_func", RING, "keys and values are gathered, a head at a time"


def _shards(plan: ParallelPlan) -> Iterator[Row]:
    """Its keys for FSDP 2, which it hands to accelerate."""
    yield "fsdp_version", 2, "FSDP 2"
    fsdp = "fsdp_config."
    yield fsdp + "auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "one unit per transformer layer"
    yield fsdp + "reshard_after_forward", True, "gathered weights are freed after the forward pass"
    yield fsdp + "offload_params", plan.offload_optimizer, "shards and states in host memory"
    yield fsdp + "state_dict_type", "FULL_STATE_DICT", "one rank saves the weights"
    shards = settings.shards(plan)
    yield "dp_shard_size", shards, "data-parallel ranks that shard one copy"
    if plan.dp > shards:
        yield "dp_replicate_size", plan.dp // shards, "replicas of the shard group"


def launch_rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """Accelerate's config without FSDP, whose keys are in Axolotl's own."""
    for key, value, why in settings.launch_rows(c, plan.model_copy(update={"zero_stage": 0})):
        sharded = key == "distributed_type" and plan.zero_stage
        yield key, value, "FSDP 2 shards, as config.yaml says" if sharded else why


# Weights are loaded in the type of activations, and its own preparation for FSDP 2, unlike
# accelerate's, leaves them in it (loaders/model.py, monkeypatch/accelerate/fsdp2.py).
TYPES = unsupported(
    lambda c, p: (
        rules.kept(c.training)
        == (("fp32",) * 3 if c.training.lora_rank else ("none", "bf16", "bf16"))
    ),
    lambda c, p: (
        "weights, gradients and states are kept in bf16 without a second copy, those of adapters "
        f"in fp32: got {', '.join(rules.kept(c.training))}"
    ),
)
FP16 = unsupported(
    lambda c, p: (c.training.precision == "bf16") | (c.training.lora_rank > 0),
    "weights would be kept in fp16, of which torch scales no gradients: bf16, or adapters",
)
# attn_needs_dtype_cast (utils/schemas/config.py); with FSDP and for adapters it is always done.
EMBEDDINGS = unsupported(
    lambda c, p: (
        (p.zero_stage == 3)
        | (c.training.lora_rank > 0)
        | (p.attention_kernel == code("attention_kernel", "flash2"))
    ),
    "without FSDP (ZeRO 3) embeddings, output layer and norms are kept in fp32 unless "
    "attention is flash2, got {p.attention_kernel}",
)
KERNEL_OF_CP = rule(
    "cp_seq",
    lambda c, p: (
        (p.cp == 1)
        | ((p.attention_kernel == code("attention_kernel", "flash2")) & (p.micro_batch_size == 1))
    ),
    "context parallelism is that of ring-flash-attn: flash2 on one packed sequence, got "
    "{p.attention_kernel} on {p.micro_batch_size} with cp {p.cp}",
)
PROGRAM = trainer_yaml.FineTuningProgram(
    "axolotl",
    "Axolotl",
    VERSIONS,
    rows,
    paths="",
    program='-m axolotl.cli.train \\\n  "$BUNDLE/config.yaml" --base_model "$MODEL"',
    launch_rows=launch_rows,
    keys=trainer_yaml.Keys(
        "micro_batch_size", "optimizer", "type of weights, gradients, states and activations"
    ),
)
FRAMEWORK = PROGRAM.framework(
    "gradient_checkpointing",
    says("attn_implementation", only=tuple(KERNELS)),
    says(*LIGER_KEYS, note="chunked: the first alone", only=("unfused", "liger", "chunked")),
    FP16,
    EMBEDDINGS,
    instead={
        rules.KEPT_IN_FP32: TYPES,
        rules.KERNEL_OF_CP: KERNEL_OF_CP,
        rules.CHECKPOINTS_OF_FSDP: rules.OFFLOADED_CHECKPOINTS,
    },
    fields={
        "cp": says("context_parallel_size", note="with FSDP"),
        "cp_kind": says("ring_attn_func", note="when cp > 1", only=("all_gather",)),
        "dp_shard": says("dp_shard_size", "dp_replicate_size"),
        "zero_stage": says("fsdp_version", note="0: copies; 3: FSDP 2", only=(3, 0)),
        "reshard_after_forward": cannot("it cannot ask FSDP to keep gathered weights", True),
        "offload_optimizer": says("fsdp_config.offload_params"),
        "offload_activations": says("activation_offloading", note="with recompute"),
        "compile": says("torch_compile"),
    },
    losses=("next_token",),
    # Copies and context parallelism need the first, what it does not run on the second.
    choices={"attention_kernel": ("flash2", "flash")},
    training=kept_in("bf16"),
    adapters={**accelerate.FRAMEWORK.adapters, **dict.fromkeys(kept_in("fp32"), "fp32")},
)
