"""What published runs have shown on an accelerator: their record, and which features together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations
from math import log
from typing import NamedTuple

from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan
from cost_models.profiles import profile_for
from cost_models.spec import AcceleratorSpec, ClusterSpec, ModelSpec, TrainingSpec
from planner.documents.scored_runs import Record, ScoredRun, scored_runs
from planner.evidence.uncertainty.error_features import NARROW

# Below this number of sources, runs of all accelerators tell which features go together.
MIN_SOURCES = 3
# Parameters within this factor are of one model, whose rows count them differently; models within
# the other reach the same rate on the same accelerator.
_SAME_SIZE, _LIKE_SIZE = 1.03, 1.3
# What tells two plans of one job apart, as a reader knows it.
TOLD = (
    "tp", "cp", "pp", "vpp", "ep", "zero_stage", "micro_batch_size", "recompute", "schedule",
    "moe_dispatcher", "overlap_ep", "runtime",
)  # fmt: skip

Pairs = frozenset[frozenset[str]]


class _Kind(NamedTuple):
    """What runs are told apart by, before the size of their model."""

    accelerator: str
    experts: bool
    adapters: bool
    narrow: bool


def record(
    model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec, plan: ParallelPlan
) -> Record | None:
    """The fastest published run on this accelerator of a model of this size, by model FLOP/s.

    Of the model nearest in size, where none is within _LIKE_SIZE.  None without a run of its kind
    of model, method and class of precision.
    """
    kind = _Kind(
        cluster.groups[0].accelerator.id,
        model.moe is not None,
        training.freezes,
        training.precision in NARROW,
    )
    runs = _runs(kind)
    if not runs:
        return None
    best, same = _fastest(kind, total_parameters(model))
    return Record(run=best, same_model=same, differs=tuple(differences(plan, best, runs)))


@lru_cache(maxsize=1024)
def _fastest(kind: _Kind, size: float) -> tuple[ScoredRun, bool]:
    """The fastest run of the models nearest to a size; whether its model is of this size."""
    runs = _runs(kind)

    def distance(run: ScoredRun) -> float:
        return abs(log(run.parameters / size))

    reach = max(log(_LIKE_SIZE), min(map(distance, runs)))
    near = [run for run in runs if distance(run) <= reach]
    best = max(near, key=lambda run: run.model_flop_per_s)
    return best, distance(best) <= log(_SAME_SIZE)


@lru_cache(maxsize=256)
def _runs(kind: _Kind) -> tuple[ScoredRun, ...]:
    return tuple(
        run
        for run in scored_runs()
        if (run.accelerator, run.experts, run.adapters, run.precision in NARROW) == kind
    )


def differences(
    plan: ParallelPlan, run: ScoredRun | ParallelPlan, runs: Sequence[ScoredRun | ParallelPlan]
) -> Iterator[str]:
    """What a plan has that a run had not, each with whether any of the runs has it."""
    for name in TOLD:
        value, other_value = getattr(plan, name), getattr(run, name)
        if value != other_value:
            seen = any(getattr(other, name) == value for other in runs)
            text = f"{name.replace('_', ' ')} {_value_text(other_value)} -> {_value_text(value)}"
            yield text if seen else f"{text} (no run there)"


def _value_text(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def seen_together(chip: AcceleratorSpec, experts: bool) -> Pairs:
    """Which features of plans (planner/search/simplicity.py) published runs have, in pairs.

    Those of the accelerator's family with this kind of model; of all accelerators, where fewer
    than MIN_SOURCES published any.  A feature with itself: it was seen at all.
    """
    return _seen_pairs(profile_for(chip).family, experts)


@cache
def _seen_pairs(family: str, experts: bool) -> Pairs:
    kin = [run for run in scored_runs() if run.experts == experts]
    family_runs = [run for run in kin if run.family == family]
    counted = family_runs if len({run.source for run in family_runs}) >= MIN_SOURCES else kin
    return frozenset(
        frozenset(pair)
        for run in counted
        for pair in (*combinations(run.kinds, 2), *((kind,) for kind in run.kinds))
    )
