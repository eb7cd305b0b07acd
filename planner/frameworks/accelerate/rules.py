"""Rules for what accelerate and transformers refuse or have no option for.

Read from accelerate 1.15.0 (launcher, ParallelismConfig, FSDP plugin and preparation, context
parallel hooks) and transformers 5.23.0 (families, attention interfaces).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cost_models import optimizers
from cost_models.blocks import FeedForward
from cost_models.blocks.attention import Attention
from cost_models.plans import IntArray, Plans, code, is_one_of
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules
from planner.frameworks.accelerate.settings import ATTENTION, FOREACH, OPTIMIZERS
from planner.frameworks.base import rule, unsupported
from planner.frameworks.restrictions import ATTENTION_CODE
from planner.huggingface.export.exporter import config_of, nearest_family

_FULL = code("recompute", "full")
_FLASH = code("attention_kernel", "flash")
_UNFUSED = code("attention_kernel", "unfused")


# Kernels of families whose classes have no torch attention (_supports_sdpa), or none but their own.
KERNELS_OF_FAMILY = {"bloom": ("unfused",), "mpt": ("unfused",), "gemma2": ("unfused", "flash2")}


def kernels(model: ModelSpec) -> tuple[str, ...]:
    """Attention kernels of the family that builds the model."""
    family = (config_of(model) or {}).get("model_type", "")
    return KERNELS_OF_FAMILY.get(family, tuple(ATTENTION))


def lacks(model: ModelSpec) -> Iterator[str]:
    """Why no config.json can describe the model."""
    if config_of(model) is None:
        family, fields = nearest_family(model)
        yield (
            f"no family of transformers builds this model; {family} comes closest and differs in "
            + ", ".join(fields)
        )


def _mixes_by_plain_attention(model: ModelSpec) -> bool:
    """Whether every token mixer is torch's attention with a plain causal mask."""
    mixers = {b for layer in model.layer_pattern for b in layer if not isinstance(b, FeedForward)}
    return all(
        isinstance(b, Attention) and b.window is None and b.chunk is None and b.indexer is None
        for b in mixers
    )


def _attends(model: ModelSpec) -> bool:
    pattern = model.layer_pattern
    return not pattern or any(b.norm == Attention.norm for layer in pattern for b in layer)


def _shard_ranks(p: Plans) -> IntArray:
    """Ranks of dp in one shard group."""
    return np.asarray(np.where(p.dp_shard > 0, p.dp_shard // p.cp, p.dp))


def _shards(c: Context, p: Plans) -> BoolArray:
    """Whether shard groups are whole cp groups of sizes that ParallelismConfig accepts."""
    ranks = np.maximum(_shard_ranks(p), 1)
    whole = (p.dp_shard % p.cp == 0) & (p.dp % ranks == 0)
    return np.asarray((p.zero_stage == 0) | (whole & ((ranks > 1) | (p.dp == 1))))


def kept(training: TrainingSpec) -> tuple[str, str, str]:
    """Types of the weights, gradients and optimizer states that are kept between steps."""
    return training.master_weights_dtype, training.gradient_dtype, training.optimizer_state_dtype


def _reduces(c: Context, p: Plans) -> BoolArray:
    """Whether gradients can be reduced in this type: their own, or with FSDP the policy's.

    One rank reduces none.
    """
    t = c.training
    return np.asarray(
        (t.gradient_reduce_dtype == t.gradient_dtype)
        | (((p.zero_stage == 3) | (p.dp * p.cp == 1)) & (t.gradient_reduce_dtype == t.precision))
    )


HALF_PRECISION = unsupported(
    lambda c, p: c.training.precision in ("bf16", "fp16"),
    "{c.training.precision} needs layers of torchao or Transformer Engine, which the "
    "training script does not have",
)
KEPT_IN_FP32 = unsupported(
    lambda c, p: kept(c.training) == ("fp32",) * 3,
    lambda c, p: (
        "weights, gradients and states are kept in fp32, got " + ", ".join(kept(c.training))
    ),
)
KERNEL_OF_CP = rule(
    "cp_seq",
    lambda c, p: (p.cp == 1) | (p.attention_kernel == _FLASH),
    "context parallelism needs torch's own attention (flash), got cp {p.cp} with "
    "{p.attention_kernel}",
)
OFFLOADED_CHECKPOINTS = rule(
    "offload",
    lambda c, p: (p.offload_activations == 0) | (p.recompute == _FULL),
    "activation offload needs full recompute, got {p.recompute}",
)
CHECKPOINTS_OF_FSDP = rule(
    "offload",
    lambda c, p: (p.offload_activations == 0) | ((p.recompute == _FULL) & (p.zero_stage == 3)),
    "FSDP offloads only checkpoints: activation offload needs full recompute and ZeRO 3, "
    "got {p.recompute} and {p.zero_stage}",
)
# Of trainers that shard with FSDP 2, which torchtune has in common with accelerate.
OPTIMIZERS_OF_SHARDS: tuple[Rule, ...] = (
    unsupported(
        lambda c, p: (c.training.optimizer != "adafactor") | (p.zero_stage == 0),
        "torch 2.13's Adafactor fails on sharded weights: ZeRO 0 only",
    ),
    unsupported(
        lambda c, p: (p.zero_stage == 0) | (not optimizers.OPTIMIZERS[c.training.optimizer].paged),
        "bitsandbytes' optimizers step whole weights, not the shards of FSDP 2: ZeRO 0 only",
    ),
    unsupported(
        lambda c, p: (c.training.optimizer != "adam_8bit") | (p.offload_optimizer == 0),
        "torchao's 8-bit Adam runs on the device of the weights: no optimizer offload",
    ),
)
LISTS_OF_ADAM = unsupported(
    lambda c, p: (p.runtime != code("runtime", FOREACH)) | (c.training.optimizer == "adam"),
    "only AdamW steps over lists of tensors, got {c.training.optimizer}",
)
SHARD_GROUPS = rule(
    "zero_stage",
    _shards,
    "a shard group is a multiple of cp and, with replicas, more than one dp rank: "
    "dp_shard {p.dp_shard}, dp {p.dp}, cp {p.cp}",
)
EACH_LAYER = rule(
    "recompute",
    lambda c, p: (p.recompute != _FULL) | (p.recompute_num_layers == c.model.num_layers),
    "each layer is one checkpoint: {c.model.num_layers} layers, got {p.recompute_num_layers}",
)
WHOLE_LAYERS: tuple[Rule, ...] = (
    EACH_LAYER,
    rule(
        "offload",
        lambda c, p: (p.offload_optimizer == 0) | (p.zero_stage == 3),
        "only FSDP (ZeRO 3) keeps states in host memory, got ZeRO {p.zero_stage}",
    ),
)


def _grouped(c: Context) -> bool:
    """Whether torch has no fused kernel for the heads on the accelerators.

    Transformers leaves keys and values of several heads each to torch (sdpa_attention.py,
    use_gqa_in_sdpa), of whose kernels only flash and the one in steps take such heads (torch 2.13,
    scaled_dot_product_attention on enable_gqa).
    """
    older = c.cluster.before_ampere
    return older and c.model.num_query_groups != c.model.num_attention_heads


GROUPED_HEADS = rule(
    ATTENTION_CODE,
    lambda c, p: (p.attention_kernel != _FLASH) | (not _grouped(c)),
    "before Ampere torch has no fused kernel for {c.model.num_attention_heads} heads with "
    "{c.model.num_query_groups} for keys and values: attention_kernel is unfused, not "
    "{p.attention_kernel}",
)
RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.LEARNED_POSITIONS,
    rules.optimizers(
        *OPTIMIZERS, others="torch's Muon needs a second optimizer for norms and embeddings"
    ),
    *OPTIMIZERS_OF_SHARDS,
    LISTS_OF_ADAM,
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (p.zero_stage == 3),
        "context parallelism needs FSDP 2 (ZeRO 3), got cp {p.cp}, ZeRO {p.zero_stage}",
    ),
    KERNEL_OF_CP,
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (c.model.sliding_window is None),
        "context parallelism drops masks: no sliding window with cp {p.cp}",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | _mixes_by_plain_attention(c.model),
        "context parallelism needs torch's causal attention: no other mixer with cp {p.cp}",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (c.model.position != "learned"),
        "cp {p.cp}: masks are dropped in modules named self_attn, which GPT-2 lacks",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage != 3) | (p.dp * p.cp > 1),
        "FSDP has no axis to shard over: dp and cp are 1; use zero_stage 0",
    ),
    SHARD_GROUPS,
    *WHOLE_LAYERS,
    CHECKPOINTS_OF_FSDP,
    unsupported(
        lambda c, p: (not c.model.attention_sinks) | (p.attention_kernel == _UNFUSED),
        "attention sinks need unfused attention, not {p.attention_kernel}: the family has no "
        "torch attention, and flash-attention 2 no sinks",
    ),
    unsupported(
        lambda c, p: is_one_of(p.attention_kernel, "attention_kernel", *kernels(c.model)) > 0,
        lambda c, p: (
            f"attention of this family of transformers is {' or '.join(kernels(c.model))}, "
            f"got {p.attention_kernel}"
        ),
    ),
    GROUPED_HEADS,
    unsupported(
        lambda c, p: _attends(c.model) | (p.attention_kernel == _UNFUSED),
        "a family without attention has no attention kernels: unfused",
    ),
    HALF_PRECISION,
    KEPT_IN_FP32,
    unsupported(
        _reduces,
        "gradients are reduced in fp32 or, with FSDP, in {c.training.precision}; got "
        "{c.training.gradient_reduce_dtype} with ZeRO {p.zero_stage}",
    ),
)
