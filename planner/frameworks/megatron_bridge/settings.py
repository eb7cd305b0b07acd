"""The settings of a Megatron-Bridge `ConfigContainer`, from the arguments of `pretrain_gpt.py`.

Bridge configures the same Megatron-Core, so each argument is translated to the attribute that
Megatron-LM's parser sets from it.  A setting is a Flag whose name is `section.attribute` and whose
value is Python source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Set

import numpy as np

from cost_models.data_parallel import bucket_parameters
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.documents.request import PlanRequest
from planner.frameworks.base import Flag
from planner.frameworks.megatron import patterns
from planner.frameworks.megatron.flags import flags
from planner.frameworks.megatron.model_rules import bias_kind
from planner.frameworks.megatron_bridge.peft import tuning_settings

# (setting, Python source of its value)
Said = tuple[str, str]
Words = tuple[str, ...]

DTYPES = {
    "fp32": "torch.float32",
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp8": "torch.uint8",
}


def _literal(text: str) -> str:
    """An argument's text as Python source of a number or a string."""
    try:
        float(text)
    except ValueError:
        return json.dumps(text)
    return text


def _value(*names: str) -> Callable[[Words], Iterator[Said]]:
    """A translation to settings of these names with the argument's value."""

    def said(words: Words) -> Iterator[Said]:
        for name in names:
            yield name, _literal(words[0])

    return said


def _source(*settings: str) -> Callable[[Words], Iterator[Said]]:
    """A translation to settings `name=source`; `{}` in the source is the argument's text."""

    def said(words: Words) -> Iterator[Said]:
        for setting in settings:
            name, _, source = setting.partition("=")
            yield name, source.replace("{}", ", ".join(words))

    return said


def _dtype(name: str) -> Callable[[Words], Iterator[Said]]:
    def said(words: Words) -> Iterator[Said]:
        yield name, DTYPES[words[0]]

    return said


def _names(name: str) -> Callable[[Words], Iterator[Said]]:
    def said(words: Words) -> Iterator[Said]:
        yield name, json.dumps(list(words))

    return said


def _pattern(words: Words) -> Iterator[Said]:
    """The layer pattern of a hybrid model, and its number of prediction layers."""
    yield "model.hybrid_layer_pattern", json.dumps(words[0])
    yield "model.mtp_num_layers", str(words[0].count("/"))


_NOTHING = _source()
# Every argument that the Megatron-LM writer can give.
TRANSLATION: dict[str, Callable[[Words], Iterator[Said]]] = {
    "--num-layers": _value("model.num_layers"),
    "--hidden-size": _value("model.hidden_size"),
    "--ffn-hidden-size": _value("model.ffn_hidden_size"),
    "--num-attention-heads": _value("model.num_attention_heads"),
    "--kv-channels": _value("model.kv_channels"),
    "--group-query-attention": _NOTHING,  # num_query_groups implies it
    "--num-query-groups": _value("model.num_query_groups"),
    "--seq-length": _value("model.seq_length", "dataset.seq_length"),
    "--max-position-embeddings": _NOTHING,  # the table has seq_length rows
    "--position-embedding-type": _value("model.position_embedding_type"),
    "--normalization": _value("model.normalization"),
    "--norm-epsilon": _value("model.layernorm_epsilon"),
    "--init-method-std": _value("model.init_method_std"),
    "--rotary-base": _value("model.rotary_base"),
    "--rotary-percent": _value("model.rotary_percent"),
    "--use-rope-scaling": _source("model.rope_scaling=True"),
    "--rope-scaling-factor": _value("model.rope_scaling_factor"),
    "--rotary-scaling-factor": _value("model.rotary_scaling_factor"),
    "--mscale": _value("model.mscale"),
    "--mscale-all-dim": _value("model.mscale_all_dim"),
    "--squared-relu": _source("model.activation_func=squared_relu"),
    "--no-bias-gelu-fusion": _source("model.bias_activation_fusion=False"),
    "--moe-router-topk-scaling-factor": _value("model.moe_router_topk_scaling_factor"),
    "--swiglu": _source(
        "model.gated_linear_unit=True", "model.activation_func=torch.nn.functional.silu"
    ),
    "--untie-embeddings-and-output-weights": _source(
        "model.share_embeddings_and_output_weights=False"
    ),
    "--disable-bias-linear": _source("model.add_bias_linear=False"),
    "--add-qkv-bias": _source("model.add_qkv_bias=True"),
    "--qk-layernorm": _source("model.qk_layernorm=True"),
    "--hidden-dropout": _value("model.hidden_dropout"),
    "--attention-dropout": _value("model.attention_dropout"),
    "--softmax-type": _value("model.softmax_type"),
    "--window-size": _source("model.window_size=({})"),
    "--window-attn-skip-freq": _source("model.window_attn_skip_freq={}"),
    "--multi-latent-attention": _source("model.multi_latent_attention=True"),
    "--q-lora-rank": _value("model.q_lora_rank"),
    "--kv-lora-rank": _value("model.kv_lora_rank"),
    "--qk-head-dim": _value("model.qk_head_dim"),
    "--qk-pos-emb-head-dim": _value("model.qk_pos_emb_head_dim"),
    "--v-head-dim": _value("model.v_head_dim"),
    "--mtp-num-layers": _value("model.mtp_num_layers"),
    "--hybrid-layer-pattern": _pattern,
    "--spec": _NOTHING,  # the provider's own
    "--mamba-num-heads": _value("model.mamba_num_heads"),
    "--mamba-head-dim": _value("model.mamba_head_dim"),
    "--mamba-state-dim": _value("model.mamba_state_dim"),
    "--mamba-num-groups": _value("model.mamba_num_groups"),
    "--no-rope-freq": _source("model.no_rope_freq={}"),
    "--attention-output-gate": _source("model.attention_output_gate=True"),
    "--experimental-attention-variant": _value("model.experimental_attention_variant"),
    "--linear-attention-freq": _source("model.linear_attention_freq={}"),
    "--linear-conv-kernel-dim": _value("model.linear_conv_kernel_dim"),
    "--linear-key-head-dim": _value("model.linear_key_head_dim"),
    "--linear-value-head-dim": _value("model.linear_value_head_dim"),
    "--linear-num-key-heads": _value("model.linear_num_key_heads"),
    "--linear-num-value-heads": _value("model.linear_num_value_heads"),
    "--dsa-indexer-n-heads": _value("model.dsa_indexer_n_heads"),
    "--dsa-indexer-head-dim": _value("model.dsa_indexer_head_dim"),
    "--dsa-indexer-topk": _value("model.dsa_indexer_topk"),
    "--no-rope-fusion": _source("model.apply_rope_fusion=False"),
    "--moe-latent-size": _value("model.moe_latent_size"),
    "--num-experts": _value("model.num_moe_experts"),
    "--moe-ffn-hidden-size": _value("model.moe_ffn_hidden_size"),
    "--moe-router-topk": _value("model.moe_router_topk"),
    "--moe-layer-freq": _source("model.moe_layer_freq={}"),
    "--moe-shared-expert-intermediate-size": _value("model.moe_shared_expert_intermediate_size"),
    "--moe-shared-expert-gate": _source("model.moe_shared_expert_gate=True"),
    "--moe-router-num-groups": _value("model.moe_router_num_groups"),
    "--moe-router-group-topk": _value("model.moe_router_group_topk"),
    "--moe-router-score-function": _value("model.moe_router_score_function"),
    "--moe-router-enable-expert-bias": _source("model.moe_router_enable_expert_bias=True"),
    "--moe-router-pre-softmax": _source("model.moe_router_pre_softmax=True"),
    "--moe-expert-capacity-factor": _value("model.moe_expert_capacity_factor"),
    "--moe-grouped-gemm": _source("model.moe_grouped_gemm=True"),
    "--moe-router-dtype": _value("model.moe_router_dtype"),
    "--moe-token-dispatcher-type": _value("model.moe_token_dispatcher_type"),
    "--moe-flex-dispatcher-backend": _value("model.moe_flex_dispatcher_backend"),
    "--expert-model-parallel-size": _value("model.expert_model_parallel_size"),
    "--expert-tensor-parallel-size": _value("model.expert_tensor_parallel_size"),
    "--no-bias-dropout-fusion": _source("model.bias_dropout_fusion=False"),
    "--tensor-model-parallel-size": _value("model.tensor_model_parallel_size"),
    "--pipeline-model-parallel-size": _value("model.pipeline_model_parallel_size"),
    "--context-parallel-size": _value("model.context_parallel_size"),
    "--sequence-parallel": _source("model.sequence_parallel=True"),
    "--cp-comm-type": _value("model.cp_comm_type"),
    "--pipeline-model-parallel-layout": _value("model.pipeline_model_parallel_layout"),
    "--num-virtual-stages-per-pipeline-rank": _value("model.virtual_pipeline_model_parallel_size"),
    "--decoder-first-pipeline-num-layers": _value("model.num_layers_in_first_pipeline_stage"),
    "--decoder-last-pipeline-num-layers": _value("model.num_layers_in_last_pipeline_stage"),
    "--use-tp-pp-dp-mapping": _source("dist.use_tp_pp_dp_mapping=True"),
    "--use-distributed-optimizer": _source(
        "ddp.use_distributed_optimizer=True", "optimizer.use_distributed_optimizer=True"
    ),
    "--use-megatron-fsdp": _source("ddp.use_megatron_fsdp=True", "dist.use_megatron_fsdp=True"),
    "--data-parallel-sharding-strategy": _value("ddp.data_parallel_sharding_strategy"),
    "--no-gradient-accumulation-fusion": _source("model.gradient_accumulation_fusion=False"),
    "--ckpt-format": _value("checkpoint.ckpt_format"),
    "--num-distributed-optimizer-instances": _value("ddp.num_distributed_optimizer_instances"),
    "--micro-batch-size": _value("train.micro_batch_size"),
    "--global-batch-size": _value("train.global_batch_size"),
    "--train-iters": _source('train.train_iters=int(os.environ.get("TRAIN_ITERS") or {})'),
    "--bf16": _source(
        "mixed_precision.bf16=True",
        "mixed_precision.params_dtype=torch.bfloat16",
        "mixed_precision.pipeline_dtype=torch.bfloat16",
    ),
    "--fp16": _source(
        "mixed_precision.fp16=True",
        "mixed_precision.params_dtype=torch.float16",
        "mixed_precision.pipeline_dtype=torch.float16",
    ),
    "--fp8-format": _value("mixed_precision.fp8"),
    "--fp8-recipe": _value("mixed_precision.fp8_recipe"),
    "--fp8-param-gather": _source("mixed_precision.fp8_param_gather=True"),
    "--fp4-format": _value("mixed_precision.fp4"),
    "--fp4-recipe": _value("mixed_precision.fp4_recipe"),
    "--accumulate-allreduce-grads-in-fp32": _source("mixed_precision.grad_reduce_in_fp32=True"),
    "--grad-reduce-in-bf16": _source("mixed_precision.grad_reduce_in_fp32=False"),
    "--recompute-granularity": _value("model.recompute_granularity"),
    "--recompute-modules": _names("model.recompute_modules"),
    "--recompute-method": _value("model.recompute_method"),
    "--recompute-num-layers": _value("model.recompute_num_layers"),
    "--attention-backend": _source("model.attention_backend=AttnBackend.{}"),
    "--cross-entropy-loss-fusion": _source("model.cross_entropy_loss_fusion=True"),
    "--cross-entropy-fusion-impl": _value("model.cross_entropy_fusion_impl"),
    "--overlap-grad-reduce": _source(
        "ddp.overlap_grad_reduce=True", "comm_overlap.overlap_grad_reduce=True"
    ),
    "--overlap-param-gather": _source(
        "ddp.overlap_param_gather=True", "comm_overlap.overlap_param_gather=True"
    ),
    "--overlap-moe-expert-parallel-comm": _source(
        "comm_overlap.overlap_moe_expert_parallel_comm=True"
    ),
    "--tp-comm-overlap": _source("comm_overlap.tp_comm_overlap=True"),
    "--no-overlap-p2p-communication": _source(
        "comm_overlap.overlap_p2p_comm=False", "comm_overlap.batch_p2p_comm=True"
    ),
    "--optimizer": _value("optimizer.optimizer"),
    "--muon-tp-mode": _value("optimizer.muon_tp_mode"),
    "--lr": _value("optimizer.lr"),
    "--use-precision-aware-optimizer": _source("optimizer.use_precision_aware_optimizer=True"),
    "--exp-avg-dtype": _dtype("optimizer.exp_avg_dtype"),
    "--exp-avg-sq-dtype": _dtype("optimizer.exp_avg_sq_dtype"),
    "--optimizer-cpu-offload": _source("optimizer.optimizer_cpu_offload=True"),
    "--optimizer-offload-fraction": _value("optimizer.optimizer_offload_fraction"),
    "--overlap-cpu-optimizer-d2h-h2d": _source("optimizer.overlap_cpu_optimizer_d2h_h2d=True"),
    "--cpu-offloading-num-layers": _source(
        "model.cpu_offloading=True", "model.cpu_offloading_num_layers={}"
    ),
    "--mock-data": _NOTHING,  # the data set's class
    "--tokenizer-type": _value("tokenizer.tokenizer_type"),
    "--vocab-size": _value("tokenizer.vocab_size"),
    "--make-vocab-size-divisible-by": _NOTHING,  # the model is given the padded size
    "--padded-vocab-size": _value("model.vocab_size"),
    "--eval-iters": _value("validation.eval_iters"),
    "--log-interval": _value("logger.log_interval"),
    "--log-throughput": _source("logger.log_throughput=True"),
}


VARIANT = "--experimental-attention-variant"
EXPERIMENTAL_LAYERS = "variants.get_transformer_block_with_experimental_attention_variant_spec"


def _other_defaults(
    model: ModelSpec, plan: ParallelPlan, options: Set[str]
) -> Iterator[tuple[str, str, str]]:
    """(setting, source, why) for which Bridge's default is not that of Megatron-LM's parser.

    options: the given options of Megatron-LM.
    """
    if VARIANT in options:
        yield "model.transformer_layer_spec", EXPERIMENTAL_LAYERS, "linear or sparse attention"
    elif not patterns.is_hybrid(model) and (model.moe is not None or model.mla is not None):
        yield (
            "model.transformer_layer_spec",
            "partial(get_gpt_decoder_block_spec, use_transformer_engine=True)",
            "mixed kinds of layers, or latent attention",
        )
    if model.position == "rope":
        yield "model.apply_rope_fusion", "True", "RoPE in one kernel"
    fused = model.gated_mlp or bias_kind(model) == "all"
    why = "bias and activation in one kernel" if fused else "GELU without a bias has no such kernel"
    yield "model.bias_activation_fusion", str(fused), why
    yield "model.bias_dropout_fusion", "True", "bias, dropout and residual in one kernel"
    yield "model.persist_layer_norm", "True", "persistent layer norm kernel"
    yield "model.masked_softmax_fusion", "True", "unfused attention: mask and softmax in one kernel"
    yield "model.attention_softmax_in_fp32", "False", "unfused attention: scores keep their dtype"
    yield "model.deallocate_pipeline_outputs", "True", "activations freed after they are sent"
    yield (
        "model.cross_entropy_loss_fusion",
        "False",
        "unfused loss on an fp32 copy of the logits",
    )
    if plan.vpp > 1:
        yield "model.virtual_pipeline_model_parallel_size", str(plan.vpp), "chunks per stage"
    yield "optimizer.use_distributed_optimizer", "False", "optimizer states are not sharded"
    yield "ddp.use_distributed_optimizer", "False", "optimizer states are not sharded"
    yield "ddp.check_for_nan_in_grad", "True", "stops if gradients are NaN"
    for section in ("ddp", "comm_overlap"):
        yield f"{section}.overlap_grad_reduce", "False", "gradients reduced after the backward pass"
        yield f"{section}.overlap_param_gather", "False", "weights gathered before the forward pass"
    bucket = int(bucket_parameters(np.float64(plan.dp * plan.cp)))
    yield "comm_overlap.bucket_size", str(bucket), "parameters per gradient bucket, as planned"
    yield "comm_overlap.tp_comm_overlap", "False", "blocking tensor-parallel traffic"
    yield "mixed_precision.grad_reduce_in_fp32", "False", "gradients reduced in weight dtype"
    yield "optimizer.min_lr", "0.0", "PLACEHOLDER for the smoke run: set your own"
    for end in ("start", "end"):
        yield (
            f"scheduler.{end}_weight_decay",
            "0.01",
            "PLACEHOLDER for the smoke run: set your own",
        )
    for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
        yield f"dataset.{name}", "False", "plain causal attention over the whole sequence"
    yield "dataset.random_seed", "1234", "seed of the mock data"
    yield "dataset.dataloader_type", '"single"', "one pass over the samples, in order"
    yield "rng.seed", "1234", "seed of weights and dropout"


def _after(plan: ParallelPlan, recipe: str) -> Iterator[tuple[str, str, str]]:
    """(setting, source, why) that other settings require in Bridge, or that only Bridge allows."""
    if recipe == "mxfp8" and plan.zero_stage == 1:
        yield (
            "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",
            "True",
            "required by Bridge if mxfp8 weights are gathered",
        )
    if plan.cross_entropy == "in_place":
        why = "Transformer Engine's, which writes gradients over the logits"
        yield "model.cross_entropy_fusion_impl", '"te"', why


def settings(request: PlanRequest, plan: ParallelPlan) -> dict[str, Flag]:
    """Every setting by name, each with its why."""
    found: dict[str, Flag] = {}

    def say(name: str, source: str, why: str) -> None:
        found[name] = Flag(name=name, value=source, why=why, group=name.partition(".")[0])

    options = flags(request, plan)
    for name, source, why in _other_defaults(request.model, plan, {one.name for one in options}):
        say(name, source, why)
    for one in options:
        for name, source in TRANSLATION[one.name](one.words[1:]):
            say(name, source, one.why)
    for name, source, why in tuning_settings(request.training):
        say(name, source, why)
    gathered = request.training.precision == "fp8" and request.training.fp8_param_gather
    for name, source, why in _after(plan, request.training.fp8_recipe if gathered else ""):
        say(name, source, why)
    return found
