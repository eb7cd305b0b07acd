"""How far off releases were on sources that nobody had seen when they said it, as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.documents.plan_report import Document

MIN_OF_KIND = 5


class KindErrors(Document):
    """Errors of the runs of one kind.

    median_abs_ln: the mean over sources with MIN_OF_KIND runs of the kind and more, of the median
    |ln(predicted / measured)| of each; None without such sources.
    """

    runs: int
    sources: int
    median_abs_ln: float | None

    @classmethod
    def from_runs(cls, by_source: Mapping[str, Sequence[float]]) -> KindErrors:
        """The errors of runs by source; each ln(predicted / measured)."""
        medians = [
            float(np.median(np.abs(errors)))
            for errors in by_source.values()
            if len(errors) >= MIN_OF_KIND
        ]
        mean = float(np.mean(medians)) if medians else None
        return cls(
            runs=sum(map(len, by_source.values())), sources=len(by_source), median_abs_ln=mean
        )


class FirstSight(Document):
    """How far off releases were on sources that nobody had seen when they said it."""

    runs: int
    sources: int
    commits: tuple[str, ...]
    by_kind: dict[str, KindErrors]
