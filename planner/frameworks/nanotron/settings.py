"""The keys of config.yaml, with reasons."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import Context
from planner.frameworks import rules
from planner.frameworks.yaml_files import Row

ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
NEVER = 1_000_000

NUMERICS = {"norm_epsilon": "rms_norm_eps", "rope_theta": "rope_theta", "activation": "hidden_act"}


def numerics_fields(model: ModelSpec) -> frozenset[str]:
    """Fields of the model's numerics that have a key."""
    unused = set() if model.position == "rope" else {"rope_theta"}
    return model.numerics.stated & {*NUMERICS, "init_std"} - unused


def _model(model: ModelSpec, training: TrainingSpec) -> Iterator[Row]:
    yield "hidden_size", model.hidden_size, "width of the residual stream"
    yield "intermediate_size", model.ffn_hidden_size, "width of the dense MLP"
    yield "num_hidden_layers", model.num_layers, "transformer layers"
    yield "num_attention_heads", model.num_attention_heads, "query heads"
    yield "num_key_value_heads", model.num_query_groups, "key/value heads"
    yield "vocab_size", model.vocab_size, "tokens of the vocabulary"
    yield "max_position_embeddings", training.seq_length, "the sequence length"
    yield "tie_word_embeddings", model.tied_embeddings, "output layer shares the embedding"
    yield "attention_bias", model.qkv_bias, "bias of the query/key/value projection"
    yield "sliding_window_size", model.sliding_window, "sliding window in tokens; null: none"
    for name in sorted(numerics_fields(model) - {"init_std"}):
        yield NUMERICS[name], getattr(model.numerics, name), "from the model's config.json"
    if model.position == "none":
        yield "no_rope_layer", 1, "no layer has RoPE"
    yield "is_qwen2_config", True, "the model class, which also builds Llama's layers"
    yield "_attn_implementation", "flash_attention_2", "always its packed kernel"
    yield "log_attn_probs", False, "no logging of score sums at every step"
    moe = model.moe
    if moe is None:
        return
    shared = moe.shared_expert_ffn_hidden_size
    layers = [i for i, kind in enumerate(model.feed_forwards) if kind == "moe"]
    yield "moe_config.num_experts", moe.num_experts, "experts of a layer"
    yield "moe_config.top_k", moe.top_k, "experts per token"
    yield "moe_config.moe_intermediate_size", moe.expert_ffn_hidden_size, "width of an expert"
    yield "moe_config.enable_shared_expert", shared > 0, "shared expert for all tokens"
    if shared:
        yield "moe_config.shared_expert_intermediate_size", shared, "width of the shared expert"
    yield "moe_config.layers", layers, "MoE layers, from 0"


def _parallelism(plan: ParallelPlan) -> Iterator[Row]:
    yield "dp", plan.dp, "data parallel ranks"
    yield "tp", plan.tp, "ranks that split every layer"
    yield "pp", plan.pp, "pipeline stages; layers are assigned by cost"
    yield "context_parallel_size", 1, "sequences are not split"
    yield "expert_parallel_size", 1, "every rank has all experts of its layers"
    engine = ENGINES[plan.schedule] if plan.pp > 1 else "1f1b"
    yield "pp_engine", engine, "1f1b; afab: all forward, then all backward, also on one stage"
    yield (
        "tp_mode",
        "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
        "REDUCE_SCATTER: norms split over tp (sequence parallelism)",
    )
    yield "tp_linear_async_communication", plan.overlap_tp, "tensor-parallel overlap with GEMMs"
    yield "tp_recompute_allgather", True, "inputs are gathered again, not kept"
    yield "recompute_layer", plan.recompute == "full", "full activation recompute"


def _optimizer(training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    yield "zero_stage", plan.zero_stage, "1: states sharded over dp"
    yield (
        "accumulate_grad_in_fp32",
        training.gradient_dtype == "fp32",
        "true: fp32 gradients, master weights and states; false: all bf16, no master copy",
    )
    if training.optimizer == "sgd":
        yield "optimizer_factory.name", "sgd", "as planned"
    else:
        yield "optimizer_factory.name", "adamW", "as planned"
        yield "optimizer_factory.adam_beta1", 0.9, "PLACEHOLDER"
        yield "optimizer_factory.adam_beta2", 0.95, "PLACEHOLDER"
        yield "optimizer_factory.adam_eps", 1.0e-8, "PLACEHOLDER"
        yield "optimizer_factory.torch_adam_is_fused", True, "fused optimizer kernel"
    yield "weight_decay", 0.01, "PLACEHOLDER"
    yield "clip_grad", 1.0, "PLACEHOLDER"
    yield "learning_rate_scheduler.learning_rate", rules.LEARNING_RATE, rules.PLACEHOLDER
    yield "learning_rate_scheduler.lr_warmup_steps", 2, "PLACEHOLDER"
    yield "learning_rate_scheduler.lr_warmup_style", "linear", "required key"
    yield "learning_rate_scheduler.lr_decay_style", "cosine", "PLACEHOLDER"
    yield "learning_rate_scheduler.min_decay_lr", 1.0e-5, "PLACEHOLDER"


def _under(section: str, rows: Iterator[Row]) -> Iterator[Row]:
    return ((f"{section}.{key}", value, why) for key, value, why in rows)


def rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """Every key of config.yaml."""
    model, training = c.model, c.training
    steps = rules.train_iterations("", training)
    yield from _under("parallelism", _parallelism(plan))
    yield "tokens.sequence_length", training.seq_length, "tokens of one sequence"
    yield "tokens.micro_batch_size", plan.micro_batch_size, "sequences per pass and rank"
    yield "tokens.batch_accumulation_per_replica", *rules.accumulated(c, plan)
    yield "tokens.train_steps", rules.SMOKE_ITERATIONS, steps.why
    yield from _under("model.model_config", _model(model, training))
    if model.moe is not None:
        key = "model.model_config.moe_config.token_dispatcher_type"
        yield key, plan.moe_dispatcher, "no effect: experts are not split"
    yield "model.dtype", "bfloat16", "type of weights and activations"
    std = model.numerics.init_std or 0.02
    yield "model.init_method.std", std, "standard deviation of the initial weights"
    yield "model.make_vocab_size_divisible_by", 1, "rows of the embedding are padded to this x tp"
    yield "model.ddp_bucket_cap_mb", 25, "MB per bucket of the gradient reduction"
    yield from _under("optimizer", _optimizer(training, plan))
    yield from _run()


def _run() -> Iterator[Row]:
    """Keys that the trainer needs but no plan determines."""
    yield "data_stages.0.name", "mock data", "one data stage from the first step"
    yield "data_stages.0.start_training_step", 1, "the first step"
    yield "data_stages.0.data.dataset", None, "MOCK DATA, random tokens: put your data set here"
    yield "data_stages.0.data.seed", 42, "seed of the random tokens"
    yield "general.project", "smoke-run", "name in the logs"
    yield "general.seed", 42, "seed of the initial weights"
    yield "logging.iteration_step_info_interval", 1, "iteration time on every step"
    yield "checkpoints.checkpoints_path", "checkpoints", "required key"
    yield "checkpoints.checkpoint_interval", NEVER, "a smoke run saves nothing"
    yield "checkpoints.save_initial_state", False, "a smoke run saves nothing"
    yield "checkpoints.save_final_state", False, "a smoke run saves nothing"
