"""The type of a legality rule, and functions that apply rules to plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import maximum
from cost_models.plans import FIELDS, IntArray, ParallelPlan, Plans
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.documents.answer import Reason

BoolArray = NDArray[np.bool_]
# What a rule reads: degrees: tp, cp, pp, dp; groups: also ep, etp, sequence parallelism; layout:
# how layers fall on stages and chunks; plan: anything.  The search applies a rule as soon as its
# columns exist, and again to whole plans where it also reads a field that is still open then.
Level = Literal["degrees", "groups", "layout", "plan"]


@dataclass(frozen=True)
class Context:
    """The inputs of a rule other than the plans."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec


@dataclass(frozen=True)
class Rule:
    """A legality rule.

    code: a key of planner.documents.answer.REASONS.  legal(context, plans): True where it passes.
    explain(context, plan): one sentence with the numbers that bind, for a plan that fails.
    """

    code: str
    legal: Callable[[Context, Plans], BoolArray]
    explain: Callable[[Context, ParallelPlan], str]
    level: Level = "plan"


class _Watched(Plans):
    """Plans that record which of their fields are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in _NAMES:
            object.__getattribute__(self, "__dict__")["read"].add(name)
        return object.__getattribute__(self, name)


_NAMES = frozenset(FIELDS)


def judged(rule: Rule, context: Context, plans: Plans) -> tuple[BoolArray, set[str]]:
    """Which plans pass a rule, and the fields that it read."""
    watched = object.__new__(_Watched)
    vars(watched).update(vars(plans), read=set())
    passes = rule.legal(context, watched)
    return passes, vars(watched)["read"]


def passing(rules: Iterable[Rule], context: Context, plans: Plans) -> BoolArray:
    """Which plans pass every rule."""
    legal = np.ones(len(plans), dtype=np.bool_)
    for rule in rules:
        legal &= rule.legal(context, plans)
    return legal


def violations(context: Context, plan: ParallelPlan, rules: Iterable[Rule]) -> list[Reason]:
    """The reasons of all rules that one plan breaks."""
    row = Plans.of(plan)
    broken = []
    for rule in rules:
        if not rule.legal(context, row).all():
            broken.append(Reason(code=rule.code, text=rule.explain(context, plan)))
    return broken


def divides(divisor: IntArray, value: Any) -> BoolArray:
    """Whether a divisor divides a value, element-wise; a divisor of 0 counts as 1."""
    return np.asarray(value % maximum(divisor, 1) == 0)


def samples(c: Context, p: Plans) -> Any:
    """The global batch size of each plan's step."""
    return c.training.global_batch_size if p.global_batch_size is None else p.global_batch_size


def positions(c: Context, p: Plans) -> Any:
    """The sequence length of each plan's step."""
    return c.training.seq_length if p.seq_length is None else p.seq_length


def micro_batches(c: Context, p: Plans) -> IntArray:
    """Micro-batches per pipeline and step (exact where the batch is a multiple)."""
    return np.asarray(p.micro_batches(c.training.global_batch_size)).astype(np.int64)
