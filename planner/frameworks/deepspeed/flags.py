"""Keys of the JSON and arguments of Megatron-DeepSpeed's `pretrain_gpt.py`, with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import Context
from planner.frameworks.base import Flag, Row, in_group
from planner.frameworks.rules import PLACEHOLDER, accumulation, learning_rate, train_iterations
from planner.frameworks.unwritten_facts import written

VOCAB_MULTIPLE = 128
NUMERICS = {
    "norm_epsilon": "--layernorm-epsilon",
    "init_std": "--init-method-std",
    "rope_theta": "--rotary-position-embeddings-theta",
    "rotary_share": "--rotary-percent",
}
POSITIONS = {
    "rope": ("--use-rotary-position-embeddings", "rotary positions"),
    "none": ("--no-position-embedding", "no positions"),
    "learned": None,
}


def config(c: Context, plan: ParallelPlan) -> Iterator[tuple[str, Any, str]]:
    """Rows of the JSON: dotted key, value, reason."""
    training = c.training
    identity = (
        f"train batch {training.global_batch_size} = micro batch {plan.micro_batch_size} x "
        f"accumulation {accumulation(c, plan)} x dp {plan.dp}"
    )
    yield "train_batch_size", training.global_batch_size, identity
    yield "train_micro_batch_size_per_gpu", plan.micro_batch_size, "sequences per pass and rank"
    yield "gradient_accumulation_steps", accumulation(c, plan), "micro-batches per iteration"
    yield "gradient_clipping", 1.0, PLACEHOLDER
    yield "steps_per_print", 1, "iteration time on every step"
    yield f"{training.precision}.enabled", True, "type of weights and activations"
    yield "data_types.grad_accum_dtype", training.gradient_dtype, "gradient accumulation type"
    yield "communication_data_type", training.gradient_reduce_dtype, "gradient reduction type"
    yield "zero_optimization.stage", plan.zero_stage, "1: states, 2: + gradients, 3: + weights"
    if plan.zero_stage:
        yield (
            "zero_optimization.overlap_comm",
            plan.overlap_grad_reduce,
            "overlap with the backward pass",
        )
    if plan.offload_optimizer:
        yield "zero_optimization.offload_optimizer.device", "cpu", "optimizer states in host memory"
        yield "zero_optimization.offload_optimizer.pin_memory", True, "pinned host memory"
    if training.optimizer == "sgd" and plan.zero_stage:
        yield "zero_allow_untested_optimizer", True, "SGD is untested with ZeRO"


def numerics_fields(model: ModelSpec) -> frozenset[str]:
    """Fields of the model's numerics that have an option; a rotary base only if it is whole."""
    return written(model, NUMERICS, ("rope_theta", "rotary_share"))


def nested(pairs: dict[str, Any]) -> dict[str, Any]:
    """A document from dotted keys."""
    document: dict[str, Any] = {}
    for path, value in pairs.items():
        *parents, last = path.split(".")
        node = document
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return document


@in_group("MODEL_ARGS")
def _model(model: ModelSpec, training: TrainingSpec) -> Iterator[Row]:
    positions = max(training.seq_length, model.max_position_embeddings or 0)
    yield "--num-layers", model.num_layers, "transformer layers"
    yield "--hidden-size", model.hidden_size, "width of the residual stream"
    yield "--ffn-hidden-size", model.ffn_hidden_size, "width of the MLP"
    yield "--num-attention-heads", model.num_attention_heads, "query heads"
    yield "--num-key-value-heads", model.num_query_groups, "key/value heads"
    yield "--kv-channels", model.head_dim, "width of one head"
    yield "--seq-length", training.seq_length, "tokens of one sequence"
    yield "--max-position-embeddings", positions, "at least the sequence length"
    position = POSITIONS[model.position]
    if position is not None:
        yield position
    yield "--normalization", model.norm, "norm of every layer"
    if model.gated_mlp:
        yield "--swiglu", "gated MLP: two input projections"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights", "the output layer has its own weights"
    if not model.mlp_bias:
        yield "--disable-bias-linear", "linear layers have no bias"
    yield "--hidden-dropout", model.hidden_dropout, "dropout of the residual stream"
    yield "--attention-dropout", model.attention_dropout, "dropout of the attention scores"
    yield "--no-query-key-layer-scaling", "scores are scaled only by the head width"
    for name in sorted(numerics_fields(model)):
        value = getattr(model.numerics, name)
        whole = name == "rope_theta"
        yield NUMERICS[name], int(value) if whole else value, "from the model's config.json"


@in_group("PARALLEL_ARGS")
def _parallel(plan: ParallelPlan) -> Iterator[Row]:
    yield "--tensor-model-parallel-size", plan.tp, "ranks that split every layer"
    yield "--pipeline-model-parallel-size", plan.pp, "pipeline stages, 1F1B"
    if plan.pp == 1:
        yield "--no-pipeline-parallel", "one stage: no pipeline engine"
    if plan.cp > 1:
        yield "--ds-sequence-parallel-size", plan.cp, "Ulysses: ranks per sequence"
    if plan.sequence_parallel:
        yield "--sequence-parallel", "norms and dropout split over tp"
    yield "--zero-stage", plan.zero_stage, "as in the JSON"


@in_group("TRAINING_ARGS")
def _training(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    training = c.training
    yield "--micro-batch-size", plan.micro_batch_size, "as in the JSON"
    yield "--global-batch-size", training.global_batch_size, "as in the JSON"
    yield train_iterations("TRAINING_ARGS", training)
    yield f"--{training.precision}", "as in the JSON"
    yield "--optimizer", training.optimizer, "as planned"
    if plan.offload_optimizer:
        yield "--cpu-optimizer", "DeepSpeed's Adam for host memory"
    yield learning_rate("TRAINING_ARGS")
    if plan.attention_kernel in ("flash", "flash2"):
        newest = ", the newest supported" if plan.attention_kernel == "flash" else ""
        yield "--use-flash-attn-v2", f"attention kernel: flash-attention 2{newest}"
    if plan.recompute != "none":
        yield "--recompute-granularity", plan.recompute, "activation recompute"
        yield "--deepspeed-activation-checkpointing", "DeepSpeed's checkpointing"
    if plan.recompute == "full":
        yield "--recompute-method", plan.recompute_method, "grouping of the layers"
        yield "--recompute-num-layers", plan.recompute_num_layers, "layers per checkpoint"
        yield (
            "--checkpoint-num-layers",
            plan.recompute_num_layers,
            "the same; without the pipeline engine only this flag is read",
        )
    if plan.offload_activations:
        yield "--checkpoint-in-cpu", "checkpoints are kept in host memory"


@in_group("DATA_ARGS")
def _data(model: ModelSpec) -> Iterator[Row]:
    yield "--data-impl", "mmap", "the format of DATA_PATH, as mock_data.py writes it"
    yield "--split", "100,0,0", "no evaluation on mock data"
    yield "--eval-iters", 0, "no evaluation on mock data"
    yield "--tokenizer-type", "NullTokenizer", "mock data needs no tokenizer"
    yield (
        "--vocab-size",
        max(model.vocab_size - 1, 1),
        f"the tokenizer adds one token, {model.vocab_size} in all",
    )
    yield "--make-vocab-size-divisible-by", VOCAB_MULTIPLE, "rows are padded to this x tp"
    yield "--log-interval", 1, "iteration time on every step"


def arguments(c: Context, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Every argument of `pretrain_gpt.py`, grouped."""
    return (*_model(c.model, c.training), *_parallel(plan), *_training(c, plan), *_data(c.model))
