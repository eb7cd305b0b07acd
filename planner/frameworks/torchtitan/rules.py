"""Rules for what torchtitan 0.3.0 and torch 2.13 refuse or have no setting for.

Read from torchtitan 0.3.0 (trainer, parallel_dims, pipeline_parallel, models) and torch 2.13.0
(distributed.pipelining, distributed.fsdp, context parallelism).
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import Plans
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import BoolArray, Context, Rule
from planner.documents.formats import value_words
from planner.frameworks import rules, torch_schedules, torch_sharding
from planner.frameworks.base import rule, unsupported
from planner.frameworks.rules import fixed_experts, fixed_part, is_named
from planner.frameworks.torch_sharding import shard_degree, shard_degrees
from planner.frameworks.torchtitan.packages import package_of, rotary_width

ATTENTION = {"flash": "flex", "flash2": "varlen"}
DISPATCHERS = {"alltoall": "standard", "deepep": "deepep"}
# Tokens in a block of FlexAttention's mask under context parallelism.
FLEX_BLOCK = 128
# Smallest head width of FlexAttention's kernels.
FLEX_WIDTH = 16
# Elements in a tile of NVFP4's kernels.
NVFP4_BLOCK = 128


def gradient_dtype(c: Context, pp: int) -> str:
    """The type gradients accumulate in: that of stored weights, with a pipeline at least fp32."""
    return "fp32" if c.training.master_weights_dtype == "fp32" or pp > 1 else "bf16"


def _gradients(c: Context, p: Plans) -> BoolArray:
    asked = c.training.gradient_dtype
    return np.where(p.pp > 1, asked == gradient_dtype(c, 2), asked == gradient_dtype(c, 1))


def layer_widths(model: ModelSpec) -> tuple[int, ...]:
    """Widths of the linear layers in a dense block; tp splits all but the first."""
    heads = model.num_attention_heads * model.head_dim
    qkv = heads + 2 * model.num_query_groups * model.head_dim
    return model.hidden_size, heads, qkv, model.ffn_hidden_size


def _nvfp4(c: Context, p: Plans) -> BoolArray:
    if c.training.precision != "fp4":
        return np.asarray(True)
    hidden, *split = layer_widths(c.model)
    fits = np.asarray(hidden % NVFP4_BLOCK == 0)
    for width in split:
        fits = fits & (width % (NVFP4_BLOCK * p.tp) == 0)
    return fits


def _states_ok(c: Context) -> bool:
    if c.training.master_weights_dtype == "none":
        return c.training.optimizer_state_dtype == "bf16"
    return c.training.optimizer_state_dtype in ("fp32", "bf16")


def narrow_states(training: TrainingSpec) -> bool:
    """Whether states are bf16 beside fp32 weights."""
    return training.master_weights_dtype == "fp32" and training.optimizer_state_dtype == "bf16"


def _heads(model: ModelSpec) -> tuple[int, int]:
    """Head widths: of queries and keys, and of values."""
    if model.mla is None:
        return model.head_dim, model.head_dim
    return model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim, model.mla.v_head_dim


def _groups_ok(model: ModelSpec) -> bool:
    moe = model.moe
    return moe is None or moe.num_groups is None or moe.num_experts >= 2 * moe.num_groups


MODEL_RULES: tuple[Rule, ...] = (
    fixed_part(lambda m: m.position == "rope", "positions are rotary in every model package"),
    fixed_part(lambda m: m.norm == "rmsnorm", "norms are RMSNorm in every model package"),
    fixed_part(lambda m: m.norms_per_layer == 2, "a layer has two norms, one before each part"),
    fixed_part(lambda m: not m.parallel_residual, "attention and MLP never run in parallel"),
    fixed_part(lambda m: not m.embedding_norm, "there is no norm after the embedding"),
    fixed_part(lambda m: not m.lm_head_bias, "the output layer has no bias"),
    fixed_part(lambda m: m.gated_mlp, "MLPs are SwiGLU, with two input projections"),
    fixed_part(lambda m: not m.mlp_bias, "MLPs have no biases"),
    fixed_part(
        lambda m: m.hidden_dropout == m.attention_dropout == 0.0, "there is no dropout anywhere"
    ),
    fixed_part(
        lambda m: m.qk_norm == "none" or (m.qk_norm == "head" and package_of(m).name == "qwen3"),
        "norms on queries and keys span one head, and exist in qwen3 only: not with latent "
        "attention, sinks or a window",
    ),
    fixed_part(
        lambda m: m.attention_output_bias == (package_of(m).name == "gpt_oss"),
        "attention's output projection has a bias always in gpt_oss, and nowhere else",
    ),
    fixed_part(
        lambda m: m.mla is None or not m.qkv_bias, "latent attention has no biases (deepseek_v3)"
    ),
    fixed_part(
        lambda m: m.mla is None or (not m.attention_sinks and m.sliding_window is None),
        "latent attention has no sinks and no window (deepseek_v3)",
    ),
    fixed_part(
        lambda m: package_of(m).name != "gpt_oss" or m.attention_sinks,
        "a sliding window exists in gpt_oss only, whose attention has sinks",
    ),
    fixed_part(
        lambda m: (
            package_of(m).name != "gpt_oss"
            or (m.moe is not None and "dense" not in m.feed_forwards)
        ),
        "every layer of gpt_oss is an MoE layer",
    ),
    fixed_part(
        lambda m: m.moe is None or m.moe.expert_bias == (package_of(m).name == "gpt_oss"),
        "experts have biases always in gpt_oss, and nowhere else",
    ),
    fixed_part(
        lambda m: (
            m.moe is None
            or package_of(m).name != "gpt_oss"
            or not m.moe.shared_expert_ffn_hidden_size
        ),
        "gpt_oss has no shared experts",
    ),
    fixed_experts(
        lambda e: not e.shared_expert_gate,
        "shared experts have a gate only in qwen3_5, which has other attention",
    ),
    fixed_experts(
        lambda e: e.capacity_factor is None, "no token is dropped: there is no capacity factor"
    ),
    fixed_part(_groups_ok, "a group of the router holds at least two experts"),
    fixed_part(
        lambda m: not m.mtp_num_layers or m.mla is not None,
        "multi-token prediction exists in deepseek_v3 only, which has latent attention",
    ),
    fixed_part(lambda m: rotary_width(m) % 2 == 0, "rotary positions need an even head width"),
)
RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    *MODEL_RULES,
    rules.HALF_PRECISION,
    unsupported(
        lambda c, p: c.training.precision != "fp16",
        "mixed precision is bf16; there is no loss scaling for fp16",
    ),
    unsupported(
        lambda c, p: c.training.precision != "fp8" or c.training.fp8_recipe in ("rowwise", "mxfp8"),
        "float8 is scaled rowwise or as mxfp8, not {c.training.fp8_recipe}",
    ),
    unsupported(
        lambda c, p: c.training.precision != "fp8" or not c.training.fp8_param_gather,
        "FSDP gathers weights in bf16, never in fp8",
    ),
    unsupported(
        lambda c, p: c.training.precision != "fp4" or (c.model.moe is None and c.model.mla is None),
        "NVFP4 has a converter for dense layers, none for experts",
    ),
    unsupported(
        _nvfp4,
        lambda c, p: (
            f"NVFP4 needs widths that are multiples of {NVFP4_BLOCK} on every rank (tp {p.tp}), "
            f"got {', '.join(map(str, layer_widths(c.model)))}"
        ),
    ),
    rules.optimizers(
        "adam", others="its DistMuon needs a placement for each matrix, which no recipe has"
    ),
    unsupported(
        lambda c, p: _states_ok(c),
        "states are fp32, or bf16 with or without master weights; got master weights "
        "{c.training.master_weights_dtype}, states {c.training.optimizer_state_dtype}",
    ),
    unsupported(
        lambda c, p: c.training.gradient_reduce_dtype == "fp32",
        "gradients are reduced in fp32, not {c.training.gradient_reduce_dtype}",
    ),
    unsupported(
        _gradients,
        lambda c, p: (
            f"with master weights {c.training.master_weights_dtype} and pp {p.pp} gradients "
            f"accumulate in {gradient_dtype(c, p.pp)}, not {c.training.gradient_dtype}"
        ),
    ),
    rule(
        "kv_heads",
        lambda c, p: c.model.mla is not None or c.model.num_query_groups % p.tp == 0,
        "{c.model.num_query_groups} key/value heads do not divide over tp {p.tp}",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | is_named(p, "attention_kernel", "flash"),
        "context parallelism (cp {p.cp}) needs FlexAttention (flash)",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | (c.training.seq_length % (FLEX_BLOCK * p.cp) == 0),
        lambda c, p: (
            f"seq_length {c.training.seq_length} is not a multiple of cp {p.cp} x {FLEX_BLOCK}, "
            "the block of FlexAttention's mask"
        ),
    ),
    unsupported(
        lambda c, p: (
            ~is_named(p, "attention_kernel", "flash") | (min(_heads(c.model)) >= FLEX_WIDTH)
        ),
        lambda c, p: (
            f"FlexAttention (flash) needs heads of at least {FLEX_WIDTH}, got "
            f"{min(_heads(c.model))}"
        ),
    ),
    unsupported(
        lambda c, p: (p.pp == 1) | (not c.model.tied_embeddings),
        "tied embeddings are not supported with a pipeline",
    ),
    unsupported(
        lambda c, p: (c.model.mtp_num_layers == 0) | ((p.pp == 1) & (p.cp == 1)),
        "multi-token prediction runs without pipeline and context parallelism, got "
        "pp {p.pp}, cp {p.cp}",
    ),
    *torch_schedules.RULES,
    rule(
        "experts_not_divisible",
        lambda c, p: (c.model.moe is None) | (p.etp == np.where(p.ep == 1, p.tp, 1)),
        "experts are split over tp {p.tp} without expert parallelism, and not with it, got "
        "ep {p.ep}, etp {p.etp}",
    ),
    rule(
        "experts_not_divisible",
        lambda c, p: shard_degrees(p) * p.cp * p.tp % np.maximum(p.ep, 1) == 0,
        lambda c, p: (
            f"ep {p.ep} does not divide data_parallel_shard_degree {shard_degree(p)} x cp {p.cp} "
            f"x tp {p.tp}"
        ),
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | ~is_named(p, "moe_dispatcher", "deepep") | (p.ep > 1),
        "DeepEP needs expert parallelism, got ep 1",
    ),
    unsupported(
        lambda c, p: (
            (c.model.moe is None)
            | (c.training.precision != "fp8")
            | ~is_named(p, "moe_dispatcher", "deepep")
        ),
        "float8 experts need padded groups, which DeepEP's dispatcher does not provide",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage == 3) | (p.cp == 1),
        "FSDP always shards over cp {p.cp}: ZeRO-0 needs cp 1",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage == 0) | (shard_degrees(p) * p.cp != 1),
        "one rank has nothing to shard: ZeRO-0",
    ),
    torch_sharding.GROUPS,
    rule(
        "offload",
        lambda c, p: (p.offload_optimizer == 0) | (p.zero_stage == 3),
        "only FSDP shards are offloaded: optimizer offload needs ZeRO-3",
    ),
    rule(
        "offload",
        lambda c, p: (p.offload_optimizer == 0) | (not narrow_states(c.training)),
        "Adam on the host keeps states in the weight dtype, not bf16 with fp32 weights",
    ),
    unsupported(
        lambda c, p: (p.dp * p.cp == 1) | (p.overlap_grad_reduce == (p.pp == 1)),
        lambda c, p: (
            f"FSDP overlaps gradient reduction with the backward pass, {_reduced(p.pp)}; got "
            f"overlap_grad_reduce {str(p.overlap_grad_reduce).lower()}"
        ),
    ),
    unsupported(
        lambda c, p: (
            (p.overlap_tp == 0) | ((p.tp > 1) & (p.compile == 1) & (p.sequence_parallel == 1))
        ),
        "asynchronous tensor parallelism is a compiler pass on gathers and reduce-scatters: it "
        "needs compile and sequence_parallel",
    ),
    rule(
        "layers_not_divisible",
        lambda c, p: p.of_stage_layers(lambda layers: min(layers[1:-1], default=1), 1) >= 1,
        lambda c, p: (
            f"a model part cannot be empty, got parts of {value_words(p.stage_layers)} layers"
        ),
    ),
)


def _reduced(pp: int) -> str:
    return "but with a pipeline reduces after it" if pp > 1 else "always, without a pipeline"
