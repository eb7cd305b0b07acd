"""Scores of predictions: error of time by source, memory, ranking."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from planner.accuracy.predict import Prediction


def counts(prediction: Prediction) -> bool:
    """Whether a row belongs in the headline: predicted, confident, and its inputs settled."""
    return (
        prediction.iteration_time_s is not None
        and prediction.run.iteration_time_s is not None
        and prediction.run["confidence"].lower() != "low"
        and prediction.settled
    )


def log_ratio(prediction: Prediction) -> float:
    """ln(predicted / published) of the iteration time."""
    assert prediction.iteration_time_s is not None
    assert prediction.run.iteration_time_s is not None
    return float(np.log(prediction.iteration_time_s / prediction.run.iteration_time_s))


def log_ratios(predictions: Iterable[Prediction]) -> dict[str, np.ndarray]:
    """ln(predicted / published) of the headline rows, by source."""
    found: dict[str, list[float]] = defaultdict(list)
    for prediction in predictions:
        if counts(prediction):
            found[prediction.run.source_key].append(log_ratio(prediction))
    return {key: np.array(values) for key, values in found.items()}
