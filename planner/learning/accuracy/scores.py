"""Scores of predictions: error of time by source, memory, and how well plans are ranked.

Errors are ln(predicted / published): a factor too slow counts as much as the same factor too fast,
and 0.05 is about 5 %.  Everything below `log_ratios` takes bare numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.evidence.uncertainty.error_features import ErrorFeatures, error_features
from planner.evidence.uncertainty.posterior import SeenRun
from planner.learning.accuracy.predict import Prediction

Values = Sequence[float] | np.ndarray
# Pairs of more plans than this are not all compared for the ceiling; evenly spread ones stand
# for all.
_MAX_IN_CEILING = 1_000


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
    return log_of_ratio(prediction.iteration_time_s, prediction.run.iteration_time_s)


def features_of(prediction: Prediction) -> ErrorFeatures | None:
    """Error features of the estimate of a published run; None where it has no parts."""
    case, plan, parts = prediction.case, prediction.plan, prediction.parts_s
    if case is None or plan is None or not parts:
        return None
    source = prediction.run.source_key
    guessed = {"stack": case.stack_guessed, "inputs": not prediction.settled}
    return error_features(
        case.model, case.cluster, case.training, plan, parts, source,
        guessed=[doubt for doubt, holds in guessed.items() if holds],
    )  # fmt: skip


def seen_runs(predictions: Iterable[Prediction]) -> tuple[SeenRun, ...]:
    """The runs that count, with what was missed."""
    seen = []
    for prediction in predictions:
        if counts(prediction) and (features := features_of(prediction)) is not None:
            seen.append(SeenRun(features, -log_ratio(prediction)))
    return tuple(seen)


def log_of_ratio(predicted: float, published: float) -> float:
    """ln(predicted / published); a difference, for the ratio itself may overflow."""
    return math.log(predicted) - math.log(published)


def log_ratios(predictions: Iterable[Prediction]) -> dict[str, np.ndarray]:
    """ln(predicted / published) of the headline rows, by source."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for prediction in predictions:
        if counts(prediction):
            by_source[prediction.run.source_key].append(log_ratio(prediction))
    return {key: np.array(values) for key, values in by_source.items()}


@dataclass(frozen=True)
class Errors:
    """How far off a set of rows is: medians of |ln|, and the mean of ln with its sign."""

    n: int
    median_abs_ln: float
    p90_abs_ln: float
    bias_ln: float


def errors(log_ratios: Values) -> Errors | None:
    """Median and 90th percentile of |ln| (linear between ranks) and mean ln; None of nothing."""
    values = np.asarray(log_ratios, dtype=float)
    if not values.size:
        return None
    size = np.abs(values)
    return Errors(
        values.size, float(np.median(size)), float(np.quantile(size, 0.9)), float(values.mean())
    )


# A peak predicted lower than it was by more than this share counts as under-predicted.
UNDER = 0.03


@dataclass(frozen=True)
class MemoryErrors:
    """How far off predicted peaks are; errors are shares of the published peak.

    under_predicted_share: of the peaks, those predicted low by more than UNDER.
    """

    n: int
    median_abs_ln: float
    mean_abs_error: float
    mean_error: float
    under_predicted_share: float


def memory_errors(predicted: Values, published: Values) -> MemoryErrors | None:
    """Errors of peak memory, each peak a positive number of bytes; None of nothing."""
    ours, theirs = (np.asarray(values, dtype=float) for values in (predicted, published))
    if not ours.size:
        return None
    error = ours / theirs - 1
    return MemoryErrors(
        ours.size,
        float(np.median(np.abs(np.log(ours) - np.log(theirs)))),
        float(np.abs(error).mean()),
        float(error.mean()),
        float((error < -UNDER).mean()),
    )


def kendall_tau(first: Values, second: Values) -> float | None:
    """Kendall's tau-b: pairs in the same order less pairs in opposite order, ties allowed for.

    Knight 1966, in n log^2 n.  None where one side is all ties or there are no pairs.
    """
    x, y = (np.unique(values, return_inverse=True)[1].ravel() for values in (first, second))
    pairs = math.comb(len(x), 2)
    order = np.lexsort((y, x))
    of_x, of_y = pairs - _tied(x), pairs - _tied(y)
    if not of_x or not of_y:
        return None
    both = _tied(x * (int(y.max()) + 1) + y)
    balance = of_x + of_y - pairs + both - 2 * _inversions(y[order])
    return balance / math.sqrt(of_x * of_y)


def _tied(ranks: np.ndarray) -> int:
    """Pairs of equal values."""
    many = np.unique(ranks, return_counts=True)[1].astype(np.int64)
    return int((many * (many - 1) // 2).sum())


def _inversions(values: np.ndarray) -> int:
    """Pairs of which the first is larger than the second."""
    if len(values) < 2:
        return 0
    first, second = values[: len(values) // 2], values[len(values) // 2 :]
    across = len(first) * len(second) - np.searchsorted(np.sort(first), second, side="right").sum()
    return int(across) + _inversions(first) + _inversions(second)


def top1_regret(predicted: Values, published: Values) -> float | None:
    """Measured time of the plan predicted fastest over the best measured: 1 is no regret.

    Where several are predicted equally fast, the mean of their measured times.
    """
    ours, theirs = (np.asarray(values, dtype=float) for values in (predicted, published))
    if not ours.size:
        return None
    return float(theirs[ours == ours.min()].mean() / theirs.min())


def repeat_spread(repeats: Iterable[Values]) -> float | None:
    """Standard deviation of ln(time) of one measurement, pooled over plans measured repeatedly.

    Times that agree to the last digit are one measurement printed twice, not a repeat.  None
    where nothing was measured twice.
    """
    squares, freedom = 0.0, 0
    for times in repeats:
        logs = np.log(np.unique(times))
        squares += float(((logs - logs.mean()) ** 2).sum()) if logs.size else 0.0
        freedom += max(logs.size - 1, 0)
    return math.sqrt(squares / freedom) if freedom else None


def tau_ceiling(times: Values, measurements: Sequence[int], spread: float) -> float | None:
    """The tau-b that a model of the true times may expect against these measured ones.

    A measured mean of m repeats lies around its true time with the deviation spread / sqrt(m) of
    its logarithm.  Given two measured means a distance d apart, the true ones are in the same
    order with probability Phi(d / s), s^2 the sum of their variances (no prior on the times), so
    that the pair adds 2 Phi(d / s) - 1 = erf(d / (s sqrt 2)) to the expected tau.  Not modelled:
    drift between days, which repeats show only in part.
    """
    logs = np.log(np.asarray(times, dtype=float))
    many = np.asarray(measurements, dtype=float)
    if len(logs) > _MAX_IN_CEILING:
        chosen = np.argsort(logs, kind="stable")
        chosen = chosen[np.linspace(0, len(logs) - 1, _MAX_IN_CEILING).astype(int)]
        logs, many = logs[chosen], many[chosen]
    pairs = math.comb(len(logs), 2)
    untied = pairs - _tied(np.unique(logs, return_inverse=True)[1].ravel())
    if not untied:
        return None
    if spread <= 0:
        return 1.0
    i, j = np.triu_indices(len(logs), 1)
    distances = np.abs(logs[i] - logs[j]) / (spread * np.sqrt(2 / many[i] + 2 / many[j]))
    expected = sum(map(math.erf, distances.tolist()))
    return min(1.0, expected / math.sqrt(pairs * untied))
