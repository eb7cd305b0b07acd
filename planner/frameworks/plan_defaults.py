"""What a framework takes for the fields that a plan given by hand leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from cost_models.plans import FIELDS, ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import RULES, Context, passing
from planner.frameworks.base import Framework

# Each belongs to one kind of recompute.
_OF_RECOMPUTE = {"recompute_modules": "selective", "recompute_num_layers": "full"}

# What FSDP reduces gradients of adapters in too.
_REDUCED = "gradient_reduce_dtype"


def usual_training(
    framework: Framework, precision: str, adapts: bool, frozen_dtype: str
) -> dict[str, Any]:
    """Values of training fields that a request leaves open."""
    own = dict(framework.training) if precision == "bf16" else {}
    if not adapts:
        return own
    packed = framework.packed_adapters if frozen_dtype == "nf4" else {}
    return {**own, **framework.adapters, **packed}


def own_trainings(
    framework: Framework, training: TrainingSpec, left_out: Collection[str]
) -> Iterator[TrainingSpec]:
    """The training with the fields that a request leaves out as a framework has them by itself.

    First as it usually does, then with gradients of adapters reduced as those of all weights are,
    in half precision, which FSDP needs.
    """
    precision = training.precision
    own = usual_training(framework, precision, training.lora_rank > 0, training.frozen_dtype)
    yield _with(training, own, left_out)
    if _REDUCED in framework.training:
        reduced = "fp16" if precision == "fp16" else framework.training[_REDUCED]
        yield _with(training, own | {_REDUCED: reduced}, left_out)


def _with(
    training: TrainingSpec, fields: Mapping[str, Any], left_out: Collection[str]
) -> TrainingSpec:
    return training.model_copy(update={n: v for n, v in fields.items() if n in left_out})


def usual(framework: Framework, given: Mapping[str, Any], model: ModelSpec) -> dict[str, Any]:
    """The framework's own values of fields that are not given, for a plan without conflicts.

    given: fields as the user wrote them, whose values may be wrong.
    """
    kind = given.get("recompute", "none")
    found = {
        name: values[0]
        for name, values in framework.axes.items()
        if name != "schedule" and _OF_RECOMPUTE.get(name, kind) == kind
    }
    pp, tp, vpp = (degree(given.get(name)) for name in ("pp", "tp", "vpp"))
    layers = -(-model.num_layers // (pp * vpp))
    if framework.splits is not None and 1 < pp <= model.num_layers:
        stages = framework.splits(model, pp, tp)
        layers = max(stages)
        by_hand = ("stage_layers", "first_stage_layers", "last_stage_layers")
        if len(set(stages)) > 1 and min(stages) > 0 and not any(map(given.get, by_hand)):
            found["stage_layers"] = stages
    if kind == "full":
        uniform = (given.get("recompute_method") or found.get("recompute_method")) == "uniform"
        found.setdefault("recompute_num_layers", 1 if uniform else layers)
    return {name: value for name, value in found.items() if given.get(name) is None}


def runnable(
    framework: Framework, context: Context, plan: ParallelPlan, left_out: Collection[str]
) -> ParallelPlan:
    """The plan with the least changes to the fields left out with which the framework runs it.

    The plan itself if it runs, or if no such change helps.
    """
    rules = (*RULES, *framework.rules)
    if passing(rules, context, Plans.of(plan)).all():
        return plan
    values = {
        name: dict.fromkeys((getattr(plan, name), *several))
        for name, several in _alternatives(framework, context, plan).items()
        if name in left_out
    }
    rows = [
        plan.model_copy(update=dict(zip(values, row, strict=True)))
        for row in product(*values.values())
    ]
    runs = np.flatnonzero(passing(rules, context, Plans.from_rows(rows)))
    changes = [sum(getattr(rows[i], name) != getattr(plan, name) for name in values) for i in runs]
    return rows[runs[int(np.argmin(changes))]] if changes else plan


def _alternatives(
    framework: Framework, context: Context, plan: ParallelPlan
) -> dict[str, tuple[Any, ...]]:
    """Values that the framework may take instead: what a search for it would try."""
    tried = {name: values for name, values in framework.axes.items() if name != "schedule"}
    tried |= {"sequence_parallel": (False, True), "reshard_after_forward": (True, False)}
    if context.model.moe is not None:
        tried["etp"] = (1, plan.tp)
    fixed = ("recompute", *_OF_RECOMPUTE)
    return {name: values for name, values in tried.items() if name in FIELDS and name not in fixed}


def degree(value: Any) -> int:
    """A degree to compute with while its validation is still to come; wrong ones count as 1."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
