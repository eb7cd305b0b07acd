"""Megatron-LM's rules, read from core 0.16.1, 0.19 and main (0.20).

Most are assertions of its `validate_args`, `TransformerConfig` and `initialize_model_parallel`.
Some fail only later (layer construction, the schedule, the first forward pass, Transformer
Engine), once the job has started.  The rest are about what it has no option for.
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import IntArray, Plans, code
from cost_models.spec import ModelSpec
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules
from planner.frameworks.base import rule, unsupported
from planner.frameworks.megatron import pattern_rules
from planner.frameworks.megatron.model_rules import MODEL_RULES, bias_kind, recomputes, stores_fp8

_SCHEDULES = [code("schedule", name) for name in ("1f1b", "interleaved-1f1b")]
_FLEX = ("deepep", "hybridep")
_P2P = code("cp_kind", "p2p")
_A2A = code("cp_kind", "a2a")
_ALL_GATHER = code("cp_kind", "all_gather")
_PP_INSIDE_DP = code("rank_order", "tp-cp-ep-pp-dp")
_DEEPEP = code("moe_dispatcher", "deepep")
_IN_PLACE = code("cross_entropy", "in_place")


def _is_cuda(c: Context) -> bool:
    """Whether all accelerators run CUDA, as those without a vendor (the user's own) may."""
    return all(group.accelerator.vendor in ("NVIDIA", "") for group in c.cluster.groups)


def _is_grace(c: Context) -> bool:
    """Whether some are Grace Blackwell superchips (GB200, GB300)."""
    return any(group.accelerator.name.startswith("GB") for group in c.cluster.groups)


def _expert_dp(p: Plans, dense: bool = False) -> IntArray:
    """Replicas of an expert; a dense model has the experts' grid too, with tp for etp."""
    return p.tp * p.cp * p.dp // (p.tp if dense else p.etp * p.ep)


def _heads_over_tp_and_cp(c: Context, p: Plans) -> BoolArray:
    heads = c.model.num_attention_heads
    groups = heads if c.model.mla is not None else c.model.num_query_groups
    return np.asarray((heads % (p.tp * p.cp) == 0) & (groups % (p.tp * p.cp) == 0))


def _can_deal(model: ModelSpec) -> bool:
    """Whether every layer works on a number of context-parallel ranks that varies by sample."""
    return model.mla is None and not model.layer_pattern and not model.mtp_num_layers


def _head_dim(model: ModelSpec) -> int:
    """The width of the queries and keys of a head."""
    mla = model.mla
    return mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else model.head_dim


def _delayed(c: Context) -> bool:
    return c.training.fp8_recipe == "delayed"


def _fp8_widths(c: Context, p: Plans) -> BoolArray:
    model = c.model
    fits = np.asarray(model.hidden_size % 16 == 0)
    if "dense" in model.feed_forwards:
        fits = fits & (model.ffn_hidden_size // p.tp % 16 == 0)
    if model.moe is not None:
        fits = fits & (model.moe.expert_ffn_hidden_size // p.etp % 16 == 0)
    if model.mla is None:
        heads = model.num_attention_heads + 2 * model.num_query_groups
        fits = fits & (model.num_attention_heads * model.head_dim // p.tp % 16 == 0)
        fits = fits & (heads * model.head_dim // p.tp % 16 == 0)
    return np.asarray(fits & (c.training.seq_length // p.cp * p.micro_batch_size % 8 == 0))


EARLY_GATHER = unsupported(
    lambda c, p: (p.zero_stage == 0) | (p.overlap_param_gather == 0) | (p.overlap_grad_reduce == 1),
    "overlapped weight gathering needs overlapped gradient reduction",
)
STABLE_LOSS = unsupported(
    lambda c, p: p.cross_entropy != _IN_PLACE,
    "since core 0.18.2 Transformer Engine's cross entropy (in_place) is disabled as unstable",
)
# DeepEP does not run on GB200 and GB300, HybridEP does; both run on CUDA devices alone
# (Megatron-Bridge, training/flex_dispatcher_backend.py).
DISPATCHER_DEVICES = unsupported(
    lambda c, p: (
        (c.model.moe is None)
        | ~rules.is_named(p, "moe_dispatcher", *_FLEX)
        | (_is_cuda(c) & ((p.moe_dispatcher != _DEEPEP) | (not _is_grace(c))))
    ),
    lambda c, p: f"{p.moe_dispatcher} has no kernels for {c.cluster.groups[0].accelerator.name}",
)

# Numbers of ranks that DeepEP's normal kernels are configured for, 20 nodes of 8 at most
# (deepseek-ai/DeepEP, deep_ep/buffer.py, Buffer.get_dispatch_config).  Megatron communicates over
# etp x ep ranks.
_DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
DEEPEP_RANKS = unsupported(
    lambda c, p: (p.moe_dispatcher != _DEEPEP) | (p.ep == 1) | np.isin(p.etp * p.ep, _DEEPEP_RANKS),
    lambda c, p: (
        f"deepep supports {', '.join(map(str, _DEEPEP_RANKS))} ranks, not etp {p.etp} x ep {p.ep}"
    ),
)

SIZE_RULES: tuple[Rule, ...] = (
    rule(
        "schedule_micro_batches",
        lambda c, p: (p.vpp == 1) | (p.pp > np.where(p.overlap_p2p, 1, 2)),
        lambda c, p: (
            f"interleaving needs pp > {1 if p.overlap_p2p else 2} "
            f"{'with' if p.overlap_p2p else 'without'} overlapped messages, got {p.pp}"
        ),
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (c.training.seq_length % (2 * p.cp) == 0),
        lambda c, p: (
            f"the sequence {c.training.seq_length} is not a multiple of 2 x cp {p.cp} = {2 * p.cp}"
        ),
    ),
    rule(
        "heads_not_divisible",
        lambda c, p: (p.cp == 1) | (p.cp_kind != _A2A) | _heads_over_tp_and_cp(c, p),
        "a2a context parallelism splits heads: {c.model.num_attention_heads} heads and "
        "{c.model.num_query_groups} key/value heads must be multiples of tp {p.tp} x cp {p.cp}",
    ),
    rule(
        "experts_not_divisible",
        lambda c, p: (c.model.moe is None or bias_kind(c.model) != "all") | (p.etp == 1),
        "experts with biases need etp 1, got {p.etp}",
    ),
    rule(
        "experts_not_divisible",
        lambda c, p: (
            (p.rank_order != _PP_INSIDE_DP)
            | (p.pp == 1)
            | (_expert_dp(p, dense=c.model.moe is None) == p.dp)
        ),
        "rank order tp-cp-ep-pp-dp needs etp x ep = tp x cp (a dense model: cp 1), got "
        "tp {p.tp}, cp {p.cp}, ep {p.ep}, etp {p.etp}",
    ),
)

FEATURE_RULES: tuple[Rule, ...] = (
    rules.HALF_PRECISION,
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage != 1) | (c.training.optimizer != "sgd"),
        "the distributed optimizer needs Adam, not {c.training.optimizer}",
    ),
    rule(
        "zero_stage",
        lambda c, p: (
            (c.training.optimizer != "muon")
            | ((p.zero_stage <= 1) & ((p.dp_shard == 0) | (p.dp_shard == p.dp * p.cp)))
        ),
        "Muon is replicated or split by layer over all data-parallel ranks (ZeRO 0 or 1), got "
        "ZeRO {p.zero_stage}, dp_shard {p.dp_shard}",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage > 0) | (c.training.optimizer_state_dtype == "fp32"),
        "{c.training.optimizer_state_dtype} optimizer states need the distributed optimizer "
        "(ZeRO 1 or more)",
    ),
    EARLY_GATHER,
    unsupported(
        lambda c, p: (p.overlap_tp == 0) | (p.sequence_parallel == 1),
        "overlap_tp needs sequence parallelism",
    ),
    rule(
        "offload",
        lambda c, p: (
            (p.offload_optimizer == 0) | ((p.zero_stage == 1) & (c.training.optimizer == "adam"))
        ),
        "offloading the optimizer needs Adam on the distributed optimizer (ZeRO 1), got "
        "{c.training.optimizer} with ZeRO {p.zero_stage}",
    ),
    rule(
        "offload",
        lambda c, p: (
            (p.offload_activations == 0)
            | (
                ((p.pp == 1) & (p.recompute == 0) & (c.model.num_layers > 1))
                & (p.offload_num_layers < c.model.num_layers)
            )
        ),
        "activation offload needs pp 1 and no recompute, got pp {p.pp}, recompute {p.recompute}",
    ),
    unsupported(
        lambda c, p: (c.model.sliding_window is None) | (p.cp == 1) | (p.cp_kind != _P2P),
        "a sliding window with context parallelism needs all_gather or a2a, not p2p",
    ),
    unsupported(
        lambda c, p: (p.dynamic_cp == 0) | (p.cp == 1) | ((p.zero_stage < 2) & _can_deal(c.model)),
        lambda c, p: (
            "--hybrid-context-parallel does not support Megatron-FSDP (ZeRO 2 and 3), latent "
            "attention, layer patterns or prediction layers"
        ),
    ),
    unsupported(
        lambda c, p: (p.dynamic_cp == 0) | (p.cp == 1) | (p.cp_kind != _ALL_GATHER),
        "Transformer Engine gathers no keys of packed samples: dynamic_cp needs p2p or a2a",
    ),
    unsupported(
        lambda c, p: (
            (_head_dim(c.model) % 8 == 0) | rules.is_named(p, "attention_kernel", "unfused")
        ),
        lambda c, p: (
            f"fused attention needs head_dim a multiple of 8, not {_head_dim(c.model)} "
            "(Transformer Engine, get_attention_backend): change the model, or take "
            "attention_kernel unfused"
        ),
    ),
    unsupported(
        lambda c, p: (not c.model.attention_sinks) | (p.cp == 1) | (p.cp_kind == _A2A),
        "attention sinks with context parallelism need a2a, not {p.cp_kind}",
    ),
    unsupported(
        lambda c, p: (
            (c.model.moe is None)
            | ~rules.is_named(p, "moe_dispatcher", *_FLEX)
            | (p.etp * p.ep > 1)
        ),
        "the {p.moe_dispatcher} dispatcher needs etp x ep > 1",
    ),
    rule(
        "fp8_shape",
        lambda c, p: (c.training.precision != "fp8") | _fp8_widths(c, p),
        lambda c, p: (
            f"fp8 needs every width per rank in multiples of 16 and tokens in multiples of 8 "
            f"(hidden {c.model.hidden_size}, tp {p.tp}, etp {p.etp}, "
            f"{c.training.seq_length // p.cp * p.micro_batch_size} tokens)"
        ),
    ),
    rule(
        "recompute",
        lambda c, p: (
            (c.training.precision != "fp8" or not _delayed(c))
            | ~recomputes(p, "moe_act", "layernorm")
        ),
        "with delayed fp8 scales moe_act and layernorm cannot be recomputed",
    ),
    STABLE_LOSS,
    unsupported(
        lambda c, p: (not stores_fp8(c)) | (p.zero_stage >= 1),
        "fp8_param_gather needs the distributed optimizer (zero_stage 1 or more)",
    ),
    unsupported(
        lambda c, p: (not stores_fp8(c)) | (p.offload_optimizer == 0) | _delayed(c),
        "fp8_param_gather with an offloaded optimizer needs the delayed recipe",
    ),
)

# Not in FEATURE_RULES: frameworks that descend from Megatron-LM have other schedules.
SCHEDULES = unsupported(
    lambda c, p: np.isin(p.schedule, _SCHEDULES) | (p.pp == 1),
    "its pipeline schedules are 1F1B and, with vpp > 1, interleaved 1F1B, not {p.schedule}",
)
RULES: tuple[Rule, ...] = (
    *MODEL_RULES,
    *SIZE_RULES,
    *FEATURE_RULES,
    SCHEDULES,
    DISPATCHER_DEVICES,
    DEEPEP_RANKS,
    *pattern_rules.RULES,
)
