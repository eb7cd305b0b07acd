"""Two plans side by side, value by value: `planner compare` and POST /v1/comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.answers.plans.chance_to_be_first import compared
from planner.answers.plans.plan_answers import IllegalPlan, estimate
from planner.documents.answer import EstimateAnswer
from planner.documents.plan_report import Document, PlanReport
from planner.documents.problems import (
    Problem,
    RequestError,
    from_reasons,
    join,
)
from planner.documents.request import PlanRequest
from planner.version import __version__

Value = float | int | bool | str | tuple[Any, ...] | None
RESULTS = (
    "iteration_time_s", "tokens_per_s", "tokens_per_s_per_accelerator",
    "model_flop_per_s_per_accelerator", "mfu", "mfu_causal", "hfu", "num_micro_batches", "fits",
    "days", "cost_usd", "energy_kwh",
)  # fmt: skip
_QUESTION = ("model", "cluster", "training", "profile")
_MEMORY = (
    "capacity_bytes",
    "peak_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "worst_stage",
    "chance_of_running_out",
)


class Row(Document):
    """One value of both sides; difference: b - a, ratio: b / a, if they are numbers.

    A value that only one side has is null on the other side.
    """

    part: str
    name: str
    a: Value
    b: Value
    equal: bool
    difference: float | None = None
    ratio: float | None = None


class SideBySide(Document):
    """The answer: both estimates, and a row for each value of the requests and estimates.

    chance_b_faster: the chance that B is faster than A; speedup_b: an 80 % interval of its speedup.
    Both are None unless the plans belong to the same question, so that their errors are shared.
    """

    version: str
    a: EstimateAnswer
    b: EstimateAnswer
    chance_b_faster: float | None = None
    speedup_b: tuple[float, float] | None = None
    rows: tuple[Row, ...]


def side_by_side(a: PlanRequest, b: PlanRequest) -> SideBySide:
    """Estimate both plans and compare all values.

    Raises RequestError with the reasons of each plan that cannot run.
    """
    answers: list[EstimateAnswer] = []
    problems: list[Problem] = []
    for side, request in (("a", a), ("b", b)):
        try:
            answers.append(estimate(request, request.named_plan))
        except IllegalPlan as error:
            found = RequestError(from_reasons(error.reasons))
            problems += found.under(join("", side)).problems
    if problems:
        raise RequestError(problems)
    first, second = answers
    alike = all(getattr(a, name) == getattr(b, name) for name in _QUESTION)
    doubt = compared(a, second.estimate, first.estimate) if alike else None
    return SideBySide(
        version=__version__,
        a=first,
        b=second,
        chance_b_faster=None if doubt is None else doubt.chance,
        speedup_b=None if doubt is None else (doubt.low, doubt.high),
        rows=tuple(_rows(first, second)),
    )


def _rows(a: EstimateAnswer, b: EstimateAnswer) -> Iterator[Row]:
    both = [_parts(a), _parts(b)]
    for part in both[0]:
        one, other = both[0][part], both[1][part]
        for name in dict.fromkeys([*one, *other]):
            yield _row(part, name, one.get(name), other.get(name))


def _row(part: str, name: str, a: Value, b: Value) -> Row:
    if not _is_number(a) or not _is_number(b):
        return Row(part=part, name=name, a=a, b=b, equal=a == b)
    assert isinstance(a, int | float)
    assert isinstance(b, int | float)
    ratio = b / a if a else None
    return Row(part=part, name=name, a=a, b=b, equal=a == b, difference=b - a, ratio=ratio)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parts(answer: EstimateAnswer) -> dict[str, dict[str, Value]]:
    """Every value that is compared, by its part."""
    request, report = answer.request, answer.estimate
    asked = {name: dict(_leaves(request[name])) for name in ("model", "cluster", "training")}
    return asked | {
        "profile": {"id": answer.profile.id},
        "plan": dict(_leaves(report.plan.model_dump(mode="json"))),
        "result": {name: getattr(report, name) for name in RESULTS},
        "time_parts_s": dict(report.time_parts_s),
        "memory": {name: getattr(report.memory, name) for name in _MEMORY},
        "memory_parts_bytes": _worst_stage(report),
    }


def _worst_stage(report: PlanReport) -> dict[str, Value]:
    return dict(report.memory.stages[report.memory.worst_stage].parts)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Value]]:
    """The values inside a document by dotted name; a list of plain values is one value."""
    if isinstance(value, Mapping):
        children = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        children = [(str(i), item) for i, item in enumerate(value)]
    else:
        yield name, tuple(value) if isinstance(value, list) else value
        return
    for key, item in children:
        yield from _leaves(item, f"{name}.{key}" if name else key)
