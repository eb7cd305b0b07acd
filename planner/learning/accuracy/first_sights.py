"""What each release said of runs before anyone could tune to them: the record, and its scores.

`catalog/first_sight.csv` has a row for each published run, written when its source was added and
never changed (`python -m tools.accuracy.record_first_sight`).  lowest_s and highest_s, over what a
source leaves open, are empty where they are the prediction.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path

from planner.documents.first_sight import FirstSight, KindErrors
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures, groups_of
from planner.evidence.uncertainty.posterior import SeenRun

FILE = Path(__file__).parents[3] / "cost_models" / "catalog" / "first_sight.csv"
NUMBERS = (
    "predicted_iteration_time_s", "lowest_s", "highest_s", "published_iteration_time_s",
    "predicted_peak_bytes", "published_peak_bytes",
)  # fmt: skip
COLUMNS = (
    "id", "source_key", "commit", "confidence", "method", *NUMBERS, "family", "accelerator",
    "runtime", "precision", "experts", "hidden_size", "num_layers", "accelerators",
    "sources_alike", "doubts", *(f"share_{name}" for name in FACTORS), "reason",
)  # fmt: skip


@dataclass(frozen=True)
class Sight:
    """What was said of one run, and what was measured."""

    id: str
    method: str
    commit: str
    run: SeenRun

    @property
    def source(self) -> str:
        """The key of its source."""
        return self.run.features.groups[3]

    @property
    def kind(self) -> str:
        """Dense, a mixture of experts, or adapters."""
        return kind_of(self.run.features.experts, self.method)


@cache
def sights() -> tuple[Sight, ...]:
    """The timed runs of the record that were predicted and are not of low confidence."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_sights(csv.DictReader(file)))


def _sights(rows: Iterable[dict[str, str]]) -> Iterator[Sight]:
    for row in rows:
        predicted, published = row["predicted_iteration_time_s"], row["published_iteration_time_s"]
        if not predicted or not published or not row["runtime"] or row["confidence"] == "low":
            continue
        features = ErrorFeatures(
            shares=tuple(float(row[f"share_{name}"]) for name in FACTORS),
            groups=groups_of(
                row["family"],
                row["accelerator"],
                row["runtime"],
                row["source_key"],
                int(row["hidden_size"]),
                int(row["num_layers"]),
            ),
            experts=row["experts"] == "1",
            hidden_size=int(row["hidden_size"]),
            seconds=float(predicted),
            accelerators=int(row["accelerators"]),
            precision=row["precision"],
            doubts=tuple(filter(None, row["doubts"].split("+"))),
            sources_alike=int(row["sources_alike"]),
        )
        run = SeenRun(features, log(float(published)) - log(float(predicted)))
        yield Sight(row["id"], row["method"], row["commit"], run)


@cache
def first_sight_summary() -> FirstSight:
    """The errors of the record, by kind of model."""
    seen = sights()
    by_kind: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sight in seen:
        by_kind[sight.kind][sight.source].append(sight.run.ln)
    return FirstSight(
        runs=len(seen),
        sources=len({s.source for s in seen}),
        commits=tuple(dict.fromkeys(s.commit for s in seen)),
        by_kind={kind: KindErrors.from_runs(errors) for kind, errors in sorted(by_kind.items())},
    )


def kind_of(experts: bool, method: str) -> str:
    """Dense, a mixture of experts, or adapters."""
    if method != "full":
        return "adapters"
    return "mixture of experts" if experts else "dense"
