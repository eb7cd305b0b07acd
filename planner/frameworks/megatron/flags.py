"""The arguments of `pretrain_gpt.py` and `pretrain_hybrid.py`, by group, each with its why."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.parameters import padded_vocab_size
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, MoESpec, TrainingSpec
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks.base import Flag, Row, as_flags
from planner.frameworks.megatron import hybrid, layer_lists, layout, numerics, patterns, windows
from planner.frameworks.megatron import packed_samples as samples
from planner.frameworks.megatron.model_rules import FP8_RECIPES, GRADIENTS, bias_kind
from planner.frameworks.megatron.options import OPTIONS
from planner.frameworks.megatron_option_rows import rows_of
from planner.frameworks.rules import accumulation, learning_rate, train_iterations

VOCAB_MULTIPLE = 128

CP_COMM = {"p2p": "p2p", "all_gather": "all_gather", "a2a": "a2a"}
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
DISPATCHERS = {
    "alltoall": "alltoall",
    "allgather": "allgather",
    "deepep": "flex",
    "hybridep": "flex",
}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
SHARDED = {2: "optimizer states and gradients", 3: "optimizer states, gradients and weights"}
METHODS = {"block": "the first layers of each model chunk", "uniform": "all layers"}


def _model(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    positions = max(training.seq_length, model.max_position_embeddings or 0)
    if patterns.is_hybrid(model):
        yield from hybrid.options(model, plan)
    else:
        yield "--num-layers", model.num_layers, "transformer layers"
    if model.mla is None and model.num_query_groups != model.num_attention_heads:
        yield "--group-query-attention", "without it --num-query-groups is ignored"
        yield "--num-query-groups", model.num_query_groups, "key/value heads"
    yield "--seq-length", training.seq_length, "tokens of one sequence"
    yield "--max-position-embeddings", positions, "at least the sequence length"
    yield "--position-embedding-type", POSITIONS[patterns.position(model)], "position encoding"
    biases = bias_kind(model)
    if biases != "all":
        yield "--disable-bias-linear", "linear layers have no bias"
    if biases == "qkv":
        yield "--add-qkv-bias", "a bias in the query/key/value projection"
    if model.mla is not None:
        yield "--multi-latent-attention", "multi-head latent attention (MLA)"
    if model.qk_norm == "head" or model.mla is not None:
        yield "--qk-layernorm", "norms on queries and keys (MLA: on the latents)"
    if model.attention_sinks:
        yield "--softmax-type", "learnable", "one learned sink logit per head"
    yield from windows.options(model)
    yield from patterns.pattern_options(model)
    for _, row in numerics.rows(model):
        yield row


def _moe(model: ModelSpec, moe: MoESpec, plan: ParallelPlan) -> Iterator[Row]:
    if "dense" in model.feed_forwards and not patterns.is_hybrid(model):
        kinds = [int(kind == "moe") for kind in model.feed_forwards]
        yield (
            "--moe-layer-freq",
            layer_lists.list_expression(kinds),
            "1: an MoE layer, 0: a dense layer",
        )
    if moe.score_correction_bias:
        yield "--moe-router-score-function", "sigmoid", "required by the expert bias"
    elif moe.top_k == 1:
        yield "--moe-router-pre-softmax", "softmax before top-1; after it there is no gradient"
    yield (
        "--moe-token-dispatcher-type",
        DISPATCHERS[plan.moe_dispatcher],
        f"token dispatch by {plan.moe_dispatcher}",
    )
    if DISPATCHERS[plan.moe_dispatcher] == "flex":
        yield "--moe-flex-dispatcher-backend", plan.moe_dispatcher, "backend of the flex dispatcher"
    if bias_kind(model) == "all":
        yield "--no-bias-dropout-fusion", "required by grouped experts with biases"


def _parallel(model: ModelSpec, plan: ParallelPlan) -> Iterator[Row]:
    if plan.cp > 1:
        yield "--cp-comm-type", CP_COMM[plan.cp_kind], "exchange of keys and values"
    layout.chunks(model, plan)  # raises Unsupported unless the stages hold every layer once
    uneven = bool(plan.first_stage_layers or plan.last_stage_layers)
    if patterns.is_hybrid(model):
        pass  # its layer pattern gives the stages
    elif plan.stage_layers or (uneven and plan.vpp > 1):
        yield (
            layout.OPTION,
            layout.layout(model, plan),
            f"layers per stage and chunk, {plan.vpp} chunks per stage",
        )
    elif plan.vpp > 1:
        yield (
            "--num-virtual-stages-per-pipeline-rank",
            plan.vpp,
            "interleaved 1F1B: chunks per stage",
        )
    else:
        for name, layers in (("first", plan.first_stage_layers), ("last", plan.last_stage_layers)):
            if layers:
                yield f"--decoder-{name}-pipeline-num-layers", layers, f"layers of the {name} stage"


def _sharding(training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    if plan.zero_stage >= 1 and training.optimizer != "muon":
        yield "--use-distributed-optimizer", "optimizer states sharded (ZeRO 1)"
    if plan.zero_stage >= 2:
        yield "--use-megatron-fsdp", f"Megatron-FSDP (ZeRO {plan.zero_stage})"
        yield (
            "--data-parallel-sharding-strategy",
            SHARDING[plan.zero_stage],
            f"{SHARDED[plan.zero_stage]} sharded",
        )
        yield "--no-gradient-accumulation-fusion", "with Megatron-FSDP the fusion needs a newer TE"
        yield "--ckpt-format", "fsdp_dtensor", "the only format of Megatron-FSDP"
    shard = plan.dp_shard or plan.dp * plan.cp
    if plan.zero_stage >= 1 and shard != plan.dp * plan.cp:
        yield (
            "--num-distributed-optimizer-instances",
            plan.dp * plan.cp // shard,
            f"replicas of the states, each sharded over {shard} ranks",
        )


def _batch(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    training = c.training
    yield (
        "--global-batch-size",
        training.global_batch_size,
        f"= micro batch {plan.micro_batch_size} x accumulation {accumulation(c, plan)} "
        f"x dp {plan.dp}",
    )
    yield train_iterations("", training)


def _precision(training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    if training.precision == "fp16":
        yield "--fp16", "fp16 weights, dynamic loss scale"
    else:
        yield "--bf16", "bf16 weights"
    if training.precision == "fp8":
        yield "--fp8-format", "hybrid", "E4M3 forward, E5M2 gradients"
        yield "--fp8-recipe", training.fp8_recipe, FP8_RECIPES[training.fp8_recipe]
        if training.fp8_param_gather:
            yield "--fp8-param-gather", "weights stored and gathered in fp8"
    if training.precision == "fp4":
        yield "--fp4-format", "e2m1", "four-bit values in the linear layers"
        yield "--fp4-recipe", "nvfp4", "a scale per 16 values"
    gradients = GRADIENTS[
        (training.precision, training.gradient_dtype, training.gradient_reduce_dtype)
    ]
    if gradients is not None:
        yield gradients, f"gradients kept and reduced in {training.gradient_dtype}"


def _recompute(model: ModelSpec, plan: ParallelPlan) -> Iterator[Row]:
    if plan.recompute == "none":
        return
    yield "--recompute-granularity", plan.recompute, "recomputed activations"
    if plan.recompute == "selective":
        yield "--recompute-modules", plan.recompute_modules, "recomputed modules"
        return
    per = "per model chunk" if plan.recompute_method == "block" else "per checkpoint"
    yield "--recompute-method", plan.recompute_method, METHODS[plan.recompute_method]
    each = hybrid.blocks_per_layer(model) if patterns.is_hybrid(model) else 1
    yield "--recompute-num-layers", plan.recompute_num_layers * each, f"layers {per}"


def _kernels(model: ModelSpec, plan: ParallelPlan) -> Iterator[Row]:
    backend, why = plan.attention_kernel, "attention kernel"
    if backend == "flash" and (model.mla is not None or model.attention_sinks):
        backend_name, why = "fused", "cuDNN attention, for sinks and unequal head widths"
    elif backend == "flash2":
        backend_name, why = "flash", "flash-attention 2; install no newer one"
    else:
        backend_name = backend
    yield "--attention-backend", backend_name, why
    if plan.cross_entropy != "unfused":
        yield (
            "--cross-entropy-loss-fusion",
            "compiled kernels, one reduction less; keeps fp32 exponentials, 4 bytes per logit",
        )
        yield "--cross-entropy-fusion-impl", "native", "te is disabled as unstable"


def _optimizer(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    if training.optimizer == "muon":
        # Every version knows this name; main prefers the two options that it stands for.
        name = "dist_muon" if plan.zero_stage else "muon"
        split = ", each rank updates some matrices" if plan.zero_stage else ""
        yield "--optimizer", name, f"orthogonalized updates{split}"
        yield "--muon-tp-mode", "duplicated", "whole matrices, gathered over tp"
    else:
        yield "--optimizer", training.optimizer, "as planned"
    yield learning_rate("")
    small = training.optimizer_state_dtype != "fp32"
    if small or plan.offload_optimizer:
        yield "--use-precision-aware-optimizer", "states in other dtypes or in host memory"
    if small:
        dtype = training.optimizer_state_dtype
        yield "--exp-avg-dtype", dtype, "dtype of the first moment"
        yield "--exp-avg-sq-dtype", dtype, "dtype of the second moment"
    if plan.offload_optimizer:
        yield "--optimizer-cpu-offload", "optimizer states in host memory"
        yield "--optimizer-offload-fraction", "1.0", "share of the states: all"
        yield "--overlap-cpu-optimizer-d2h-h2d", "host copies overlapped with the step"
    if plan.offload_activations:
        which = "the first ones" if plan.offload_num_layers else "all but the last"
        yield (
            "--cpu-offloading-num-layers",
            plan.offload_num_layers or model.num_layers - 1,
            f"layers with activations in host memory: {which}",
        )


def _mock(model: ModelSpec) -> Iterator[Row]:
    yield "--mock-data", "MOCK DATA; to train, give --data-path instead"
    yield "--tokenizer-type", "NullTokenizer", "mock data needs no tokenizer"
    yield "--vocab-size", model.vocab_size, "tokens in the vocabulary"


def _data(model: ModelSpec, plan: ParallelPlan) -> Iterator[Row]:
    padded = int(padded_vocab_size(model.vocab_size, plan.tp, VOCAB_MULTIPLE))
    yield (
        "--make-vocab-size-divisible-by",
        VOCAB_MULTIPLE,
        f"embedding rows padded to a multiple of {VOCAB_MULTIPLE} x tp {plan.tp}",
    )
    yield "--padded-vocab-size", padded, "rows of the embedding, as planned"
    yield (
        "--eval-iters",
        0,
        "no evaluation" if samples.are_assigned_by_length(plan) else "no evaluation on mock data",
    )


def _computed(context: Context, plan: ParallelPlan) -> Iterator[Row]:
    """The options whose value depends on several fields."""
    model, training = context.model, context.training
    yield from _model(model, training, plan)
    if model.moe is not None:
        yield from _moe(model, model.moe, plan)
    yield from _parallel(model, plan)
    yield from samples.sample_options(training, plan)
    yield from _sharding(training, plan)
    yield from _batch(context, plan)
    yield from _precision(training, plan)
    yield from _recompute(model, plan)
    yield from _kernels(model, plan)
    yield from _optimizer(model, training, plan)
    yield from samples.data(training) if samples.are_assigned_by_length(plan) else _mock(model)
    yield from _data(model, plan)


def flags(request: PlanRequest, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Every argument of the training program, grouped, in the order of OPTIONS."""
    context = Context(request.model, request.cluster, request.training)
    records = patterns.records(request.model, plan)
    rows = (*rows_of(OPTIONS.values(), records), *_computed(context, plan))
    said = {one.name: one for one in as_flags(rows)}
    return tuple(
        said[name].model_copy(update={"group": row.group})
        for name, row in OPTIONS.items()
        if name in said
    )
