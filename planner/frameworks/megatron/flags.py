"""The arguments of `pretrain_gpt.py`, by group, each with its why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from cost_models.parameters import padded_vocab_size
from cost_models.plans import ParallelPlan
from cost_models.spec import MLASpec, ModelSpec, MoESpec, TrainingSpec
from planner.constraints import Context
from planner.frameworks.base import Flag, flag, switch
from planner.frameworks.megatron.layout import chunks, layout
from planner.frameworks.megatron.rules import FP8_RECIPES, GRADIENTS, bias_kind
from planner.frameworks.rules import accumulation, learning_rate, train_iterations
from planner.request import PlanRequest

VOCAB_MULTIPLE = 128

CP_COMM = {"p2p": "p2p", "all_gather": "all_gather", "a2a": "a2a"}
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
DISPATCHERS = {"alltoall": "alltoall", "allgather": "allgather", "deepep": "flex"}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def _model(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Iterator[Flag]:
    group = "MODEL_ARGS"
    positions = max(training.seq_length, model.max_position_embeddings or 0)
    yield flag(group, "--num-layers", model.num_layers, "transformer layers")
    yield flag(group, "--hidden-size", model.hidden_size, "width of the residual stream")
    yield flag(group, "--ffn-hidden-size", model.ffn_hidden_size, "width of the dense MLP")
    yield flag(group, "--num-attention-heads", model.num_attention_heads, "query heads")
    yield flag(group, "--kv-channels", model.head_dim, "width of one head")
    if model.mla is None and model.num_query_groups != model.num_attention_heads:
        yield switch(group, "--group-query-attention", "without it the next flag is ignored")
        yield flag(group, "--num-query-groups", model.num_query_groups, "key/value heads")
    yield flag(group, "--seq-length", training.seq_length, "tokens of one sequence")
    yield flag(group, "--max-position-embeddings", positions, "at least the sequence length")
    yield flag(
        group,
        "--position-embedding-type",
        POSITIONS[model.position],
        "how tokens know their place",
    )
    yield flag(group, "--normalization", NORMS[model.norm], "norm of every layer")
    if model.gated_mlp:
        yield switch(group, "--swiglu", "gated MLP: two input projections")
    if not model.tied_embeddings:
        yield switch(
            group, "--untie-embeddings-and-output-weights", "the output layer has its own weights"
        )
    biases = bias_kind(model)
    if biases != "all":
        yield switch(group, "--disable-bias-linear", "linear layers have no bias")
    if biases == "qkv":
        yield switch(group, "--add-qkv-bias", "except the query/key/value projection")
    if model.qk_norm == "head" or model.mla is not None:
        yield switch(group, "--qk-layernorm", "norms on queries and keys (MLA: on the latents)")
    yield flag(group, "--hidden-dropout", model.hidden_dropout, "dropout of the residual stream")
    yield flag(group, "--attention-dropout", model.attention_dropout, "dropout of the scores")
    if model.attention_sinks:
        yield flag(group, "--softmax-type", "learnable", "one learned sink logit per head")
    if model.sliding_window is not None:
        yield flag(
            group, "--window-size", f"{model.sliding_window - 1},0", "tokens seen to the left"
        )
        if model.full_attention_period is not None:
            yield flag(
                group,
                "--window-attn-skip-freq",
                model.full_attention_period,
                "every n-th layer attends fully",
            )
    if model.mla is not None:
        yield from _mla(model.mla)
    if model.mtp_num_layers:
        yield flag(group, "--mtp-num-layers", model.mtp_num_layers, "extra prediction layers")


def _mla(mla: MLASpec) -> Iterator[Flag]:
    group = "MODEL_ARGS"
    yield switch(group, "--multi-latent-attention", "keys and values from a latent")
    if mla.q_lora_rank is not None:
        yield flag(group, "--q-lora-rank", mla.q_lora_rank, "latent width of queries")
    yield flag(group, "--kv-lora-rank", mla.kv_lora_rank, "latent width of keys and values")
    yield flag(group, "--qk-head-dim", mla.qk_nope_head_dim, "head width without positions")
    yield flag(group, "--qk-pos-emb-head-dim", mla.qk_rope_head_dim, "head width with positions")
    yield flag(group, "--v-head-dim", mla.v_head_dim, "head width of values")


def _layer_pattern(kinds: Sequence[str]) -> str:
    """The kinds of all layers as the list expression that it evaluates, the shorter way."""
    digits = [str(int(kind == "moe")) for kind in kinds]
    runs = ((digit, len(list(run))) for digit, run in groupby(digits))
    return min(
        "+".join(f"[{digit}]*{length}" for digit, length in runs),
        f"[{','.join(digits)}]",
        key=len,
    )


def _moe(model: ModelSpec, moe: MoESpec, plan: ParallelPlan) -> Iterator[Flag]:
    group = "MOE_ARGS"
    yield flag(group, "--num-experts", moe.num_experts, "routed experts per layer")
    yield flag(group, "--moe-ffn-hidden-size", moe.expert_ffn_hidden_size, "width of one expert")
    yield flag(group, "--moe-router-topk", moe.top_k, "experts per token")
    if "dense" in model.feed_forwards:
        pattern = _layer_pattern(model.feed_forwards)
        yield flag(group, "--moe-layer-freq", pattern, "1: a layer of experts, 0: a dense one")
    if moe.shared_expert_ffn_hidden_size:
        yield flag(
            group,
            "--moe-shared-expert-intermediate-size",
            moe.shared_expert_ffn_hidden_size,
            "width of all shared experts together",
        )
        if moe.shared_expert_gate:
            yield switch(group, "--moe-shared-expert-gate", "a gate scales the shared experts")
    if moe.num_groups is not None:
        yield flag(group, "--moe-router-num-groups", moe.num_groups, "groups of experts")
        yield flag(
            group, "--moe-router-group-topk", moe.top_k_groups, "groups that one token may use"
        )
    if moe.score_correction_bias:
        yield flag(group, "--moe-router-score-function", "sigmoid", "the balancing bias needs it")
        yield switch(group, "--moe-router-enable-expert-bias", "balances without an auxiliary loss")
    elif moe.top_k == 1:
        yield switch(group, "--moe-router-pre-softmax", "top-1 has no gradient after the softmax")
    if moe.capacity_factor is not None:
        yield flag(
            group, "--moe-expert-capacity-factor", moe.capacity_factor, "tokens above are dropped"
        )
    yield switch(group, "--moe-grouped-gemm", "the experts of a rank in one launch")
    yield flag(group, "--moe-router-dtype", "fp32", "stable routing; deepep takes nothing else")
    yield flag(
        group,
        "--moe-token-dispatcher-type",
        DISPATCHERS[plan.moe_dispatcher],
        f"tokens travel by {plan.moe_dispatcher}",
    )
    if plan.moe_dispatcher == "deepep":
        yield flag(group, "--moe-flex-dispatcher-backend", "deepep", "of the flex dispatcher")
    yield flag(group, "--expert-model-parallel-size", plan.ep, "ranks that share the experts")
    yield flag(group, "--expert-tensor-parallel-size", plan.etp, "ranks that split one expert")
    if bias_kind(model) == "all":
        yield switch(group, "--no-bias-dropout-fusion", "grouped experts with biases need it off")


def _parallel(model: ModelSpec, plan: ParallelPlan) -> Iterator[Flag]:
    group = "PARALLEL_ARGS"
    yield flag(group, "--tensor-model-parallel-size", plan.tp, "ranks that split every layer")
    yield flag(group, "--pipeline-model-parallel-size", plan.pp, "stages of layers")
    yield flag(group, "--context-parallel-size", plan.cp, "ranks that split the sequence")
    if plan.sequence_parallel:
        yield switch(group, "--sequence-parallel", "norms and dropout split over tp")
    if plan.cp > 1:
        yield flag(group, "--cp-comm-type", CP_COMM[plan.cp_kind], "how keys and values travel")
    chunks(model, plan)  # refuses stages that do not hold every layer once
    uneven = bool(plan.first_stage_layers or plan.last_stage_layers)
    if plan.stage_layers or (uneven and plan.vpp > 1):
        yield flag(
            group,
            "--pipeline-model-parallel-layout",
            layout(model, plan),
            f"layers per stage and chunk, {plan.vpp} chunks per stage",
        )
    elif plan.vpp > 1:
        yield flag(
            group,
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
                yield flag(
                    group,
                    f"--decoder-{name}-pipeline-num-layers",
                    layers,
                    f"layers of the {name} stage",
                )
    if plan.rank_order == "tp-cp-ep-pp-dp":
        yield switch(group, "--use-tp-pp-dp-mapping", "stages next to each other, replicas apart")
    yield from _sharding(plan)


def _sharding(plan: ParallelPlan) -> Iterator[Flag]:
    group = "PARALLEL_ARGS"
    if plan.zero_stage >= 1:
        yield switch(group, "--use-distributed-optimizer", "optimizer states sharded (ZeRO 1)")
    if plan.zero_stage >= 2:
        yield switch(
            group, "--use-megatron-fsdp", f"shards more than states (ZeRO {plan.zero_stage})"
        )
        yield flag(
            group,
            "--data-parallel-sharding-strategy",
            SHARDING[plan.zero_stage],
            "what is sharded besides the states",
        )
        yield switch(group, "--no-gradient-accumulation-fusion", "its FSDP needs a newer TE for it")
        yield flag(group, "--ckpt-format", "fsdp_dtensor", "the only format of its FSDP")
    shard = plan.dp_shard or plan.dp * plan.cp
    if plan.zero_stage >= 1 and shard != plan.dp * plan.cp:
        yield flag(
            group,
            "--num-distributed-optimizer-instances",
            plan.dp * plan.cp // shard,
            f"states sharded over {shard} ranks, replicated beyond",
        )


def _batch(c: Context, plan: ParallelPlan) -> Iterator[Flag]:
    group, training = "BATCH_ARGS", c.training
    yield flag(group, "--micro-batch-size", plan.micro_batch_size, "sequences per pass and rank")
    yield flag(
        group,
        "--global-batch-size",
        training.global_batch_size,
        f"= micro batch {plan.micro_batch_size} x accumulation {accumulation(c, plan)} "
        f"x dp {plan.dp}",
    )
    yield train_iterations(group, training)


def _precision(training: TrainingSpec, plan: ParallelPlan) -> Iterator[Flag]:
    group = "PRECISION_ARGS"
    if training.precision == "fp16":
        yield switch(group, "--fp16", "half-precision weights, dynamic loss scale")
    else:
        yield switch(group, "--bf16", "bf16 weights")
    if training.precision == "fp8":
        yield flag(group, "--fp8-format", "hybrid", "E4M3 forward, E5M2 gradients")
        yield flag(group, "--fp8-recipe", training.fp8_recipe, FP8_RECIPES[training.fp8_recipe])
        if training.fp8_param_gather:
            yield switch(group, "--fp8-param-gather", "weights stored and gathered in fp8")
    if training.precision == "fp4":
        yield flag(group, "--fp4-format", "e2m1", "four-bit values in the linear layers")
        yield flag(group, "--fp4-recipe", "nvfp4", "a scale per 16 values")
    gradients = GRADIENTS[
        (training.precision, training.gradient_dtype, training.gradient_reduce_dtype)
    ]
    if gradients is not None:
        yield switch(group, gradients, f"gradients kept and reduced in {training.gradient_dtype}")


def _recompute(plan: ParallelPlan) -> Iterator[Flag]:
    group = "RECOMPUTE_ARGS"
    if plan.recompute == "none":
        return
    yield flag(group, "--recompute-granularity", plan.recompute, "activations computed again")
    if plan.recompute == "selective":
        yield flag(group, "--recompute-modules", plan.recompute_modules, "only in these modules")
        return
    per = "per model chunk" if plan.recompute_method == "block" else "per checkpoint"
    yield flag(group, "--recompute-method", plan.recompute_method, "which layers")
    yield flag(group, "--recompute-num-layers", plan.recompute_num_layers, f"layers {per}")


def _kernels(model: ModelSpec, plan: ParallelPlan) -> Iterator[Flag]:
    group = "KERNEL_ARGS"
    backend, why = plan.attention_kernel, "attention kernel"
    if backend == "flash" and (model.mla is not None or model.attention_sinks):
        backend_name, why = "fused", "cuDNN flash attention: it knows sinks and unequal head widths"
    elif backend == "flash2":
        backend_name, why = "flash", "attention kernel: flash-attention 2, no newer one installed"
    else:
        backend_name = backend
    yield flag(group, "--attention-backend", backend_name, why)
    if plan.cross_entropy != "unfused":
        yield switch(
            group,
            "--cross-entropy-loss-fusion",
            "compiled kernels, one reduction less; fp32 exponentials stay, 4 bytes per logit",
        )
        yield flag(group, "--cross-entropy-fusion-impl", "native", "te is disabled, as unstable")


def _overlap(plan: ParallelPlan) -> Iterator[Flag]:
    group = "OVERLAP_ARGS"
    if plan.overlap_grad_reduce:
        yield switch(group, "--overlap-grad-reduce", "gradients reduced during the backward pass")
    if plan.overlap_param_gather and plan.zero_stage >= 1:
        yield switch(group, "--overlap-param-gather", "weights gathered during the forward pass")
    if plan.overlap_ep:
        yield switch(
            group, "--overlap-moe-expert-parallel-comm", "exchanges under another micro-batch"
        )
    if plan.overlap_tp:
        yield switch(group, "--tp-comm-overlap", "tensor-parallel traffic behind GEMMs")
    if plan.vpp > 1 and not plan.overlap_p2p:
        yield switch(group, "--no-overlap-p2p-communication", "messages between stages block")


def _optimizer(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Iterator[Flag]:
    group = "OPTIMIZER_ARGS"
    yield flag(group, "--optimizer", training.optimizer, "as planned")
    yield learning_rate(group)
    small = training.optimizer_state_dtype != "fp32"
    if small or plan.offload_optimizer:
        yield switch(group, "--use-precision-aware-optimizer", "states in chosen types and places")
    if small:
        dtype = training.optimizer_state_dtype
        yield flag(group, "--exp-avg-dtype", dtype, "first moment")
        yield flag(group, "--exp-avg-sq-dtype", dtype, "second moment")
    if plan.offload_optimizer:
        yield switch(group, "--optimizer-cpu-offload", "states live in host memory")
        yield flag(group, "--optimizer-offload-fraction", "1.0", "all of them")
        yield switch(group, "--overlap-cpu-optimizer-d2h-h2d", "host copies behind the step")
    if plan.offload_activations:
        yield flag(
            group,
            "--cpu-offloading-num-layers",
            model.num_layers - 1,
            "layers whose activations wait in host memory: all but the last",
        )


def _data(model: ModelSpec, plan: ParallelPlan) -> Iterator[Flag]:
    group = "DATA_ARGS"
    padded = int(padded_vocab_size(model.vocab_size, plan.tp, VOCAB_MULTIPLE))
    yield switch(group, "--mock-data", "MOCK DATA: nothing to learn; to train, --data-path instead")
    yield flag(group, "--tokenizer-type", "NullTokenizer", "mock data needs no tokenizer")
    yield flag(group, "--vocab-size", model.vocab_size, "tokens of the vocabulary")
    yield flag(
        group,
        "--make-vocab-size-divisible-by",
        VOCAB_MULTIPLE,
        f"rows are padded to a multiple of {VOCAB_MULTIPLE} x tp {plan.tp}",
    )
    yield flag(group, "--padded-vocab-size", padded, "rows of the embedding, as planned")
    yield flag(group, "--eval-iters", 0, "no evaluation on mock data")
    yield flag(group, "--log-interval", 1, "iteration time on every step")
    yield switch(group, "--log-throughput", "TFLOP/s per accelerator")


def flags(request: PlanRequest, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Every argument of `pretrain_gpt.py`, grouped."""
    context = Context(request.model, request.cluster, request.training)
    model, training = request.model, request.training
    return (
        *_model(model, training, plan),
        *(_moe(model, model.moe, plan) if model.moe is not None else ()),
        *_parallel(model, plan),
        *_batch(context, plan),
        *_precision(training, plan),
        *_recompute(plan),
        *_kernels(model, plan),
        *_overlap(plan),
        *_optimizer(model, training, plan),
        *_data(model, plan),
    )
