"""The measured runs that are nearest to a plan: the evidence for its estimate.

`evidence` reads the published runs in the catalog and evaluates no model, so that every answer can
have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from cost_models.catalog.hardware import accelerator as accelerator_spec
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan
from cost_models.profiles import profile_for
from cost_models.runtimes import RUNTIMES
from cost_models.spec import AcceleratorSpec, ClusterSpec, ModelSpec, TrainingSpec
from planner.documents.formats import listed
from planner.documents.scored_runs import Evidence, Ground, ScoredRun, scored_runs
from planner.evidence.uncertainty.error_features import NARROW, Array
from planner.evidence.uncertainty.record import record
from planner.evidence.uncertainty.site import Site

__all__ = ["Evidence", "evidence"]

MAX_RUNS = 3
_SORTED_RUNS = 64  # runs that are sorted by their distance, as a rule
# The distance between two runs for a difference in a kind, and for each factor of two between their
# sizes (a judgement: properties that decide the kernels and the links weigh most).
KINDS = {
    "accelerator": 3.0, "family": 3.0, "vendor": 3.0, "experts": 4.0, "stack": 3.0,
    "precision": 1.0, "recompute": 0.5,
}  # fmt: skip
SIZES = {
    "parameters": 0.7, "accelerators": 0.3, "seq_length": 0.5, "global_batch_size": 0.1,
    "micro_batch_size": 0.2, "peak_flop_per_s": 0.5, "tp": 0.6, "cp": 0.6, "pp": 0.4, "ep": 0.4,
}  # fmt: skip


@dataclass(frozen=True)
class _Table:
    """The runs behind intervals, as arrays for fast comparison.

    sizes: log2 of the sizes times their weights, shape (sizes, runs).  weights: those of SIZES.
    kinds: by name and value, the distance to each run (0 for runs with that value).
    by_accelerator: the runs by accelerator and stack, which several runtimes may share.
    """

    runs: tuple[ScoredRun, ...]
    sizes: Array
    weights: Array
    kinds: dict[str, dict[str | bool, Array]]
    by_accelerator: dict[str, dict[str, list[ScoredRun]]]


@cache
def _table() -> _Table:
    runs = tuple(run for run in scored_runs() if run.intervals_s)
    chips = {name: accelerator_spec(name) for name in {run.accelerator for run in runs}}
    peaks = {name: _peak(chip) for name, chip in chips.items()}
    columns = {
        name: [peaks[run.accelerator] for run in runs]
        if name == "peak_flop_per_s"
        else [getattr(run, name) for run in runs]
        for name in SIZES
    }
    weights = np.array(list(SIZES.values()))
    kinds: dict[str, dict[str | bool, Array]] = {}
    of_run = {
        "stack": lambda run: _stack(run.runtime),
        "vendor": lambda run: chips[run.accelerator].vendor,
    }
    for name, weight in KINDS.items():
        value = of_run.get(name, attrgetter(name))
        values = np.array([value(run) for run in runs])
        kinds[name] = {value: weight * (values != value) for value in np.unique(values).tolist()}
    by_chip: dict[str, dict[str, list[ScoredRun]]] = {}
    for run in runs:
        by_chip.setdefault(run.accelerator, {}).setdefault(_stack(run.runtime), []).append(run)
    sizes = weights[:, None] * np.log2(list(columns.values()))
    return _Table(runs, sizes, weights, kinds, by_chip)


def evidence(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    plan: ParallelPlan,
    site: Site | None = None,
) -> Evidence:
    """The evidence for the estimate of a plan; site: whose own runs are counted too."""
    group = cluster.groups[0]
    chip, experts, stack = group.accelerator, model.moe is not None, _stack(plan.runtime)
    of_plan = {name: getattr(plan, name) for name in ("tp", "cp", "pp", "ep", "micro_batch_size")}
    sizes = {
        **of_plan,
        "parameters": total_parameters(model),
        "accelerators": group.accelerators,
        "seq_length": training.seq_length,
        "global_batch_size": training.global_batch_size,
        "peak_flop_per_s": _peak(chip),
    }
    kinds: dict[str, str | bool] = {
        "accelerator": chip.id,
        "family": profile_for(chip).family,
        "vendor": chip.vendor,
        "experts": experts,
        "stack": stack,
        "precision": training.precision,
        "recompute": plan.recompute,
    }
    nearest = _nearest(kinds, sizes)
    known = _table().by_accelerator.get(chip.id, {})
    method = training.freezes, training.precision in NARROW
    same, of_kind = (_run_count(chip.id, stack, *method, kind) for kind in (None, experts))
    of_site = () if site is None else site.runs
    learned = sum(run.groups[1:3] == (chip.id, plan.runtime) for run in of_site)
    ground: Ground = "measured" if same.number or learned else "extrapolated" if known else "unseen"
    if ground == "measured":
        setting = f"{chip.name} with {stack}{_method_text(*method)}"
        text, detail = _measured_text(setting, same, of_kind, experts)
    elif ground == "extrapolated":
        text, detail = _extrapolated(chip.name, stack, known, *method)
    else:
        text, detail = _accelerators_used(chip, nearest)
    own_runs = f"; {learned} of site {site.name}" if site is not None and learned else ""
    return Evidence(
        ground=ground, text=text + own_runs, detail=detail + own_runs, alike=of_kind.number,
        nearest=nearest, record=record(model, cluster, training, plan),
    )  # fmt: skip


class _Count(NamedTuple):
    """A number of runs as text."""

    number: int
    text: str


@lru_cache(maxsize=1024)
def _run_count(
    accelerator: str, stack: str, adapters: bool, narrow: bool, experts: bool | None
) -> _Count:
    """The runs of a stack on an accelerator, by method and class of precision.

    Without those of software that is only taken as that stack.  experts: with or without them,
    None: all.
    """
    same = _table().by_accelerator.get(accelerator, {}).get(stack, [])
    runs = [
        run
        for run in same
        if not run.stack_guessed
        and run.adapters == adapters
        and (run.precision in NARROW) == narrow
        and experts in (None, run.experts)
    ]
    return _Count(len(runs), _runs(runs))


# Each of these three returns Evidence.text and Evidence.detail.
def _measured_text(setting: str, same: _Count, of_kind: _Count, experts: bool) -> tuple[str, str]:
    """Which runs have both the accelerator and the stack."""
    other = "dense" if experts else "mixtures of experts"
    if of_kind.number:
        runs = f": {of_kind.text}" + (", mixtures of experts" * experts)
    else:
        runs = f", but only {other}: {same.text}" if same.number else ""
    return f"measured on {setting}{runs}", f"on {setting}{runs}"


def _extrapolated(
    name: str, stack: str, by_stack: dict[str, list[ScoredRun]], adapters: bool, narrow: bool
) -> tuple[str, str]:
    """Sentences on the runs of the accelerator and of the stack."""
    stacks = sorted(by_stack, key=lambda other: (other != stack, -len(by_stack[other])))
    differs = _method_text(adapters, narrow) if stack in by_stack else ""
    used = listed(stacks[:MAX_RUNS])
    elsewhere = [run for each in _table().by_accelerator.values() for run in each.get(stack, [])]
    other = f" and {_runs(elsewhere)} with it elsewhere" if elsewhere else ""
    runs = _runs([run for each in by_stack.values() for run in each])
    missing = f"no run on {name} with {stack}{differs}"
    interval = f"the interval rests on {runs} on this accelerator{other}"
    return (
        f"{missing}: extrapolated from {used}; {interval}",
        f"from {used}: {missing}; {interval}",
    )


def _accelerators_used(chip: AcceleratorSpec, nearest: Sequence[ScoredRun]) -> tuple[str, str]:
    """The accelerators whose runs are used for one that has none."""
    vendors = tuple({accelerator_spec(name).vendor: None for name in _table().by_accelerator})
    names = listed(tuple(dict.fromkeys(accelerator_spec(run.accelerator).name for run in nearest)))
    others, vendor = "other accelerators", ""
    if chip.vendor not in vendors:
        others = listed(vendors)
        vendor = f"none of {chip.vendor} either: " if chip.vendor else ""
    source = (
        f"extrapolated from {names}; {vendor}the interval rests on {len(_table().runs)} runs on "
        f"{others}, and on how far these differ"
    )
    return f"no run at all on {chip.name}: {source}", source


def _method_text(adapters: bool, narrow: bool) -> str:
    return " training adapters" * adapters + (" in 8 or 4 bits" if narrow else "")


def _stack(runtime: str) -> str:
    """A runtime by its name alone: "torch" of "torch: DTensor, FSDP2, pipelining"."""
    return RUNTIMES[runtime].title.partition(":")[0].partition(" with ")[0]


def _runs(runs_counted: Sequence[ScoredRun]) -> str:
    sources = len({run.source for run in runs_counted})
    runs = "1 run" if len(runs_counted) == 1 else f"{len(runs_counted)} runs"
    return f"{runs} of {sources} sources" if sources > 1 else f"{runs} of 1 source"


def _peak(accelerator: AcceleratorSpec) -> float:
    """The peak of 16-bit matrix products, which every accelerator with runs has."""
    peaks = (accelerator.peak_flop_per_s(name) for name in ("bf16", "fp16", "fp32"))
    return next(peak for peak in peaks if peak)


def _nearest(kinds: dict[str, str | bool], sizes: dict[str, float]) -> tuple[ScoredRun, ...]:
    """The first few runs, one for each model of a source: repeats add nothing new."""
    table = _table()
    weighed = np.log2([sizes[name] for name in SIZES]) * table.weights
    distances = np.abs(table.sizes - weighed[:, None]).sum(axis=0)
    for name, weight in KINDS.items():
        distances += table.kinds[name].get(kinds[name], weight)
    last = min(_SORTED_RUNS, len(distances)) - 1
    # Sorting a few of them is enough, unless these have too few models.
    for farthest in (np.partition(distances, last)[last], np.inf):
        near = np.flatnonzero(distances <= farthest)
        ordered = near[np.argsort(distances[near], kind="stable")].tolist()
        if len(runs := _distinct_runs(table.runs[i] for i in ordered)) == MAX_RUNS:
            break
    return runs


def _distinct_runs(runs: Iterable[ScoredRun]) -> tuple[ScoredRun, ...]:
    by_name: dict[tuple[str, str], ScoredRun] = {}
    for run in runs:
        by_name.setdefault((run.source, run.model), run)
        if len(by_name) == MAX_RUNS:
            break
    return tuple(by_name.values())
