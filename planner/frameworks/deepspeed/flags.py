"""Keys of the JSON and arguments of Megatron-DeepSpeed's `pretrain_gpt.py`, with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import Context
from planner.frameworks import yaml_files
from planner.frameworks.base import Flag, Row, in_group
from planner.frameworks.deepspeed.options import DEGREES, LAYERS, WIDTHS
from planner.frameworks.megatron_option_rows import rows_of, spelled
from planner.frameworks.rules import PLACEHOLDER, accumulation, learning_rate, train_iterations

VOCAB_MULTIPLE = 128
POSITIONS = {
    "rope": ("--use-rotary-position-embeddings", "rotary positions"),
    "none": ("--no-position-embedding", "no positions"),
    "learned": None,
}


def batch(c: Context, plan: ParallelPlan, name: str = "") -> Iterator[yaml_files.Row]:
    """Keys of the engine's batch; name: what a reason calls it."""
    whole, count = c.training.global_batch_size, accumulation(c, plan)
    micro = f"micro batch {plan.micro_batch_size}"
    yield "train_batch_size", whole, f"{name}= {micro} x accumulation {count} x dp {plan.dp}"
    yield "train_micro_batch_size_per_gpu", plan.micro_batch_size, "sequences per pass and rank"
    yield "gradient_accumulation_steps", count, "micro-batches per iteration"


def zero(plan: ParallelPlan, overlaps: bool = True) -> Iterator[yaml_files.Row]:
    """Keys of the engine's ZeRO; overlaps: whether its overlap is said."""
    yield "zero_optimization.stage", plan.zero_stage, "1: states, 2: + gradients, 3: + weights"
    if overlaps:
        key = "zero_optimization.overlap_comm"
        yield key, plan.overlap_grad_reduce, "overlap with the backward pass"
    if plan.offload_optimizer:
        yield "zero_optimization.offload_optimizer.device", "cpu", "optimizer states in host memory"
        yield "zero_optimization.offload_optimizer.pin_memory", True, "pinned host memory"


def config(c: Context, plan: ParallelPlan) -> Iterator[yaml_files.Row]:
    """Rows of the JSON: dotted key, value, reason."""
    training = c.training
    yield from batch(c, plan, f"train batch {training.global_batch_size} ")
    yield "gradient_clipping", 1.0, PLACEHOLDER
    yield "steps_per_print", 1, "iteration time on every step"
    yield f"{training.precision}.enabled", True, "type of weights and activations"
    yield "data_types.grad_accum_dtype", training.gradient_dtype, "gradient accumulation type"
    yield "communication_data_type", training.gradient_reduce_dtype, "gradient reduction type"
    yield from zero(plan, overlaps=plan.zero_stage > 0)
    if training.optimizer == "sgd" and plan.zero_stage:
        yield "zero_allow_untested_optimizer", True, "SGD is untested with ZeRO"


def numerics_fields(model: ModelSpec) -> frozenset[str]:
    """Fields of the model's numerics that are written; a rotary base only if it is whole."""
    said = spelled(LAYERS, {"model": model, "numerics": model.numerics})
    return frozenset(row.own for row, _ in said if row.record == "numerics")


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
    records = {"model": model, "numerics": model.numerics}
    yield from rows_of(WIDTHS, records)
    yield "--seq-length", training.seq_length, "tokens of one sequence"
    yield "--max-position-embeddings", positions, "at least the sequence length"
    position = POSITIONS[model.position]
    if position is not None:
        yield position
    yield from rows_of(LAYERS, records)


@in_group("PARALLEL_ARGS")
def _parallel(plan: ParallelPlan) -> Iterator[Row]:
    yield from rows_of(DEGREES, {"plan": plan})
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
