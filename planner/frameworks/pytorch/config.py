"""The CONFIG block of the training script: written from a plan, and read back."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from cost_models.stage_layers import forward_layers
from planner.constraints import Context
from planner.constraints.layout_fields import layout_fields
from planner.frameworks.base import Flag
from planner.frameworks.pytorch import encoders, patterns
from planner.frameworks.rules import PLACEHOLDER, accumulation, train_iterations
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torch_sharding import shard_degree

WIDTH = 100  # of a line of the script

_TABLE = table("planner.frameworks.pytorch", "entries.json")
# Fields of a model that are entries of the same name, with their meaning.
MODEL: dict[str, str] = _TABLE["model"]
# Fields of a mixture of experts, with their meaning; a dense model has no such entries.
EXPERTS: dict[str, str] = _TABLE["experts"]
# Entries that older scripts lack.
LATER = frozenset(_TABLE["later"])
# Fields of a model that are left out at their default.
OPTIONAL_MODEL_FIELDS: dict[str, str] = _TABLE["optional"]
PLAN, TRAINING = tuple(_TABLE["plan"]), tuple(_TABLE["training"])
OWN_TABLE = "per_layer_input_vocab_size"
# Entries of layer patterns only.
PATTERN = ("blocks", "layer_pattern")
# Numerics: entry, default, field.
NUMERICS = (
    ("norm_epsilon", 1e-5, "norm_epsilon"),
    ("rotary_base", 10000.0, "rope_theta"),
    ("init_std", 0.02, "init_std"),
)
BY_STAGE = "recompute_layers"
# Entries that no plan determines: entry, value, reason.
NOT_FROM_PLAN: tuple[tuple[str, Any, str], ...] = (
    ("learning_rate", 1e-3, PLACEHOLDER),
    ("gradient_clip", 1.0, "PLACEHOLDER for the smoke run: largest norm of all gradients"),
    ("seed", 1234, "seed of weights and data, the same for every parallelism"),
)
FROM_CONFIG_JSON = "from the model's config.json"
KEYS = frozenset(
    (*MODEL, "num_experts", *PLAN, *TRAINING, "stage_layers", "schedule", "dp_replicate",
     "dp_shard", "train_iters", *(name for name, _, _ in (*NUMERICS, *NOT_FROM_PLAN)))
)  # fmt: skip


def _entries(c: Context, plan: ParallelPlan) -> Iterator[tuple[str, Any, str]]:
    """Rows: entry, value, reason."""
    yield from _of_model(c, plan)
    yield from _of_degrees(plan)
    yield from _of_step(c, plan)
    for name, usual, field in NUMERICS:
        stated = getattr(c.model.numerics, field)
        why = (
            "NOT stated: set the value of the model's config.json"
            if stated is None
            else FROM_CONFIG_JSON
        )
        yield name, usual if stated is None else stated, why
    yield from NOT_FROM_PLAN


def _of_model(c: Context, plan: ParallelPlan) -> Iterator[tuple[str, Any, str]]:
    """Rows of the model and of the sequence length."""
    model, training = c.model, c.training
    stages = list(forward_layers(model.num_layers, plan))
    yield "stage_layers", stages, f"{model.num_layers} layers, per pipeline stage"
    for name, why in MODEL.items():
        yield name, getattr(model, name), why
    if model.moe is None:
        yield "num_experts", 0, "every MLP is dense"
    else:
        yield "num_experts", model.moe.num_experts, "experts of a layer, each an MLP"
        for name, why in EXPERTS.items():
            yield name, getattr(model.moe, name), why
    for name, value in _optional_fields(model).items():
        yield name, value, OPTIONAL_MODEL_FIELDS[name]
    if patterns.layers(model):
        blocks, layers = patterns.entries(model)
        yield "blocks", blocks, "blocks by name; None: the model's value"
        yield "layer_pattern", layers, "the blocks of each layer, repeated over the layers"
    yield from encoders.entries(model, training)
    yield "seq_length", training.seq_length, "tokens of one sequence"


def _of_degrees(plan: ParallelPlan) -> Iterator[tuple[str, Any, str]]:
    """Rows of the parallel degrees and of the sharding."""
    shard = shard_degree(plan)
    dp = f"dp {plan.dp} = dp_replicate {plan.dp // shard} x dp_shard {shard}"
    yield "tp", plan.tp, "ranks that split every matrix"
    yield (
        "sequence_parallel",
        plan.sequence_parallel,
        "tp also splits tokens between matrices: less memory, equal communication",
    )
    yield "cp", plan.cp, "ranks that split every sequence"
    yield (
        "cp_kind",
        plan.cp_kind if plan.cp > 1 else "a2a",
        "attention over cp: a2a from tokens to heads; all_gather of keys and values",
    )
    yield "pp", plan.pp, f"ranks that split the layers; {plan.vpp} stages on each"
    yield "schedule", SCHEDULES.get(plan.schedule, "1F1B"), "pipeline schedule"
    yield "dp_replicate", plan.dp // shard, f"{dp}: replicas of the weights"
    yield "dp_shard", shard, f"{dp}: ranks that shard one copy of the weights, with cp {plan.cp}"
    yield "ep", plan.ep, "ranks that split the experts, inside dp x cp x tp"
    yield "zero_stage", plan.zero_stage, "3: weights, gradients, states sharded; 0: replicated"
    yield (
        "reshard_after_forward",
        plan.reshard_after_forward,
        "free gathered weights after each pass and gather them again, or keep them for the step",
    )


def _of_step(c: Context, plan: ParallelPlan) -> Iterator[tuple[str, Any, str]]:
    """Rows of batches, number formats, kernels and recompute."""
    training = c.training
    yield (
        "global_batch_size",
        training.global_batch_size,
        f"sequences per step = micro_batch_size {plan.micro_batch_size} x "
        f"{accumulation(c, plan)} micro-batches x dp {plan.dp}",
    )
    yield "micro_batch_size", plan.micro_batch_size, "sequences per pass and rank"
    yield "precision", training.precision, "type of the computation; fp32 to compare runs"
    yield "gradient_reduce_dtype", training.gradient_reduce_dtype, "gradient reduction type"
    yield "attention_kernel", plan.attention_kernel, "flash: cuDNN, else the next; flash2; unfused"
    yield "recompute", plan.recompute, "activation recompute in the backward pass"
    yield "recompute_modules", plan.recompute_modules, "modules of selective recompute"
    yield "recompute_method", plan.recompute_method, "full: uniform, all layers; block, some"
    yield "recompute_num_layers", plan.recompute_num_layers, "block: recomputed layers per stage"
    if plan.recompute_layers:
        yield BY_STAGE, list(plan.recompute_layers), "recomputed layers per virtual stage"
    yield "compile", plan.compile, "torch.compile each layer"
    yield "optimizer", training.optimizer, "adam, sgd with momentum, adafactor or muon"


def _optional_fields(model: ModelSpec) -> dict[str, Any]:
    """The fields of OPTIONAL_MODEL_FIELDS that the model sets."""
    fields = ModelSpec.model_fields
    rare = {name for name in OPTIONAL_MODEL_FIELDS if getattr(model, name) != fields[name].default}
    if not patterns.compresses(model):  # other blocks have their own option
        rare -= {"attention_sinks"}
    return model.model_dump(
        include=rare | ({OWN_TABLE} if "per_layer_input_size" in rare else set())
    )


def _python(value: Any) -> str:
    """A value as a Python literal in double quotes (no name contains a quote or a blank)."""
    if isinstance(value, dict):
        rows = (_wrapped(f"{name!r}: {one!r}", 8) for name, one in value.items())
        written = "\n".join(("{", *(f"        {row}," for row in rows), "    }"))
    else:
        written = _wrapped(repr(value), 4)
    return written.replace("'", '"')


def _wrapped(text: str, indent: int) -> str:
    """The text wrapped; further lines are indented by four blanks more."""
    lines = textwrap.wrap(text, WIDTH - indent - 20, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * (indent + 4)}".join(lines)


def flags(c: Context, plan: ParallelPlan) -> tuple[Flag, ...]:
    """Every entry, with its value as a Python literal."""
    found = [
        Flag(name=name, value=_python(value), why=why, group="CONFIG")
        for name, value, why in _entries(c, plan)
    ]
    iterations = train_iterations("CONFIG", c.training)
    return (*found, iterations.model_copy(update={"name": "train_iters"}))


def _layout(pp: int, torch_schedule: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Plan fields for these layers per stage; raises ValueError if no plan has them."""
    chunks, rest = divmod(len(sizes), pp)
    if rest or not chunks or min(sizes) < 0 or min(sizes[1:-1], default=1) < 1:
        raise ValueError(f"stage_layers has {len(sizes)} stages for pp {pp}, or an empty stage")
    schedule = next((ours for ours, name in SCHEDULES.items() if name == torch_schedule), None)
    if schedule is None:
        raise ValueError(f"torch has no schedule {torch_schedule!r}")
    fields = layout_fields(schedule, pp, chunks, tuple(sizes))
    return {"pp": pp, "vpp": chunks, "schedule": schedule, **fields}


def _stated_entries(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The entries of these names that a CONFIG block has."""
    return {name: config[name] for name in names if name in config}


def specs(config: Mapping[str, Any]) -> tuple[ModelSpec, TrainingSpec, ParallelPlan]:
    """The specs and the plan of a CONFIG block; raises ValueError for an invalid value."""
    sizes, pp = config["stage_layers"], config["pp"]
    degrees = (pp, *(config[name] for name in ("cp", "dp_replicate", "dp_shard")))
    whole = isinstance(sizes, list) and all(type(size) is int for size in (*sizes, *degrees))
    if not whole or min(degrees) < 1:
        raise ValueError("stage_layers must be a list of integers, and degrees at least 1")
    before, tuned = encoders.read(config)
    model = ModelSpec(
        num_layers=sum(sizes),
        encoders=before,
        **{name: config[name] for name in MODEL},
        moe=_stated_entries(config, ("num_experts", *EXPERTS)) if config["num_experts"] else None,
        **_stated_entries(config, OPTIONAL_MODEL_FIELDS),
        layer_pattern=patterns.pattern(config),
        numerics={field: config[name] for name, _, field in NUMERICS},
    )
    training = TrainingSpec(**{name: config[name] for name in TRAINING}, **tuned)
    replicate, shard = config["dp_replicate"], config["dp_shard"]
    plan = ParallelPlan(
        **{name: config[name] for name in PLAN if name != "pp"},
        **_layout(pp, config["schedule"], sizes),
        dp=replicate * shard,
        dp_shard=shard * config["cp"] if replicate > 1 and config["zero_stage"] else 0,
        recompute_layers=tuple(config.get(BY_STAGE, ())),
        cross_entropy="unfused",
        overlap_grad_reduce=pp == 1,
        runtime="torch",
    )
    return model, training, plan
