"""Every option that a launch of Megatron-LM is given, in the order of the script.

Megatron-LM's options are those of `pretrain_gpt.py` and `pretrain_hybrid.py`.
"""

from __future__ import annotations

from typing import Any

from cost_models.spec import ModelSpec
from planner.frameworks.arguments import Arguments
from planner.frameworks.megatron.patterns import is_hybrid, position
from planner.frameworks.megatron_option_rows import (
    COUNT,
    NUMBER,
    OPTIONAL_COUNT,
    OPTIONAL_WHOLE,
    WHOLE_NUMBER,
    Option,
    Records,
    alone,
    always,
    computed,
    grouped,
    named,
    read,
    share,
    switch,
    whole,
)  # fmt: skip

CONFIG = "from the model's config.json"
# Transformers' name of x * sigmoid(1.702 x).
QUICK_GELU = "quick_gelu"
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
RANK_ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")


def _rotates_queries(records: Records) -> bool:
    """Whether the model rotates queries and keys."""
    return position(records["model"]) == "rope"


def is_quick(model: ModelSpec) -> bool:
    """Whether the gate is that of --quick-geglu, which has options for a limit and an offset."""
    return model.gated_mlp and model.numerics.activation == QUICK_GELU


def _half_precision(name: str, dtype: str) -> str:
    """Bridge's settings for weights of 16 bits."""
    kinds = (f"mixed_precision.{kind}_dtype=torch.{dtype}" for kind in ("params", "pipeline"))
    return "; ".join((f"mixed_precision.{name}=True", *kinds))


_MODEL = grouped(
    "MODEL_ARGS", "model",
    computed("--hybrid-layer-pattern",
        bridge="model.hybrid_layer_pattern; model.mtp_num_layers={slashes}"),
    computed("--spec", bridge=""),  # the provider's own
    alone("--mamba-num-heads", "mamba2.num_heads", whole(), "heads of a Mamba-2 layer"),
    alone("--mamba-head-dim", "mamba2.head_dim", whole(64), "width of a Mamba-2 head"),
    alone("--mamba-state-dim", "mamba2.state_size", whole(128), "state size of a head"),
    alone("--mamba-num-groups", "mamba2.num_groups", whole(8),
        "groups of heads that share B and C"),
    "--num-layers",
    alone("--hidden-size", "model.hidden_size", whole(), "width of the residual stream"),
    alone("--ffn-hidden-size", "model.ffn_hidden_size", whole(), "width of the dense MLP"),
    alone("--num-attention-heads", "model.num_attention_heads", whole(), "query heads"),
    alone("--kv-channels", "model.head_dim",
        whole(lambda read: max(read["hidden_size"] // read["num_attention_heads"], 1)),
        "width of one head"),
    computed("--group-query-attention", bridge=""),  # num_query_groups implies it
    "--num-query-groups",
    computed("--seq-length", bridge="model.seq_length; dataset.seq_length"),
    computed("--max-position-embeddings", bridge=""),  # its table has seq_length rows
    "--position-embedding-type",
    alone("--normalization", "model.norm", named(NORMS, "layernorm"), "norm of every layer"),
    alone("--swiglu", "model.gated_mlp", switch(), "gated MLP: two input projections",
        bridge="model.gated_linear_unit=True; model.activation_func=torch.nn.functional.silu",
        when=lambda records: not is_quick(records["model"])),
    computed("--quick-geglu",
        bridge="model.gated_linear_unit=True; model.activation_func=quick_gelu"),
    alone("--glu-linear-offset", "numerics.gate_offset", NUMBER, CONFIG,
        when=lambda records: is_quick(records["model"])),
    alone("--activation-func-clamp-value", "numerics.gate_limit", NUMBER, CONFIG,
        when=lambda records: is_quick(records["model"])),
    alone("--untie-embeddings-and-output-weights", "model.tied_embeddings", switch(True, False),
        "the output layer has its own weights",
        bridge="model.share_embeddings_and_output_weights=False"),
    computed("--disable-bias-linear", attribute="add_bias_linear", off=True),
    "--add-qkv-bias", "--qk-layernorm",
    alone("--hidden-dropout", "model.hidden_dropout", share(0.1), "dropout of the residual stream"),
    alone("--attention-dropout", "model.attention_dropout", share(0.1),
        "dropout of the attention scores"),
    "--softmax-type", "--multi-latent-attention",
    alone("--q-lora-rank", "mla.q_lora_rank", OPTIONAL_WHOLE, "latent width of queries"),
    alone("--kv-lora-rank", "mla.kv_lora_rank", whole(32), "latent width of keys and values"),
    alone("--qk-head-dim", "mla.qk_nope_head_dim", whole(128), "head width without RoPE"),
    alone("--qk-pos-emb-head-dim", "mla.qk_rope_head_dim", whole(64), "head width with RoPE"),
    alone("--v-head-dim", "mla.v_head_dim", whole(128), "head width of values"),
    computed("--window-size", numbers=True, bridge="model.window_size=({})"),
    computed("--window-attn-skip-freq", numbers=True),
    computed("--no-rope-freq", numbers=True),
    "--attention-output-gate", "--experimental-attention-variant",
    alone("--dsa-indexer-n-heads", "indexer.num_heads", whole(64), "heads of the indexer"),
    alone("--dsa-indexer-head-dim", "indexer.head_dim", whole(128), "width of an indexer head"),
    alone("--dsa-indexer-topk", "indexer.top_k", whole(2048), "keys per query"),
    computed("--no-rope-fusion", attribute="apply_rope_fusion"),
    computed("--linear-attention-freq", numbers=True),
    alone("--linear-conv-kernel-dim", "delta_net.convolution", whole(4),
        "taps of the short convolution"),
    alone("--linear-key-head-dim", "delta_net.key_head_dim", whole(128), "width of a key"),
    alone("--linear-value-head-dim", "delta_net.value_head_dim", whole(128), "width of a value"),
    alone("--linear-num-key-heads", "delta_net.num_key_heads", whole(16),
        "heads of queries and keys"),
    alone("--linear-num-value-heads", "delta_net.num_value_heads", whole(32), "heads of values"),
    alone("--moe-latent-size", "moe.latent_size", OPTIONAL_COUNT, "latent width of routed experts"),
    alone("--mtp-num-layers", "model.mtp_num_layers", COUNT, "multi-token prediction layers",
        when=lambda records: not is_hybrid(records["model"])),
    alone("--norm-epsilon", "numerics.norm_epsilon", NUMBER, CONFIG, attribute="layernorm_epsilon"),
    alone("--init-method-std", "numerics.init_std", NUMBER, CONFIG),
    computed("--squared-relu", bridge="model.activation_func=squared_relu"),
    computed("--no-bias-gelu-fusion", bridge="model.bias_activation_fusion=False"),
    alone("--moe-router-topk-scaling-factor", "numerics.routed_scaling", NUMBER, CONFIG,
        when=lambda records: records["moe"] and records["moe"].score_correction_bias),
    alone("--rotary-base", "numerics.rope_theta", WHOLE_NUMBER, CONFIG, when=_rotates_queries),
    alone("--rotary-percent", "numerics.rotary_share", NUMBER, CONFIG,
        when=lambda records: _rotates_queries(records) and records["mla"] is None),
    computed("--use-rope-scaling", bridge="model.rope_scaling=True"),
    "--rope-scaling-factor", "--rotary-scaling-factor", "--mscale", "--mscale-all-dim",
)  # fmt: skip
_MOE = grouped(
    "MOE_ARGS", "model",
    alone("--num-experts", "moe.num_experts", whole(), "routed experts per layer",
        bridge="model.num_moe_experts"),
    alone("--moe-ffn-hidden-size", "moe.expert_ffn_hidden_size", whole(), "width of one expert"),
    alone("--moe-router-topk", "moe.top_k", whole(2), "experts per token"),
    computed("--moe-layer-freq", numbers=True),
    alone("--moe-shared-expert-intermediate-size", "moe.shared_expert_ffn_hidden_size", COUNT,
        "width of all shared experts together"),
    alone("--moe-shared-expert-gate", "moe.shared_expert_gate", switch(),
        "a gate scales the shared experts",
        when=lambda records: records["moe"].shared_expert_ffn_hidden_size),
    alone("--moe-router-num-groups", "moe.num_groups", OPTIONAL_COUNT, "groups of experts"),
    alone("--moe-router-group-topk", "moe.top_k_groups", OPTIONAL_COUNT, "expert groups per token"),
    "--moe-router-score-function",
    alone("--moe-router-enable-expert-bias", "moe.score_correction_bias", switch(),
        "load balancing without an auxiliary loss"),
    "--moe-router-pre-softmax",
    alone("--moe-expert-capacity-factor", "moe.capacity_factor", NUMBER,
        "tokens above the capacity are dropped"),
    always("--moe-grouped-gemm", "moe", True, "all experts of a rank in one kernel"),
    always("--moe-router-dtype", "moe", "fp32", "stable routing; required by DeepEP"),
    computed("--moe-token-dispatcher-type", "moe_dispatcher"),
    computed("--moe-flex-dispatcher-backend", "moe_dispatcher"),
    alone("--expert-model-parallel-size", "expert_plan.ep", whole(),
        "ranks that divide the experts"),
    alone("--expert-tensor-parallel-size", "plan.etp", whole(lambda read: read["tp"]),
        "ranks that split each expert", when=lambda records: records["moe"] is not None),
    computed("--no-bias-dropout-fusion", bridge="model.bias_dropout_fusion=False"),
)  # fmt: skip
_PARALLEL = grouped(
    "PARALLEL_ARGS", "model",
    alone("--tensor-model-parallel-size", "plan.tp", whole(), "ranks that split every layer"),
    alone("--pipeline-model-parallel-size", "plan.pp", whole(), "pipeline stages"),
    alone("--context-parallel-size", "plan.cp", whole(), "ranks that split the sequence"),
    alone("--sequence-parallel", "plan.sequence_parallel", switch(),
        "sequence split over tp in norms and dropout"),
    computed("--cp-comm-type", "cp_kind", bridge="model.cp_comm_type"),
    computed("--num-virtual-stages-per-pipeline-rank", "vpp", "schedule"),
    computed("--decoder-first-pipeline-num-layers", "first_stage_layers"),
    computed("--decoder-last-pipeline-num-layers", "last_stage_layers"),
    computed("--pipeline-model-parallel-layout", "vpp", "first_stage_layers", "last_stage_layers",
        "stage_layers"),
    alone("--use-tp-pp-dp-mapping", "plan.rank_order", switch(*RANK_ORDERS),
        "rank order: pipeline inside data parallelism", bridge="dist.use_tp_pp_dp_mapping=True"),
    computed("--hybrid-context-parallel", "dynamic_cp", bridge=""),
    computed("--max-seqlen-per-dp-cp-rank", "dynamic_cp", bridge=""),
    computed("--calculate-per-token-loss", bridge=""),
    computed("--dataloader-type", bridge=""),
    computed("--use-distributed-optimizer", "zero_stage",
        bridge="ddp.use_distributed_optimizer=True; optimizer.use_distributed_optimizer=True"),
    computed("--use-megatron-fsdp", "zero_stage",
        bridge="ddp.use_megatron_fsdp=True; dist.use_megatron_fsdp=True"),
    computed("--data-parallel-sharding-strategy", "zero_stage",
        bridge="ddp.data_parallel_sharding_strategy"),
    "--no-gradient-accumulation-fusion",
    computed("--ckpt-format", bridge="checkpoint.ckpt_format"),
    computed("--num-distributed-optimizer-instances", "dp_shard",
        bridge="ddp.num_distributed_optimizer_instances"),
)  # fmt: skip
_BATCH = grouped(
    "BATCH_ARGS", "train",
    alone("--micro-batch-size", "plan.micro_batch_size", whole(), "sequences per pass and rank"),
    computed("--global-batch-size", "micro_batch_size"),
    computed("--train-iters", bridge='train.train_iters=int(os.environ.get("TRAIN_ITERS") or {})'),
)  # fmt: skip
_PRECISION = grouped(
    "PRECISION_ARGS", "mixed_precision",
    computed("--fp16", bridge=_half_precision("fp16", "float16")),
    computed("--bf16", bridge=_half_precision("bf16", "bfloat16")),
    computed("--fp8-format", attribute="fp8"),
    "--fp8-recipe", "--fp8-param-gather",
    computed("--fp4-format", attribute="fp4"),
    "--fp4-recipe", "--accumulate-allreduce-grads-in-fp32",
    computed("--grad-reduce-in-bf16", bridge="mixed_precision.grad_reduce_in_fp32=False"),
)  # fmt: skip
_RECOMPUTE = grouped(
    "RECOMPUTE_ARGS", "model",
    computed("--recompute-granularity", "recompute"),
    computed("--recompute-modules", "recompute_modules", bridge="model.recompute_modules={list}"),
    computed("--recompute-method", "recompute_method"),
    computed("--recompute-num-layers", "recompute_num_layers"),
)  # fmt: skip
_KERNELS = grouped(
    "KERNEL_ARGS", "model",
    computed("--attention-backend", "attention_kernel",
        bridge="model.attention_backend=AttnBackend.{}"),
    computed("--cross-entropy-loss-fusion", "cross_entropy"),
    computed("--cross-entropy-fusion-impl", "cross_entropy"),
)  # fmt: skip
_OVERLAP = grouped(
    "OVERLAP_ARGS", "comm_overlap",
    alone("--overlap-grad-reduce", "plan.overlap_grad_reduce", switch(),
        "gradients reduced during the backward pass",
        bridge="ddp.overlap_grad_reduce=True; comm_overlap.overlap_grad_reduce=True"),
    alone("--overlap-param-gather", "plan.overlap_param_gather", switch(),
        "weights gathered during the forward pass",
        bridge="ddp.overlap_param_gather=True; comm_overlap.overlap_param_gather=True",
        when=lambda records: records["plan"].zero_stage),
    alone("--overlap-moe-expert-parallel-comm", "plan.overlap_ep", switch(),
        "overlap with another micro-batch"),
    alone("--tp-comm-overlap", "plan.overlap_tp", switch(),
        "tensor-parallel traffic overlapped with GEMMs"),
    alone("--no-overlap-p2p-communication", "plan.overlap_p2p", switch(True, False),
        "blocking messages between stages", attribute="overlap_p2p_comm",
        bridge="comm_overlap.overlap_p2p_comm=False; comm_overlap.batch_p2p_comm=True",
        when=lambda records: records["plan"].vpp > 1),
)  # fmt: skip
_OPTIMIZER = grouped(
    "OPTIMIZER_ARGS", "optimizer",
    "--optimizer", "--muon-tp-mode", "--lr", "--use-precision-aware-optimizer",
    computed("--exp-avg-dtype", bridge="optimizer.exp_avg_dtype={dtype}"),
    computed("--exp-avg-sq-dtype", bridge="optimizer.exp_avg_sq_dtype={dtype}"),
    computed("--optimizer-cpu-offload", "offload_optimizer"),
    computed("--optimizer-offload-fraction", "offload_optimizer"),
    "--overlap-cpu-optimizer-d2h-h2d",
    computed("--cpu-offloading-num-layers", "offload_activations", "offload_num_layers",
        bridge="model.cpu_offloading=True; model.cpu_offloading_num_layers={}"),
)  # fmt: skip
_DATA = grouped(
    "DATA_ARGS", "tokenizer",
    computed("--sft", bridge=""),
    computed("--data-path", bridge=""),
    computed("--mock-data", bridge=""),  # the data set's class
    "--tokenizer-type",
    computed("--tokenizer-model", bridge=""),
    "--vocab-size",
    computed("--make-vocab-size-divisible-by", bridge=""),  # it is given the padded size
    computed("--padded-vocab-size", bridge="model.vocab_size"),
    computed("--eval-iters", bridge="validation.eval_iters"),
)  # fmt: skip
_LOG = grouped(
    "DATA_ARGS", "logger",
    always("--log-interval", "plan", 1, "log of every iteration's time"),
    always("--log-throughput", "plan", True, "log of TFLOP/s per accelerator"),
)  # fmt: skip
_GROUPS = (
    _MODEL, _MOE, _PARALLEL, _BATCH, _PRECISION, _RECOMPUTE, _KERNELS, _OVERLAP, _OPTIMIZER, _DATA,
    _LOG,
)  # fmt: skip
OPTIONS: dict[str, Option] = {row.name: row for rows in _GROUPS for row in rows}
# Field of a plan -> the options that say it, alone or together.
PLAN_FIELDS = {
    field: tuple(row.name for row in OPTIONS.values() if field in row.fields_of_plan)
    for one in OPTIONS.values()
    for field in one.fields_of_plan
}


def fields(args: Arguments, record: str, **usual: Any) -> dict[str, Any]:
    """The fields of a record that are said by one option each.

    usual: fields without their options, in place of those of the rows.
    """
    return read(OPTIONS.values(), args, record, **usual)
