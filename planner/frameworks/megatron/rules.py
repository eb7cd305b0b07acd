"""What Megatron-LM refuses, as rules: read from core 0.16.1, 0.19 and main (0.20).

Most are assertions of its `validate_args`, `TransformerConfig` and `initialize_model_parallel`;
some bind later (layer construction, the schedule, the first forward pass, Transformer Engine)
and would cost a started job; the rest is what it has no option for.
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, IntArray, Plans, RecomputeModule, code
from cost_models.spec import ModelSpec
from planner.frameworks import rules
from planner.frameworks.base import rule, unsupported
from planner.frameworks.megatron import pattern_rules
from planner.search.constraints import BoolArray, Context, Rule

# (precision, gradient buffer, gradient reduction) -> option; None: what it does by itself.
GRADIENTS: dict[tuple[str, str, str], str | None] = {
    ("bf16", "fp32", "fp32"): "--accumulate-allreduce-grads-in-fp32",
    ("fp8", "fp32", "fp32"): "--accumulate-allreduce-grads-in-fp32",
    ("fp4", "fp32", "fp32"): "--accumulate-allreduce-grads-in-fp32",
    ("fp16", "fp32", "fp32"): "--accumulate-allreduce-grads-in-fp32",
    ("bf16", "bf16", "bf16"): "--grad-reduce-in-bf16",
    ("fp8", "bf16", "bf16"): "--grad-reduce-in-bf16",
    ("fp4", "bf16", "bf16"): "--grad-reduce-in-bf16",
    ("fp16", "fp16", "fp16"): None,
}
# Recipes Megatron-LM knows, and what each says.
FP8_RECIPES = {
    "tensorwise": "current scaling, one scale per tensor",
    "delayed": "scales from the steps before, one per tensor",
    "blockwise": "a scale per block of 128 values",
    "mxfp8": "a scale per 32 values, applied by the matrix units",
}
_FLASH1 = code("attention_kernel", "flash1")
_SCHEDULES = [code("schedule", name) for name in ("1f1b", "interleaved-1f1b")]
_FLEX = ("deepep", "hybridep")
_P2P = code("cp_kind", "p2p")
_A2A = code("cp_kind", "a2a")
_ALL_GATHER = code("cp_kind", "all_gather")
_UNFUSED = code("attention_kernel", "unfused")
_FULL = code("recompute", "full")
_PP_INSIDE_DP = code("rank_order", "tp-cp-ep-pp-dp")
_ALLGATHER = code("moe_dispatcher", "allgather")
_DEEPEP = code("moe_dispatcher", "deepep")
_IN_PLACE = code("cross_entropy", "in_place")


def bias_kind(model: ModelSpec) -> str | None:
    """Which linear layers have a bias: "all", "qkv", "none"; None: a mix it has no option for.

    One option gives every linear layer a bias (router and experts too), another only the
    attention's input projection.
    """
    moe = model.moe
    dense_bias = {model.mlp_bias} if "dense" in model.feed_forwards else set()
    expert_bias = {moe.expert_bias, moe.router_bias} if moe is not None else set()
    rest = {model.attention_output_bias} | dense_bias | expert_bias
    if rest == {True}:
        return "all" if model.qkv_bias else None
    if rest == {False}:
        return "qkv" if model.qkv_bias else "none"
    return None


def _recomputes(p: Plans, *modules: RecomputeModule) -> BoolArray:
    bits = sum(1 << RECOMPUTE_MODULES.index(module) for module in modules)
    return np.asarray(p.recompute_modules & bits != 0)


def _is_cuda(c: Context) -> bool:
    """Whether all accelerators run CUDA; one without a vendor is the user's own."""
    return all(group.accelerator.vendor in ("NVIDIA", "") for group in c.cluster.groups)


def _is_grace(c: Context) -> bool:
    """Whether they are Blackwell beside Grace, in NVL72 racks."""
    return any(group.accelerator.name.startswith("GB") for group in c.cluster.groups)


def _gradients(c: Context) -> tuple[str, str, str]:
    t = c.training
    return t.precision, t.gradient_dtype, t.gradient_reduce_dtype


def _expert_dp(p: Plans, dense: bool = False) -> IntArray:
    """Replicas of an expert; a dense model has the grid too, with tp for etp."""
    return p.tp * p.cp * p.dp // (p.tp if dense else p.etp * p.ep)


def _heads_over_tp_and_cp(c: Context, p: Plans) -> BoolArray:
    heads = c.model.num_attention_heads
    groups = heads if c.model.mla is not None else c.model.num_query_groups
    return np.asarray((heads % (p.tp * p.cp) == 0) & (groups % (p.tp * p.cp) == 0))


def _deals(model: ModelSpec) -> bool:
    """Whether every layer takes the ranks of a sample as they come."""
    return model.mla is None and not model.layer_pattern and not model.mtp_num_layers


def _stores_fp8(c: Context) -> bool:
    return c.training.precision == "fp8" and c.training.fp8_param_gather


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


MODEL_RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.optimizers("adam", "sgd", "muon"),
    unsupported(
        lambda c, p: (
            c.training.optimizer != "muon"
            or (c.training.precision != "fp16" and not _stores_fp8(c))
        ),
        "its Muon refuses fp16, and weights stored in fp8 want the distributed optimizer of Adam",
        "degrees",
    ),
    *rules.GPT_PARTS,
    rules.LEARNED_POSITIONS,
    rules.NO_COMPILE,
    unsupported(
        lambda c, p: c.model.qk_norm == "none" or (c.model.qk_norm == "head" and not c.model.mla),
        lambda c, p: (
            f"its query/key norm runs over one head, this model's is "
            f"{c.model.qk_norm!r}{' on top of the latent norms' if c.model.mla else ''}"
        ),
    ),
    unsupported(
        lambda c, p: bias_kind(c.model) is not None,
        lambda c, p: (
            "linear biases are all, none, or only the query/key/value one; this model has "
            f"qkv {c.model.qkv_bias}, attention output {c.model.attention_output_bias}, "
            f"MLP {c.model.mlp_bias}"
            + (
                f", experts {c.model.moe.expert_bias}, router {c.model.moe.router_bias}"
                if c.model.moe is not None
                else ""
            )
        ),
    ),
    unsupported(
        lambda c, p: c.model.mla is None or c.model.position == "rope",
        lambda c, p: f"latent attention has rotary positions only, not {c.model.position}",
    ),
    unsupported(
        lambda c, p: c.model.mla is None or c.model.mla.q_lora_rank is not None,
        "since core 0.19 its latent attention without q_lora_rank puts a norm of its own in "
        "front of the query projection, or leaves out that of the key/value latent",
    ),
    unsupported(
        lambda c, p: c.model.mla is None or not c.model.qkv_bias,
        "its latent attention has no bias in the query and key/value projections",
    ),
    unsupported(
        lambda c, p: c.model.mla is None or c.model.sliding_window is None,
        "latent attention with a sliding window is not supported",
    ),
    unsupported(
        lambda c, p: not c.model.mtp_num_layers or c.model.position in ("rope", "none"),
        lambda c, p: f"multi-token prediction does not go with {c.model.position} positions",
    ),
    unsupported(
        lambda c, p: (
            c.model.moe is None
            or bias_kind(c.model) != "all"
            or not c.model.moe.shared_expert_ffn_hidden_size
        ),
        "its shared experts have no biases",
    ),
    unsupported(
        lambda c, p: (
            c.model.moe is None
            or c.model.moe.top_k_groups is None
            or c.model.moe.top_k >= c.model.moe.top_k_groups
        ),
        "group-limited routing takes top-k over groups, at least one per group",
    ),
    unsupported(
        lambda c, p: c.training.precision != "fp8" or c.training.fp8_recipe in FP8_RECIPES,
        lambda c, p: f"fp8 recipe {c.training.fp8_recipe}; it knows {', '.join(FP8_RECIPES)}",
    ),
    unsupported(
        lambda c, p: (
            (p.overlap_ep == 0)
            | (
                (p.ep > 1)
                & ((p.vpp > 1) | (p.pp == 1))
                & (p.recompute != _FULL)
                & ~_recomputes(p, "moe")
                & (p.moe_dispatcher != _ALLGATHER)
                & (c.model.mtp_num_layers <= 1)
            )
        ),
        lambda c, p: (
            "overlap_ep needs ep > 1, no pipeline or an interleaved one, no recompute of whole "
            "layers or of moe, no allgather dispatcher and one layer of multi-token prediction "
            f"at most; got ep {p.ep}, pp {p.pp}, vpp {p.vpp}, recompute "
            f"{', '.join(p.recompute_modules) or p.recompute}, {p.moe_dispatcher}, "
            f"{c.model.mtp_num_layers} such layers"
        ),
    ),
    unsupported(
        lambda c, p: p.attention_kernel != _FLASH1, "flash-attention 1 is no backend of it"
    ),
    unsupported(
        lambda c, p: _gradients(c) in GRADIENTS,
        lambda c, p: (
            f"gradients accumulate and are reduced in one type, fp32 or that of the weights; "
            f"asked: {c.training.gradient_dtype} buffers, {c.training.gradient_reduce_dtype} "
            f"reduction with {c.training.precision}"
        ),
    ),
    unsupported(
        lambda c, p: c.training.master_weights_dtype == "fp32",
        "training without fp32 master weights has no option",
    ),
    unsupported(
        lambda c, p: c.training.optimizer == "adam" or c.training.optimizer_state_dtype == "fp32",
        "only Adam keeps its state in less than fp32",
    ),
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

# Ranks that DeepEP's normal kernels have a configuration for, 20 nodes of 8 at most
# (deepseek-ai/DeepEP, deep_ep/buffer.py, Buffer.get_dispatch_config).  Megatron exchanges over
# tp x ep of the experts.
_DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
DEEPEP_RANKS = unsupported(
    lambda c, p: (p.moe_dispatcher != _DEEPEP) | (p.ep == 1) | np.isin(p.etp * p.ep, _DEEPEP_RANKS),
    lambda c, p: (
        f"deepep exchanges over {', '.join(map(str, _DEEPEP_RANKS))} ranks, not over etp {p.etp} x "
        f"ep {p.ep}"
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
        lambda c, p: (
            f"all-to-all trades the sequence for heads: {c.model.num_attention_heads} heads and "
            f"{c.model.num_query_groups} key/value heads must divide over tp {p.tp} x cp {p.cp}"
        ),
    ),
    rule(
        "experts_not_divisible",
        lambda c, p: (c.model.moe is None or bias_kind(c.model) != "all") | (p.etp == 1),
        lambda c, p: f"experts with biases need etp 1, got {p.etp}",
    ),
    rule(
        "experts_not_divisible",
        lambda c, p: (
            (p.rank_order != _PP_INSIDE_DP)
            | (p.pp == 1)
            | (_expert_dp(p, dense=c.model.moe is None) == p.dp)
        ),
        lambda c, p: (
            "with the pipeline inside data parallelism, the expert grid (that of a dense model: "
            f"tp, no cp) needs the dense grid's dp {p.dp}: tp {p.tp}, cp {p.cp}, ep {p.ep}, "
            f"etp {p.etp}"
        ),
    ),
)

FEATURE_RULES: tuple[Rule, ...] = (
    rules.own_runtime("megatron"),
    rules.HALF_PRECISION,
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage < 3) | (p.reshard_after_forward == 1),
        "its FSDP always frees gathered weights after the forward pass",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage != 1) | (c.training.optimizer != "sgd"),
        lambda c, p: f"the distributed optimizer runs Adam, not {c.training.optimizer}",
    ),
    rule(
        "zero_stage",
        lambda c, p: (
            (c.training.optimizer != "muon")
            | ((p.zero_stage <= 1) & ((p.dp_shard == 0) | (p.dp_shard == p.dp * p.cp)))
        ),
        lambda c, p: (
            "Muon runs replicated or layer-wise over all data-parallel ranks (ZeRO 0 or 1), got "
            f"ZeRO {p.zero_stage}, dp_shard {p.dp_shard}"
        ),
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage > 0) | (c.training.optimizer_state_dtype == "fp32"),
        lambda c, p: (
            f"{c.training.optimizer_state_dtype} optimizer states need the distributed optimizer "
            "(ZeRO 1 or more)"
        ),
    ),
    unsupported(
        lambda c, p: (
            (p.zero_stage == 0) | (p.overlap_param_gather == 0) | (p.overlap_grad_reduce == 1)
        ),
        "overlapped weight gathering needs overlapped gradient reduction",
    ),
    unsupported(
        lambda c, p: (p.overlap_tp == 0) | (p.sequence_parallel == 1),
        "overlapped tensor-parallel traffic needs sequence parallelism",
    ),
    rule(
        "offload",
        lambda c, p: (
            (p.offload_optimizer == 0) | ((p.zero_stage == 1) & (c.training.optimizer == "adam"))
        ),
        lambda c, p: (
            f"offloading the optimizer needs Adam on the distributed optimizer (ZeRO 1), got "
            f"{c.training.optimizer} with ZeRO {p.zero_stage}"
        ),
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
        lambda c, p: (
            f"activation offload works without pipeline and recompute, got pp {p.pp}, "
            f"recompute {p.recompute}"
        ),
    ),
    unsupported(
        lambda c, p: (c.model.sliding_window is None) | (p.cp == 1) | (p.cp_kind != _P2P),
        "a sliding window with context parallelism needs all_gather or a2a, not p2p",
    ),
    unsupported(
        lambda c, p: (p.dynamic_cp == 0) | (p.cp == 1) | ((p.zero_stage < 2) & _deals(c.model)),
        lambda c, p: (
            "--hybrid-context-parallel runs without its FSDP (ZeRO 2 and 3), and latent attention, "
            "hybrid models and prediction layers do not take the ranks of a sample"
        ),
    ),
    unsupported(
        lambda c, p: (p.dynamic_cp == 0) | (p.cp == 1) | (p.cp_kind != _ALL_GATHER),
        "Transformer Engine gathers no keys of packed samples: dynamic_cp goes with p2p or a2a",
    ),
    unsupported(
        lambda c, p: (not c.model.attention_sinks) | (p.cp == 1) | (p.cp_kind == _A2A),
        lambda c, p: f"attention sinks with context parallelism need a2a, not {p.cp_kind}",
    ),
    unsupported(
        lambda c, p: (
            (c.model.moe is None)
            | ~rules.is_named(p, "moe_dispatcher", *_FLEX)
            | (p.etp * p.ep > 1)
        ),
        lambda c, p: f"the {p.moe_dispatcher} dispatcher needs etp x ep > 1",
    ),
    unsupported(
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
            | ~_recomputes(p, "moe_act", "layernorm")
        ),
        "with delayed fp8 scales moe_act and layernorm cannot be recomputed",
    ),
    unsupported(
        lambda c, p: p.cross_entropy != _IN_PLACE,
        "Transformer Engine's cross entropy (in_place) is disabled since core 0.18.2: unstable",
    ),
    unsupported(
        lambda c, p: (not _stores_fp8(c)) | (p.zero_stage >= 1),
        "fp8_param_gather needs the distributed optimizer (zero_stage 1 or more)",
    ),
    unsupported(
        lambda c, p: (not _stores_fp8(c)) | (p.offload_optimizer == 0) | _delayed(c),
        "fp8_param_gather with an offloaded optimizer needs the delayed recipe",
    ),
)

# Apart: what descends from it has others.
SCHEDULES = unsupported(
    lambda c, p: np.isin(p.schedule, _SCHEDULES) | (p.pp == 1),
    lambda c, p: f"with a pipeline it runs 1F1B, interleaved with vpp > 1, not {p.schedule}",
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
