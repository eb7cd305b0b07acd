"""What is predicted of the published runs, for the tests that need all of them."""

from __future__ import annotations

from functools import cache

from planner.evidence.published_runs.runs import PUBLISHED_RUNS, read_runs
from planner.learning.accuracy.predict import Prediction, predict


@cache
def predictions() -> tuple[Prediction, ...]:
    """Of every row: seconds of work, done once in a process."""
    return tuple(predict(run) for run in read_runs(PUBLISHED_RUNS))
