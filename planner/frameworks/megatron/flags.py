"""The arguments of `pretrain_gpt.py` and `pretrain_hybrid.py`, by group, each with its why."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.parameters import padded_vocab_size
from cost_models.plans import ParallelPlan
from cost_models.spec import MLASpec, ModelSpec, MoESpec, TrainingSpec
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks.base import Flag, Row, in_group
from planner.frameworks.megatron import hybrid, numerics, patterns
from planner.frameworks.megatron import packed_samples as samples
from planner.frameworks.megatron.layout import chunks, layout
from planner.frameworks.megatron.model_rules import FP8_RECIPES, GRADIENTS, bias_kind
from planner.frameworks.rules import accumulation, learning_rate, train_iterations

VOCAB_MULTIPLE = 128

CP_COMM = {"p2p": "p2p", "all_gather": "all_gather", "a2a": "a2a"}
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
DISPATCHERS = {
    "alltoall": "alltoall",
    "allgather": "allgather",
    "deepep": "flex",
    "hybridep": "flex",
}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
SHARDED = {2: "optimizer states and gradients", 3: "optimizer states, gradients and weights"}
METHODS = {"block": "the first layers of each model chunk", "uniform": "all layers"}


@in_group("MODEL_ARGS")
def _model(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    positions = max(training.seq_length, model.max_position_embeddings or 0)
    if patterns.is_hybrid(model):
        yield from hybrid.options(model, plan)
    else:
        yield "--num-layers", model.num_layers, "transformer layers"
    yield "--hidden-size", model.hidden_size, "width of the residual stream"
    yield "--ffn-hidden-size", model.ffn_hidden_size, "width of the dense MLP"
    yield "--num-attention-heads", model.num_attention_heads, "query heads"
    yield "--kv-channels", model.head_dim, "width of one head"
    if model.mla is None and model.num_query_groups != model.num_attention_heads:
        yield "--group-query-attention", "without it --num-query-groups is ignored"
        yield "--num-query-groups", model.num_query_groups, "key/value heads"
    yield "--seq-length", training.seq_length, "tokens of one sequence"
    yield "--max-position-embeddings", positions, "at least the sequence length"
    yield (
        "--position-embedding-type",
        POSITIONS[patterns.position(model)],
        "position encoding",
    )
    yield "--normalization", NORMS[model.norm], "norm of every layer"
    if model.gated_mlp:
        yield "--swiglu", "gated MLP: two input projections"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights", "the output layer has its own weights"
    biases = bias_kind(model)
    if biases != "all":
        yield "--disable-bias-linear", "linear layers have no bias"
    if biases == "qkv":
        yield "--add-qkv-bias", "a bias in the query/key/value projection"
    if model.qk_norm == "head" or model.mla is not None:
        yield "--qk-layernorm", "norms on queries and keys (MLA: on the latents)"
    yield "--hidden-dropout", model.hidden_dropout, "dropout of the residual stream"
    yield "--attention-dropout", model.attention_dropout, "dropout of the attention scores"
    if model.attention_sinks:
        yield "--softmax-type", "learnable", "one learned sink logit per head"
    if model.sliding_window is not None:
        yield (
            "--window-size",
            f"{model.sliding_window - 1},0",
            "sliding window: tokens to the left, to the right",
        )
        if model.full_attention_period is not None:
            yield (
                "--window-attn-skip-freq",
                model.full_attention_period,
                "full attention in every n-th layer",
            )
    if model.mla is not None:
        yield from _mla(model.mla)
    yield from patterns.pattern_options(model)
    if model.mtp_num_layers and not patterns.is_hybrid(model):
        yield "--mtp-num-layers", model.mtp_num_layers, "multi-token prediction layers"
    for _, row in numerics.rows(model):
        yield row


@in_group("MODEL_ARGS")
def _mla(mla: MLASpec) -> Iterator[Row]:
    yield "--multi-latent-attention", "multi-head latent attention (MLA)"
    if mla.q_lora_rank is not None:
        yield "--q-lora-rank", mla.q_lora_rank, "latent width of queries"
    yield "--kv-lora-rank", mla.kv_lora_rank, "latent width of keys and values"
    yield "--qk-head-dim", mla.qk_nope_head_dim, "head width without RoPE"
    yield "--qk-pos-emb-head-dim", mla.qk_rope_head_dim, "head width with RoPE"
    yield "--v-head-dim", mla.v_head_dim, "head width of values"


@in_group("MOE_ARGS")
def _moe(model: ModelSpec, moe: MoESpec, plan: ParallelPlan) -> Iterator[Row]:
    yield "--num-experts", moe.num_experts, "routed experts per layer"
    yield "--moe-ffn-hidden-size", moe.expert_ffn_hidden_size, "width of one expert"
    yield "--moe-router-topk", moe.top_k, "experts per token"
    if "dense" in model.feed_forwards and not patterns.is_hybrid(model):
        kinds = [int(kind == "moe") for kind in model.feed_forwards]
        yield (
            "--moe-layer-freq",
            patterns.list_expression(kinds),
            "1: an MoE layer, 0: a dense layer",
        )
    if moe.shared_expert_ffn_hidden_size:
        yield (
            "--moe-shared-expert-intermediate-size",
            moe.shared_expert_ffn_hidden_size,
            "width of all shared experts together",
        )
        if moe.shared_expert_gate:
            yield "--moe-shared-expert-gate", "a gate scales the shared experts"
    if moe.num_groups is not None:
        yield "--moe-router-num-groups", moe.num_groups, "groups of experts"
        yield "--moe-router-group-topk", moe.top_k_groups, "expert groups per token"
    if moe.score_correction_bias:
        yield "--moe-router-score-function", "sigmoid", "required by the expert bias"
        yield "--moe-router-enable-expert-bias", "load balancing without an auxiliary loss"
    elif moe.top_k == 1:
        yield "--moe-router-pre-softmax", "softmax before top-1; after it there is no gradient"
    if moe.capacity_factor is not None:
        yield (
            "--moe-expert-capacity-factor",
            moe.capacity_factor,
            "tokens above the capacity are dropped",
        )
    yield "--moe-grouped-gemm", "all experts of a rank in one kernel"
    yield "--moe-router-dtype", "fp32", "stable routing; required by DeepEP"
    yield (
        "--moe-token-dispatcher-type",
        DISPATCHERS[plan.moe_dispatcher],
        f"token dispatch by {plan.moe_dispatcher}",
    )
    if DISPATCHERS[plan.moe_dispatcher] == "flex":
        yield "--moe-flex-dispatcher-backend", plan.moe_dispatcher, "backend of the flex dispatcher"
    yield "--expert-model-parallel-size", plan.ep, "ranks that divide the experts"
    yield "--expert-tensor-parallel-size", plan.etp, "ranks that split each expert"
    if bias_kind(model) == "all":
        yield "--no-bias-dropout-fusion", "required by grouped experts with biases"


@in_group("PARALLEL_ARGS")
def _parallel(model: ModelSpec, plan: ParallelPlan) -> Iterator[Row]:
    yield "--tensor-model-parallel-size", plan.tp, "ranks that split every layer"
    yield "--pipeline-model-parallel-size", plan.pp, "pipeline stages"
    yield "--context-parallel-size", plan.cp, "ranks that split the sequence"
    if plan.sequence_parallel:
        yield "--sequence-parallel", "sequence split over tp in norms and dropout"
    if plan.cp > 1:
        yield "--cp-comm-type", CP_COMM[plan.cp_kind], "exchange of keys and values"
    chunks(model, plan)  # raises Unsupported unless the stages hold every layer once
    uneven = bool(plan.first_stage_layers or plan.last_stage_layers)
    if patterns.is_hybrid(model):
        pass  # its layer pattern gives the stages
    elif plan.stage_layers or (uneven and plan.vpp > 1):
        yield (
            "--pipeline-model-parallel-layout",
            layout(model, plan),
            f"layers per stage and chunk, {plan.vpp} chunks per stage",
        )
    elif plan.vpp > 1:
        yield (
            "--num-virtual-stages-per-pipeline-rank",
            plan.vpp,
            "interleaved 1F1B: chunks per stage",
        )
    else:
        for name, layers in (
            ("first", plan.first_stage_layers),
            ("last", plan.last_stage_layers),
        ):
            if layers:
                yield f"--decoder-{name}-pipeline-num-layers", layers, f"layers of the {name} stage"
    if plan.rank_order == "tp-cp-ep-pp-dp":
        yield "--use-tp-pp-dp-mapping", "rank order: pipeline inside data parallelism"


@in_group("PARALLEL_ARGS")
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


@in_group("BATCH_ARGS")
def _batch(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    training = c.training
    yield "--micro-batch-size", plan.micro_batch_size, "sequences per pass and rank"
    yield (
        "--global-batch-size",
        training.global_batch_size,
        f"= micro batch {plan.micro_batch_size} x accumulation {accumulation(c, plan)} "
        f"x dp {plan.dp}",
    )
    yield train_iterations("BATCH_ARGS", training)


@in_group("PRECISION_ARGS")
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


@in_group("RECOMPUTE_ARGS")
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


@in_group("KERNEL_ARGS")
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


@in_group("OVERLAP_ARGS")
def _overlap(plan: ParallelPlan) -> Iterator[Row]:
    if plan.overlap_grad_reduce:
        yield "--overlap-grad-reduce", "gradients reduced during the backward pass"
    if plan.overlap_param_gather and plan.zero_stage >= 1:
        yield "--overlap-param-gather", "weights gathered during the forward pass"
    if plan.overlap_ep:
        yield "--overlap-moe-expert-parallel-comm", "overlap with another micro-batch"
    if plan.overlap_tp:
        yield "--tp-comm-overlap", "tensor-parallel traffic overlapped with GEMMs"
    if plan.vpp > 1 and not plan.overlap_p2p:
        yield "--no-overlap-p2p-communication", "blocking messages between stages"


@in_group("OPTIMIZER_ARGS")
def _optimizer(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    if training.optimizer == "muon":
        # Every version knows this name; main prefers the two options that it stands for.
        name = "dist_muon" if plan.zero_stage else "muon"
        split = ", each rank updates some matrices" if plan.zero_stage else ""
        yield "--optimizer", name, f"orthogonalized updates{split}"
        yield "--muon-tp-mode", "duplicated", "whole matrices, gathered over tp"
    else:
        yield "--optimizer", training.optimizer, "as planned"
    yield learning_rate("OPTIMIZER_ARGS")
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


@in_group("DATA_ARGS")
def _mock(model: ModelSpec) -> Iterator[Row]:
    yield "--mock-data", "MOCK DATA; to train, give --data-path instead"
    yield "--tokenizer-type", "NullTokenizer", "mock data needs no tokenizer"
    yield "--vocab-size", model.vocab_size, "tokens in the vocabulary"


@in_group("DATA_ARGS")
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
        "no evaluation" if samples.are_dealt(plan) else "no evaluation on mock data",
    )
    yield "--log-interval", 1, "log of every iteration's time"
    yield "--log-throughput", "log of TFLOP/s per accelerator"


def flags(request: PlanRequest, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Every argument of the training program, grouped."""
    context = Context(request.model, request.cluster, request.training)
    model, training = request.model, request.training
    return (
        *_model(model, training, plan),
        *(_moe(model, model.moe, plan) if model.moe is not None else ()),
        *_parallel(model, plan),
        *samples.sample_options(training, plan),
        *_sharding(training, plan),
        *_batch(context, plan),
        *_precision(training, plan),
        *_recompute(model, plan),
        *_kernels(model, plan),
        *_overlap(plan),
        *_optimizer(model, training, plan),
        *(samples.data(training) if samples.are_dealt(plan) else _mock(model)),
        *_data(model, plan),
    )
