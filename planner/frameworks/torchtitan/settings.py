"""Every setting of the registry module and of the launch line, with its reason.

A setting is a Flag: its name is the dotted path, its value a Python literal as in the module; a
tuple holds the items of a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from cost_models.spec import MLASpec, ModelSpec, MoESpec, TrainingSpec
from cost_models.stage_layers import forward_layers
from planner.constraints import Context
from planner.documents.answer import Reason
from planner.frameworks.base import Flag, Row, Unsupported, flag, in_group
from planner.frameworks.rules import accumulation
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torch_sharding import shard_degree
from planner.frameworks.torchtitan import numerics
from planner.frameworks.torchtitan.packages import package_of
from planner.frameworks.torchtitan.rules import ATTENTION, DISPATCHERS, narrow_states

LEARNING_RATE = "1.0e-4"
CHECKPOINTS = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
CHECKPOINT_WHYS = {
    "none": "nothing is recomputed",
    "selective": "by operator: every second matrix product and cheap operators are recomputed",
    "full": "every layer is recomputed in the backward pass",
}


def _set(group: str, name: str, value: object, why: str) -> Flag:
    """One setting; its value becomes a Python literal, strings in double quotes."""
    text = json.dumps(value) if isinstance(value, str | list) else repr(value)
    if isinstance(value, range) and value == range(value.stop):
        text = f"range({value.stop})"
    return flag(group, f"{group}.{name}", text, why)


@in_group("model", _set)
def _model(model: ModelSpec, training: TrainingSpec) -> Iterator[Row]:
    yield "dim", model.hidden_size, "width of the residual stream"
    yield "n_layers", model.num_layers, "transformer layers"
    yield "vocab_size", model.vocab_size, "rows of the embedding, never padded"
    yield (
        "enable_weight_tying",
        model.tied_embeddings,
        "whether the output layer shares the embedding",
    )
    yield "n_heads", model.num_attention_heads, "query heads"
    if model.mla is None:
        yield "n_kv_heads", model.num_query_groups, "key/value heads"
        yield "head_dim", model.head_dim, "width of one head"
        yield "qkv_bias", model.qkv_bias, "biases of the query/key/value projection"
    else:
        yield from _mla(model.mla)
    yield "max_seq_len", training.seq_length, "rows of the rotary table"
    if package_of(model).name == "qwen3":
        yield "qk_norm", model.qk_norm == "head", "norms on every query and key head"
    if package_of(model).name == "gpt_oss":
        yield from _windows(model)
    if "dense" in model.feed_forwards:
        yield "hidden_dim", model.ffn_hidden_size, "width of the dense MLP"
    if model.moe is not None:
        yield from _moe(model, model.moe)
    if model.mtp_num_layers:
        yield "num_mtp_layers", model.mtp_num_layers, "multi-token prediction layers"


@in_group("model", _set)
def _mla(mla: MLASpec) -> Iterator[Row]:
    yield "q_lora_rank", mla.q_lora_rank or 0, "latent width of queries; 0: none, direct"
    yield "kv_lora_rank", mla.kv_lora_rank, "latent width of keys and values"
    yield "qk_nope_head_dim", mla.qk_nope_head_dim, "head width without RoPE"
    yield "qk_rope_head_dim", mla.qk_rope_head_dim, "head width with RoPE"
    yield "v_head_dim", mla.v_head_dim, "head width of values"


@in_group("model", _set)
def _windows(model: ModelSpec) -> Iterator[Row]:
    period = model.full_attention_period
    yield "sliding_window_size", model.sliding_window, "sliding window in tokens"
    full = range(period - 1, model.num_layers, period) if period else range(0)
    yield "full_attention_layers", full, "layers without the window"


@in_group("model", _set)
def _moe(model: ModelSpec, moe: MoESpec) -> Iterator[Row]:
    layers = range(model.feed_forwards.index("moe"), model.num_layers, moe.layer_frequency)
    yield "moe_layers", layers, "MoE layers; the others have the dense MLP"
    yield "num_experts", moe.num_experts, "routed experts per layer"
    yield "top_k", moe.top_k, "experts per token"
    yield "moe_hidden_dim", moe.expert_ffn_hidden_size, "width of one expert"
    if package_of(model).name != "gpt_oss":
        yield (
            "shared_hidden_dim",
            moe.shared_expert_ffn_hidden_size,
            "width of all shared experts together; 0: none",
        )
    yield "num_expert_groups", moe.num_groups, "groups of experts; None: no groups"
    yield "num_limited_groups", moe.top_k_groups, "groups that one token may use"
    yield "router_bias", moe.router_bias, "bias of the router's projection"
    coefficient, why = (
        (1e-3, "step of the experts' balancing bias, instead of a loss")
        if moe.score_correction_bias
        else (None, "no balancing bias")
    )
    yield "load_balance_coeff", coefficient, why


@in_group("defaults", _set)
def _defaults(model: ModelSpec) -> Iterator[Row]:
    """Settings that no plan determines, as config.json states them or torchtitan's defaults."""
    yield from numerics.rows(model)
    if model.moe is not None:
        score = "sigmoid" if model.moe.score_correction_bias else "softmax"
        yield "score_func", score, "score function of the router"
        yield "route_norm", True, "top-k scores are normalized to sum 1"
        yield "route_scale", model.numerics.routed_scaling or 1.0, "routed scaling factor"
    if model.mtp_num_layers:
        yield "mtp_scale", 0.3, "weight of the MTP loss"


def _quantized(c: Context, plan: ParallelPlan) -> Iterator[Flag]:
    """Converters of the model to fp8 or fp4."""
    group, compiled = "converters", f"model_compile_enabled={plan.compile}"
    precision, experts = c.training.precision, c.model.moe is not None
    why = "all linear layers except head and router; needs torchao"
    if precision == "fp8" and c.training.fp8_recipe == "rowwise":
        linear = "Float8LinearConverter.Config"
        skipped = 'filter_fqns=["lm_head", "router.gate"]'
        yield flag(group, linear, f'recipe_name="rowwise", {skipped}, {compiled}', why)
        if experts:
            yield flag(group, "Float8GroupedExpertsConverter.Config", compiled, "the experts too")
    elif precision == "fp8":
        names = 'fqns=["attention", "feed_forward", "shared_experts"]'
        why += " and a Blackwell GPU (SM100 or later)"
        yield flag(group, "MXFP8LinearConverter.Config", f"{names}, {compiled}", why)
        if experts:
            padded = f"pad_multiple=128, {compiled}"
            yield flag(group, "MXFP8GroupedExpertsConverter.Config", padded, "the experts too")
    elif precision == "fp4":
        why += " and a Blackwell GPU (SM100 or later)"
        yield flag(group, "NVFP4LinearConverter.Config", f'fqns=["layers"], {compiled}', why)


@in_group("training", _set)
def _training(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    training = c.training
    count = accumulation(c, plan)
    if plan.pp > 1:
        local = count * plan.micro_batch_size
        why = f"sequences of a data-parallel rank per step: {count} pipeline micro-batches of "
        why += str(plan.micro_batch_size)
    else:
        local, why = plan.micro_batch_size, "sequences of a data-parallel rank per pass"
    yield "local_batch_size", local, why
    identity = f"local {local} x dp {plan.dp} x {1 if plan.pp > 1 else count} accumulation steps"
    yield "global_batch_size", training.global_batch_size, identity
    yield "seq_len", training.seq_length, "tokens of one sequence"
    stored = "float32" if training.master_weights_dtype == "fp32" else "bfloat16"
    yield "dtype", stored, "type of stored weights, gradients and (by default) states"
    yield "mixed_precision_param", "bfloat16", "type of computation and gathered weights"
    yield "mixed_precision_reduce", "float32", "gradient reduction type"
    yield "enable_cpu_offload", plan.offload_optimizer, "FSDP shards in host memory"
    yield (
        "disable_cuda_graphs",
        True,
        "costed with a launch per kernel; pipelines and most experts cannot be captured",
    )
    yield "max_norm", 1.0, "PLACEHOLDER for the smoke run: gradient clipping"


def parts(model: ModelSpec, plan: ParallelPlan) -> tuple[int, ...]:
    """Layers of every model part (virtual stage), in forward order.

    Raises Unsupported if an inner part would be empty or layers would be lost, in case the
    rules were not checked before.
    """
    counts = forward_layers(model.num_layers, plan)
    if min(counts[1:-1], default=1) < 1 or min(counts) < 0 or sum(counts) != model.num_layers:
        text = f"{model.num_layers} layers do not make parts of {', '.join(map(str, counts))}"
        raise Unsupported("torchtitan", (Reason(code="layers_not_divisible", text=text),))
    return counts


def _span(start: int, count: int) -> str:
    return f"{start}, {start + count}" if start else str(count)


def _part_names(counts: tuple[int, ...]) -> tuple[str, ...]:
    """The modules of every part as Python lists."""
    rows, start = [], 0
    for index, count in enumerate(counts):
        items = [f'*(f"layers.{{i}}" for i in range({_span(start, count)}))'] if count else []
        if index == 0:
            items.insert(0, '"tok_embeddings"')
        if index == len(counts) - 1:
            items += ['"norm"', '"lm_head"']
        rows.append(f"[{', '.join(items)}]")
        start += count
    return tuple(rows)


@in_group("parallelism", _set)
def _parallelism(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    shard = shard_degree(plan)
    yield (
        "spmd_backend",
        "partial_dtensor",
        "FSDP of torch 2.13 refuses the default's plain tensors (spmd_types)",
    )
    yield "data_parallel_replicate_degree", plan.dp // shard, "replicas of the shard group"
    spanned = f"FSDP shards span this x cp {plan.cp}" if plan.zero_stage else "nothing is sharded"
    yield "data_parallel_shard_degree", shard, spanned
    if plan.zero_stage == 0:
        policy, why = "always", "one rank per shard: frees only the half-precision copy"
    elif plan.reshard_after_forward:
        policy, why = "default", "gathered weights are freed after the forward pass"
    else:
        policy, why = "never", "gathered weights stay for the backward pass"
    yield "fsdp_reshard_after_forward", policy, why
    yield "tensor_parallel_degree", plan.tp, "ranks that split every layer"
    yield "enable_sequence_parallel", plan.sequence_parallel, "norms split over tp"
    yield "context_parallel_degree", plan.cp, "ranks that split every sequence"
    if plan.cp > 1:
        yield (
            "context_parallel_load_balancer",
            "headtail",
            "each rank has an early and a late part: balanced causal attention",
        )
    yield "pipeline_parallel_degree", plan.pp, "pipeline stages"
    if plan.pp > 1:
        yield from _pipeline(c.model, plan)
    if c.model.moe is not None:
        yield "expert_parallel_degree", plan.ep, "ranks that split a layer's experts"


@in_group("parallelism", _set)
def _pipeline(model: ModelSpec, plan: ParallelPlan) -> Iterator[Row]:
    placed = "in a V" if plan.schedule in ("zb-v", "dualpipe-v") else "in turn"
    yield "pipeline_parallel_schedule", SCHEDULES[plan.schedule], "pipeline schedule"
    yield "pipeline_parallel_microbatch_size", plan.micro_batch_size, "sequences per pass"
    counts = parts(model, plan)
    yield flag(
        "parallelism",
        "parallelism.module_fqns_per_model_part",
        _part_names(counts),
        f"{len(counts)} parts of {', '.join(map(str, counts))} layers, assigned to the stages "
        f"{placed}; by default torchtitan counts the embedding and the head as a layer each",
    )


@in_group("compile", _set)
def _compile(plan: ParallelPlan) -> Iterator[Row]:
    components = [name for name, on in _compiled(plan) if on]
    yield "enable", bool(components), "torch.compile"
    yield "components", components, "model: fused kernels per layer; loss: fused cross entropy"
    why = "overlap of tensor-parallel communication with GEMMs"
    yield "enable_async_tensor_parallel", plan.overlap_tp, why


def _compiled(plan: ParallelPlan) -> tuple[tuple[str, bool], ...]:
    return ("model", plan.compile), ("loss", plan.cross_entropy == "fused")


def _rest(c: Context, plan: ParallelPlan) -> Iterator[Flag]:
    """Settings of kernels, activation checkpoints and the optimizer."""
    name = ATTENTION[plan.attention_kernel]
    yield _set("kernels", "attn_backend", name, "FlexAttention, or varlen flash-attention")
    if c.model.moe is not None:
        dispatcher = DISPATCHERS[plan.moe_dispatcher]
        yield _set("kernels", "moe_comm_backend", dispatcher, "token dispatcher")
    yield flag(
        "trainer",
        "activation_checkpoint",
        CHECKPOINTS[plan.recompute],
        CHECKPOINT_WHYS[plan.recompute],
    )
    yield _set("optimizer", "lr", float(LEARNING_RATE), "PLACEHOLDER for the smoke run")
    narrow = narrow_states(c.training)
    yield _set(
        "optimizer",
        "implementation",
        "fused_opt_states_bf16" if narrow else "fused",
        "fused optimizer; states in bf16"
        if narrow
        else "fused optimizer; states in the stored dtype",
    )


def settings(c: Context, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Every setting of the registry module, by the object that it belongs to."""
    return (
        *_model(c.model, c.training),
        *_defaults(c.model),
        *_quantized(c, plan),
        *_rest(c, plan),
        *_training(c, plan),
        *_parallelism(c, plan),
        *_compile(plan),
    )


def environment() -> tuple[Flag, ...]:
    """Environment variables of every run."""
    why = "expandable segments: less fragmentation"
    return (flag("environment", "PYTORCH_ALLOC_CONF", "expandable_segments:True", why),)
