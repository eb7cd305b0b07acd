"""How far off an estimate may be: the interval that published runs of its kind fell into.

The catalog's error table holds ln(predicted / published) of every scored run by kind (dense or
mixture of experts), precision, runtime and scale.  An answer takes the rows of its own kind, every
source with equal weight, and asks for less likeness until two sources are left.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from cost_models.plans import ParallelPlan
from cost_models.profiles import EfficiencyProfile
from cost_models.runtimes import RUNTIMES
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec

FILE = Path(__file__).parents[1] / "cost_models" / "catalog" / "error_table.json"
LIKENESS = ("kind", "precision", "runtime", "scale")
# Fewer rows or sources say nothing of a spread.
MIN_SOURCES, MIN_ROWS = 2, 8
# Share of the runs of the kind inside the interval.
COVERED = 0.8
# What no run of its kind speaks for is given twice the spread (a judgement, not a measurement).
UNSEEN = 2.0
_SCALES = ((1, "one node"), (16, "up to 16 nodes"), (10**9, "more than 16 nodes"))


@dataclass(frozen=True)
class Band:
    """An interval around an estimated time, and what it rests on."""

    low_s: float
    high_s: float
    rows: int
    sources: int
    basis: str


@dataclass(frozen=True)
class Comparison:
    """How far off the ratio of two times may be: a share that most pairs of runs stay within."""

    share: float
    pairs: int
    sources: int


def likeness(
    model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec, plan: ParallelPlan
) -> dict[str, str]:
    """The class of an estimate, by LIKENESS."""
    nodes = cluster.groups[0].nodes
    narrow = training.precision in ("fp8", "fp4")
    return {
        "kind": "mixture-of-experts" if model.moe is not None else "dense",
        "precision": "8 bits or less" if narrow else "16-bit",
        "runtime": RUNTIMES[plan.runtime].lineage,
        "scale": next(name for most, name in _SCALES if nodes <= most),
    }


def band(seconds: float, kind: dict[str, str], profile: EfficiencyProfile) -> Band:
    """The interval of an estimated iteration time."""
    rows, level = _like(kind)
    errors = np.concatenate([row["ln"] for row in rows])
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["source"]] = counts.get(row["source"], 0) + len(row["ln"])
    weights = np.concatenate([[1.0 / counts[row["source"]]] * len(row["ln"]) for row in rows])
    tail = (1.0 - COVERED) / 2.0
    low, high = (_quantile(errors, weights, q) for q in (tail, 1.0 - tail))
    unseen = []
    if level < len(LIKENESS):
        unseen.append("no two sources of the same " + ", ".join(LIKENESS[level:]))
    if profile.kind == "fallback":
        unseen.append("an accelerator without measurements")
    widened = error_table()["left_out_over_fitted"] * (UNSEEN if unseen else 1.0)
    # A run took `predicted / exp(error)`; the estimate itself is always inside.
    slower, faster = max(-low, 0.0) * widened, max(high, 0.0) * widened
    alike = ", ".join(kind[k] for k in LIKENESS[:level]) or "of every kind"
    basis = f"{COVERED:.0%} of {len(errors)} published runs ({alike}) from {len(counts)} sources"
    if unseen:
        basis += f"; twice their spread: {', and '.join(unseen)}"
    return Band(
        seconds * float(np.exp(-faster)), seconds * float(np.exp(slower)), len(errors),
        len(counts), basis,
    )  # fmt: skip


def comparison(kind: dict[str, str]) -> Comparison:
    """How far off the ratio of two estimates of this kind may be.

    What a source has in common (its fabric, its software, its way of measuring) is off in both
    and cancels, so the interval is that of pairs of runs of one source, each source with equal
    weight.
    """
    rows, _ = _like(kind)
    by_source: dict[str, list[np.ndarray]] = {}
    for row in rows:
        errors = np.asarray(row["ln"])
        first, second = np.triu_indices(len(errors), 1)
        by_source.setdefault(row["source"], []).append(np.abs(errors[first] - errors[second]))
    pairs = [found for parts in by_source.values() if len(found := np.concatenate(parts))]
    gaps = np.concatenate(pairs)
    weights = np.concatenate([np.full(len(found), 1.0 / len(found)) for found in pairs])
    spread = float(np.expm1(_quantile(gaps, weights, COVERED)))
    return Comparison(spread, len(gaps), len(pairs))


def _like(kind: dict[str, str]) -> tuple[list[dict[str, Any]], int]:
    """The rows of the error table of a kind, and in how many respects they are alike."""
    table = error_table()["rows"]
    for level in range(len(LIKENESS), -1, -1):
        rows = [row for row in table if all(row[k] == kind[k] for k in LIKENESS[:level])]
        if _enough(rows):
            break
    return rows, level


def _enough(rows: list[dict[str, Any]]) -> bool:
    sources = {row["source"] for row in rows}
    return len(sources) >= MIN_SOURCES and sum(len(row["ln"]) for row in rows) >= MIN_ROWS


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - 0.5 * weights[order]
    return float(np.interp(share * weights.sum(), below, values[order]))


@cache
def error_table() -> dict[str, Any]:
    """The catalog's errors of published runs; `python -m planner.accuracy.fit --write` makes it."""
    return cast(dict[str, Any], json.loads(FILE.read_text(encoding="utf-8")))
