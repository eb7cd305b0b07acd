"""The first plans of a search compared: the chance of each to be the fastest.

Their times are estimates, but errors that they share cancel
(planner/evidence/uncertainty/posterior.py): plans that spend their time on the same links can be
told apart by a smaller difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from planner.answers.plans.explain import plan_id
from planner.documents.answer import Contender
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_storage as sites
from planner.evidence.uncertainty.beliefs import Belief, chances_fastest
from planner.evidence.uncertainty.error_band import (
    SURE,
    Comparison,
    chance_above,
    comparison,
    known_to,
)
from planner.evidence.uncertainty.error_features import ErrorFeatures, error_features
from planner.evidence.uncertainty.site import source_of
from planner.search.outcome import Priced


def contenders(request: PlanRequest, first: Sequence[Priced]) -> tuple[Contender, ...]:
    """The first plans of a search for time, in its order."""
    if not first or request.search.objective == "memory_headroom":
        return ()
    seconds = np.array([sum(priced.parts_s.values()) for priced in first])
    features = [_features(request, priced) for priced in first]
    known = known_to(sites.site_of_request(request.site))
    shared, noise = known.shared_covariance(features), known.plan_noise(features)
    middle = np.log(seconds)
    best = chances_fastest(Belief(middle, shared + np.diag(noise)).draws())
    expected = np.exp(middle + 0.5 * (np.diag(shared) + noise))
    found = []
    for i, priced in enumerate(first):
        apart = shared[0, 0] + shared[i, i] - 2.0 * shared[0, i] + noise[0] + noise[i]
        slower = chance_above(float(middle[i] - middle[0]), sqrt(apart)) if i else 0.5
        found.append(
            Contender(
                id=plan_id(priced.plan),
                plan=priced.plan,
                iteration_time_s=float(seconds[i]),
                expected_time_s=float(expected[i]),
                chance_best=float(best[i]),
                chance_slower=slower,
                tie=i > 0 and 1.0 - SURE < slower < SURE,
            )
        )
    return tuple(found)


def best_expected(contenders: Sequence[Contender]) -> str | None:
    """The id of the plan with the lowest expected time, if that is not the first plan."""
    if not contenders:
        return None
    best = min(contenders, key=lambda one: one.expected_time_s)
    return None if best is contenders[0] else best.id


def compared(request: PlanRequest, one: PlanReport, other: PlanReport) -> Comparison:
    """The speedup of the first of two plans of a request, and the chance that it is faster."""
    priced = (Priced(report.plan, report.time_parts_s) for report in (one, other))
    return compared_prices(request, *priced)


def compared_prices(request: PlanRequest, one: Priced, other: Priced) -> Comparison:
    """As `compared`, for plans whose times alone are known."""
    (mine, my_lean), (theirs, their_lean) = (
        (sum(priced.parts_s.values()), _features(request, priced)) for priced in (one, other)
    )
    return comparison(mine, my_lean, theirs, their_lean, sites.site_of_request(request.site))


def _features(request: PlanRequest, priced: Priced) -> ErrorFeatures:
    source = source_of(request.site) if request.site else ""
    asked = request.model, request.cluster, request.training
    return error_features(*asked, priced.plan, priced.parts_s, source)
