"""One question of a sweep: from a request's document to a flat result."""

from __future__ import annotations

from typing import Any, Literal

from cost_models.plans import ParallelPlan
from planner.answers.plans.competition import fastest
from planner.answers.plans.explain import report
from planner.answers.plans.limit_conflicts import limit_conflicts
from planner.answers.plans.plan_answers import IllegalPlan, estimate
from planner.documents.plan_report import Document, PlanReport
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import SpaceTooLarge, cost_model
from planner.search.memory_reasons import memory_reason, memory_reasons

Outcome = Literal[
    "fits",
    "nothing_fits",
    "does_not_fit",
    "illegal",
    "bad_input",
    "space_too_large",
    "failed",
    "not_asked",
]
# Phrases that follow a count such as "12 requests".
OUTCOMES: dict[Outcome, str] = {
    "fits": "with a plan that fits",
    "nothing_fits": "where nothing fits",
    "does_not_fit": "whose plan does not fit",
    "illegal": "whose plan cannot run",
    "bad_input": "with bad input",
    "space_too_large": "whose search is too large",
    "failed": "that the planner failed at (please report)",
    "not_asked": "not asked yet",
}


class Result(Document):
    """The part of an answer that a sweep keeps: the plan and its figures, or why there is none.

    plan: the best plan, or the request's own.  iteration_time_low_s and _high_s: the error band.
    """

    outcome: Outcome
    accelerators: int | None = None
    num_micro_batches: int | None = None
    iteration_time_s: float | None = None
    iteration_time_low_s: float | None = None
    iteration_time_high_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_accelerator: float | None = None
    mfu: float | None = None
    peak_bytes: float | None = None
    capacity_bytes: float | None = None
    days: float | None = None
    cost_usd: float | None = None
    energy_kwh: float | None = None
    plan: ParallelPlan | None = None
    reason: str | None = None


def ask(document: dict[str, Any]) -> Result:
    """The result of one request; problems of the request are also returned as a result."""
    try:
        return _answer(parse_request(document))
    except RequestError as error:
        return Result(outcome="bad_input", reason="; ".join(map(str, error.problems)))
    except IllegalPlan as error:
        return Result(outcome="illegal", reason=str(error))
    except SpaceTooLarge as error:
        return Result(outcome="space_too_large", reason=str(error))
    except Exception as error:  # an internal error in one question must not end the others
        return Result(outcome="failed", reason=f"{type(error).__name__}: {error}")


def _answer(request: PlanRequest) -> Result:
    if request.plan is not None:
        priced = estimate(request, request.plan).estimate
        return _figures(request, priced, "fits" if priced.fits else "does_not_fit")
    # The same as plan_answers.find, without the Pareto front, the baseline and the launch files.
    outcome = fastest(request).outcome
    model = cost_model(request)
    if outcome.best:
        return _figures(request, report(model, request, outcome.best[0]), "fits")
    if outcome.nearest:
        nearest = report(model, request, outcome.nearest[0])
        reason = "; ".join(r.text for r in memory_reasons(request, nearest))
    else:
        assert outcome.counts is not None
        conflicts = [r.text for r in limit_conflicts(request)]
        reasons = conflicts or outcome.counts.examples.values()
        reason = "no plan is legal: " + "; ".join(reasons)
    accelerators = request.cluster.accelerators
    return Result(outcome="nothing_fits", reason=reason, accelerators=accelerators)


def _figures(request: PlanRequest, report: PlanReport, outcome: Outcome) -> Result:
    return Result.of(
        report,
        outcome=outcome,
        reason=None if report.fits else memory_reason(report).text,
        accelerators=request.cluster.accelerators,
        iteration_time_low_s=report.error_band.low_s,
        iteration_time_high_s=report.error_band.high_s,
        peak_bytes=report.memory.peak_bytes,
        capacity_bytes=report.memory.capacity_bytes,
    )
