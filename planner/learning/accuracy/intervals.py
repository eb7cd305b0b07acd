"""How often intervals hold, and what a few measured runs of a source are worth for its others.

Intervals are those of answers: as wide as errors at first sight.  A row is always judged as if no
run of its source had been seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from random import Random

import numpy as np
from pydantic import FiniteFloat

from planner.documents.plan_report import Document
from planner.evidence.uncertainty.error_features import Array
from planner.evidence.uncertainty.first_sight import Belief, first_sight, prior, rows_of
from planner.evidence.uncertainty.posterior import SHARES, SeenRun

DRAWS = 50
MIN_OF_KIND = 5


class IntervalScore(Document):
    """Of n runs, by per cent to hold: the share that is held, and the mean ln(high / low)."""

    n: int
    held: dict[str, FiniteFloat]
    mean_width_ln: dict[str, FiniteFloat]


class IntervalSummary(Document):
    """Intervals of scored rows, as wide as errors at first sight.

    held_mean_of_sources: so that no source outvotes another.  constant_width_ln: ln(high / low) of
    one interval for all rows that holds the same share of rows.
    """

    rows: IntervalScore
    held_mean_of_sources: dict[str, FiniteFloat]
    constant_width_ln: dict[str, FiniteFloat]
    by_source: dict[str, IntervalScore]
    by_kind: dict[str, IntervalScore]


class Shots(Document):
    """Median |ln(predicted / measured)| of a source's other rows once K of its rows were seen.

    Each source of enough rows, the mean over draws; mean: over sources.  mean_by_kind: of the other
    rows that are dense or mixtures of experts, over sources with MIN_OF_KIND of them and more.
    """

    mean: FiniteFloat
    mean_by_kind: dict[str, FiniteFloat]
    by_source: dict[str, FiniteFloat]


def interval_summary(runs: Sequence[SeenRun]) -> IntervalSummary | None:
    """Scores of the intervals of these runs; None where there are none."""
    if not runs:
        return None
    bounds = np.array([intervals(run) for run in runs])
    low, high = bounds[:, :, 0], bounds[:, :, 1]
    ln = np.array([run.ln for run in runs])[:, None]
    hits, widths = (low <= ln) & (ln <= high), high - low
    by_source, by_kind = defaultdict(list), defaultdict(list)
    for i, run in enumerate(runs):
        by_source[run.features.groups[3]].append(i)
        by_kind[_kind(run)].append(i)

    def score(rows: list[int]) -> IntervalScore:
        return IntervalScore(
            n=len(rows), held=_named(hits[rows].mean(0)), mean_width_ln=_named(widths[rows].mean(0))
        )

    by_sources = np.mean([hits[rows].mean(0) for rows in by_source.values()], 0)
    same = [2.0 * np.quantile(np.abs(ln), share) for share in hits.mean(0)]
    return IntervalSummary(
        rows=score(list(range(len(runs)))),
        held_mean_of_sources=_named(by_sources),
        constant_width_ln=_named(same),
        by_source={key: score(rows) for key, rows in by_source.items()},
        by_kind={key: score(rows) for key, rows in by_kind.items()},
    )


def intervals(run: SeenRun) -> list[tuple[float, float]]:
    """Low and high of ln(measured / estimated) for each of SHARES, no run of its source seen."""
    mixture = first_sight().mixture(run.features)
    return [mixture.bounds(float(share)) for share in SHARES]


def shots(runs: Iterable[SeenRun], counts: Sequence[int]) -> dict[str, Shots]:
    """The errors of the other rows of a source once K rows of it were seen, by K.

    As for a site (planner/learning/sites), rows are taken over what is answered without them.
    counts: each K.  Sources with fewer than two rows beside the largest K are left out, so that
    every K is of the same sources.  K of 0 is the estimate as it is answered.
    """
    by_source: dict[str, list[SeenRun]] = defaultdict(list)
    for run in runs:
        by_source[run.features.groups[3]].append(run)
    enough = {key: runs for key, runs in by_source.items() if len(runs) >= max(counts) + 2}
    if not enough:
        return {}
    return {str(count): _errors_after(count, enough) for count in counts}


def _errors_after(count: int, by_source: Mapping[str, Sequence[SeenRun]]) -> Shots:
    """The errors once `count` rows of each source were seen."""
    medians: dict[str, float] = {}
    by_kind: dict[str, list[float]] = defaultdict(list)
    for source, of_source in by_source.items():
        errors, kinds = _errors(of_source, count), np.array([_kind(run) for run in of_source])
        medians[source] = float(np.mean(np.nanmedian(errors, 1)))
        for kind in set(kinds.tolist()):
            if (kinds == kind).sum() >= max(MIN_OF_KIND, count + 1):
                middle = np.nanmedian(errors[:, kinds == kind], 1)
                by_kind[kind].append(float(np.mean(middle)))
    return Shots(
        mean=float(np.mean(list(medians.values()))),
        mean_by_kind={kind: float(np.mean(of_source)) for kind, of_source in by_kind.items()},
        by_source=medians,
    )


def _errors(runs: Sequence[SeenRun], count: int) -> Array:
    """|ln| of the rows of a source over draws of those that were seen, shape (draws, rows)."""
    random = Random(count)
    draws = [random.sample(range(len(runs)), count) for _ in range(DRAWS if count else 1)]
    rows, ln = rows_of(prior(), [run.features for run in runs]), np.array([run.ln for run in runs])
    errors = np.abs(ln - [Belief(prior(), [runs[i] for i in seen]).means(rows) for seen in draws])
    for of_draw, seen in zip(errors, draws, strict=True):
        of_draw[seen] = np.nan  # only the others count
    return np.asarray(errors)


def _kind(run: SeenRun) -> str:
    return "mixture of experts" if run.features.experts else "dense"


def _named(values: Sequence[float] | Array) -> dict[str, float]:
    return {share: float(value) for share, value in zip(SHARES, values, strict=True)}
