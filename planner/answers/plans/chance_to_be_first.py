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
from planner.documents.answer import Contender, MeasureNext, Selection
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_storage as sites
from planner.evidence.uncertainty.beliefs import Belief, chances_fastest
from planner.evidence.uncertainty.error_band import (
    SURE,
    Comparison,
    belief_at,
    chance_above,
    comparison,
    posterior_at,
)
from planner.evidence.uncertainty.error_features import Array, ErrorFeatures, error_features
from planner.evidence.uncertainty.record import TOLD
from planner.evidence.uncertainty.site import source_of
from planner.search.outcome import Priced


def contenders(request: PlanRequest, first: Sequence[Priced]) -> tuple[Contender, ...]:
    """The first plans of a search for time, in its order."""
    if not first or request.search.objective == "memory_headroom":
        return ()
    middle, shared, noise = _distribution(request, first)
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
                iteration_time_s=priced.iteration_time_s,
                expected_time_s=float(expected[i]),
                chance_best=float(best[i]),
                chance_slower=slower,
                tie=i > 0 and 1.0 - SURE < slower < SURE,
            )
        )
    return tuple(found)


def selection(request: PlanRequest, first: Sequence[Priced]) -> Selection | None:
    """By how much the first of several close plans is likely to be slower than estimated.

    The minimum of uncertain estimates is first partly by its error.  The estimates are taken as
    true, errors are drawn for them as the posterior has them, and the error of whichever comes
    first is averaged (a parametric bootstrap; Efron 2011, Tweedie's formula and selection bias).
    None where the search is not for time, or saw one plan.  Plans that agree in all of TOLD have
    one error, so the fastest stands for them.
    """
    by_told: dict[tuple[object, ...], Priced] = {}
    for one in first:
        by_told.setdefault(tuple(getattr(one.plan, name) for name in TOLD), one)
    distinct = list(by_told.values())
    if len(distinct) < 2 or request.search.objective == "memory_headroom":
        return None
    middle, shared, noise = _distribution(request, distinct)
    drawn = Belief(middle, shared + np.diag(noise)).draws()
    errors = middle - drawn
    picked = errors[np.arange(len(drawn)), drawn.argmin(axis=1)]
    # The first plan's own errors are 0 on average, but for the few draws.
    share = float(np.expm1((picked - errors[:, 0]).mean()))
    seconds = first[0].iteration_time_s * (1.0 + share)
    return Selection(plans=len(distinct), share=share, expected_time_s=seconds)


def measure_next(request: PlanRequest, first: Sequence[Priced]) -> MeasureNext | None:
    """Which of the first plans to run, so that the times of all are known best; None for one."""
    if len(first) < 2 or request.search.objective == "memory_headroom":
        return None
    belief = belief_at(sites.site_of_request(request.site))
    (one,), left = belief.most_telling([_features(request, priced) for priced in first])
    return MeasureNext(id=plan_id(first[one].plan), plan=first[one].plan, left=left)


def _distribution(request: PlanRequest, first: Sequence[Priced]) -> tuple[Array, Array, Array]:
    """Logarithms of times, (n,), covariance of shared errors, (n, n), and variance of others."""
    features = [_features(request, priced) for priced in first]
    known = posterior_at(sites.site_of_request(request.site))
    middle = np.log([one.iteration_time_s for one in first])
    return middle, known.shared_covariance(features), known.plan_noise(features)


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
        (priced.iteration_time_s, _features(request, priced)) for priced in (one, other)
    )
    return comparison(mine, my_lean, theirs, their_lean, sites.site_of_request(request.site))


def _features(request: PlanRequest, priced: Priced) -> ErrorFeatures:
    source = source_of(request.site) if request.site else ""
    asked = request.model, request.cluster, request.training
    return error_features(*asked, priced.plan, priced.parts_s, source)
