"""`python -m tools.accuracy.tune_replay`: replays `planner tune` on published tables of plans.

A group is the plans of one model, cluster, batch and precision that a source measured, at least
LEAST of them; the posterior has not seen its source.  All times are known here, so two numbers can
be counted, for the policy of `planner tune` and for the order of predicted times: the runs until a
plan within 1 % of the best was measured, and the runs until that is known.  It is known when the
policy's stopping rule holds; in predicted order, runs tell nothing about other plans.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import exp, fsum, log1p
from pathlib import Path

import numpy as np
from pydantic import FiniteFloat

from planner.documents.plan_report import Document
from planner.evidence.published_runs.runs import PUBLISHED_RUNS, runs_in
from planner.evidence.uncertainty.error_features import Array, ErrorFeatures
from planner.evidence.uncertainty.posterior import Posterior, posterior
from planner.evidence.uncertainty.tuning_policy import UNLIKELY, WORTH, advised, plan_belief
from planner.learning.accuracy.predict import Prediction, predict
from planner.learning.accuracy.scores import counts, features_of

LEAST = 4  # plans of a group


class TunedGroup(Document):
    """One group of n plans: runs until one within 1 % of the best was measured, and until known.

    regret: the best time measured when the policy stops over the best time of all, minus 1.
    """

    name: str
    n: int
    predicted_order: int
    policy: int
    predicted_order_known: int
    policy_known: int
    regret: FiniteFloat


def tuned_groups(predictions: Iterable[Prediction]) -> Iterator[TunedGroup]:
    """Every group of the scored rows."""
    groups: dict[tuple[str, ...], list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        if counts(prediction) and not prediction.run.is_layer and features_of(prediction):
            groups[_group(prediction)].append(prediction)
    for name, own in groups.items():
        plans = defaultdict(list)
        for prediction in own:
            plans[prediction.run["config_group"] or prediction.run.id].append(prediction)
        if len(plans) >= LEAST:
            yield _tuned(", ".join(name), list(plans.values()))


def _group(prediction: Prediction) -> tuple[str, ...]:
    run, case = prediction.run, prediction.case
    assert case is not None
    training = case.training
    batch = f"{training.global_batch_size} x {training.seq_length} {training.precision}"
    return run.source_key, run["model"], f"{run['n_gpus']} x {run['gpu']}", batch


def _tuned(name: str, plans: Sequence[Sequence[Prediction]]) -> TunedGroup:
    features = [found for plan in plans if (found := features_of(plan[0]))]
    predicted = np.array([_mean(one.iteration_time_s for one in plan) for plan in plans])
    true = np.array([_mean(one.run.iteration_time_s for one in plan) for plan in plans])
    # A site begins with the posterior of the other sources' runs.
    known = posterior().without("source", features[0].groups[3])
    order, ends = tried(known, features, predicted, true)
    in_order = np.argsort(predicted, kind="stable").tolist()
    best_then = float(true[order[:ends]].min())
    return TunedGroup(
        name=name,
        n=len(plans),
        predicted_order=_runs_until_good(in_order, true),
        policy=_runs_until_good(order, true),
        predicted_order_known=_runs_until_known(known, features, predicted, true, in_order),
        policy_known=ends,
        regret=best_then / float(true.min()) - 1.0,
    )


def tried(
    posterior: Posterior, features: Sequence[ErrorFeatures], predicted: Array, true: Array
) -> tuple[list[int], int]:
    """All plans in the order in which the policy tries them, and the runs after which it stops."""
    measured: dict[int, float] = {}
    ends = None
    while True:
        advice = advised(plan_belief(posterior, features, predicted, measured), measured)
        if ends is None and advice.ends:
            ends = len(measured)
        if advice.next is None:
            return list(measured), len(measured) if ends is None else ends
        measured[advice.next] = float(true[advice.next])


def _runs_until_good(order: Sequence[int], true: Array) -> int:
    good = np.log(true / true.min()) <= log1p(WORTH)
    return 1 + next(place for place, plan in enumerate(order) if good[plan])


def _runs_until_known(
    posterior: Posterior,
    features: Sequence[ErrorFeatures],
    predicted: Array,
    true: Array,
    order: list[int],
) -> int:
    """Runs until the policy's stopping rule holds, if a run tells nothing about other plans."""
    drawn = plan_belief(posterior, features, predicted, {}).draws()
    for count in range(1, len(order)):
        worth = np.log(true[order[:count]].min()) + log1p(-WORTH)
        if np.mean(drawn[:, order[count:]].min(axis=1) < worth) < UNLIKELY:
            return count
    return len(order)


def _mean(seconds: Iterable[float | None]) -> float:
    """The geometric mean."""
    logs = np.log([one for one in seconds if one is not None])
    return exp(float(logs.mean()))


def lines(groups: Sequence[TunedGroup]) -> Iterator[str]:
    """A table, and the means of its columns."""
    yield "       until measured   until known"
    yield "plans  in order policy  in order policy  regret  group"
    for one in groups:
        yield (
            f"{one.n:>5} {one.predicted_order:>9} {one.policy:>6} {one.predicted_order_known:>9} "
            f"{one.policy_known:>6} {100 * one.regret:>5.1f} %  {one.name}"
        )
    columns = (
        "n", "predicted_order", "policy", "predicted_order_known", "policy_known", "regret",
    )  # fmt: skip
    *means, regret = (
        fsum(getattr(one, column) for one in groups) / max(len(groups), 1) for column in columns
    )
    n, *runs = (f"{mean:.2f}" for mean in means)
    found = " ".join(f"{run:>{width}}" for run, width in zip(runs, (9, 6, 9, 6), strict=True))
    yield f"{n:>5} {found} {100 * regret:>5.1f} %  mean of {len(groups)} groups"
    good = sum(one.regret <= WORTH for one in groups)
    yield f"within {WORTH:.0%} of the best when the policy ends: {good} of {len(groups)} groups"


def main() -> None:
    """Print every group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=PUBLISHED_RUNS)
    groups = list(tuned_groups(predict(run) for run in runs_in(parser.parse_args().data)))
    for line in lines(groups):
        print(line)


if __name__ == "__main__":
    main()
