"""The report of a validation: predicted and measured values, compared within a tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from cost_models.overheads import workspace_bytes
from cost_models.runtimes.torch import RUNTIME
from planner.documents.answer import ProfileInfo
from planner.documents.formats import seconds, share, size
from planner.documents.plan_report import Answer, Document, PlanReport
from planner.documents.request import PlanRequest
from planner.running.validate.rank_estimate import expected
from planner.running.validate.run_files import PARTS, RankResult

Verdict = Literal["within", "outside", "inside the noise"]

GRADIENT_TOLERANCE = 1e-4  # relative; allows for a different order of fp32 sums in one step


class Tolerance(Document):
    """The relative errors allowed for a prediction."""

    time: Annotated[float, Field(gt=0, le=10)] = 0.20
    memory: Annotated[float, Field(gt=0, le=10)] = 0.03


class Spread(Document):
    """The spread of repeated steps in seconds; each counts as long as its slowest rank."""

    median: float
    p10: float
    p90: float
    n: int


class Term(Document):
    """One part of time (seconds, of the busiest rank) or memory (bytes, of the fullest rank)."""

    name: str
    predicted: float
    measured: float


class Outcome(Document):
    """One comparison: its verdict, with the reason in a sentence."""

    verdict: Verdict
    why: str


class ValidationReport(Answer):
    """Predictions and measurements of a plan.

    Both are of the plan that really ran; scaled_from: the fields' values before scaling down.
    predictions_s: iteration time by efficiency profile; with a calibrated one, also without it.
    gradient_max_relative_error: the largest |g - r| / |r| over parameters, r from one process; None
    if not asked for.
    """

    profile: ProfileInfo
    predicted_iteration_time_s: float
    measured_iteration_time_s: Spread
    predicted_peak_bytes: float
    measured_peak_bytes: float
    gradient_max_relative_error: float | None
    verdict: Verdict
    environment: dict[str, Any]
    scaled_from: dict[str, Any]
    caveats: tuple[str, ...]
    outcomes: dict[str, Outcome]
    tolerance: Tolerance
    predictions_s: dict[str, float]
    time_terms: tuple[Term, ...]
    memory_terms: tuple[Term, ...]
    gradient_worst_parameter: str | None
    losses: tuple[float, ...]
    ranks: tuple[RankResult, ...]


def spread(ranks: Sequence[RankResult]) -> Spread:
    """The timed steps of a run, each as long as its slowest rank."""
    steps = np.max([rank.step_s for rank in ranks], axis=0)
    low, middle, high = np.percentile(steps, [10, 50, 90])
    return Spread(median=float(middle), p10=float(low), p90=float(high), n=len(steps))


def time_terms(estimate: PlanReport, ranks: Sequence[RankResult], median_s: float) -> list[Term]:
    """The parts of the busiest rank's step time, from profiled steps scaled to unprofiled ones."""
    passes = ("forward", "backward")
    busiest = max(ranks, key=lambda rank: sum(rank.parts_s.get(name, 0.0) for name in passes))
    scale = median_s / busiest.profiled_step_s if busiest.profiled_step_s else 0.0
    return [
        Term(
            name=name,
            predicted=sum(estimate.time_parts_s.get(part, 0.0) for part in parts),
            measured=scale * busiest.parts_s.get(name, 0.0),
        )
        for name, parts in PARTS.items()
    ]


def fullest(ranks: Sequence[RankResult]) -> RankResult:
    """The rank with the highest memory peak."""
    return max(ranks, key=measured_peak_bytes)


def measured_peak_bytes(rank: RankResult) -> float:
    """The peak of a GPU's allocator; on a CPU, the peak of tensors."""
    tensors = rank.amounts.peak_bytes if rank.amounts else 0
    return float(rank.allocator_peak_bytes or tensors)


def memory_terms(request: PlanRequest, rank: RankResult) -> list[Term]:
    """Bytes of a rank's tensors by use, with the estimate for its stage; the peak comes last."""
    plan = request.named_plan
    assert rank.amounts is not None
    # Stages are the outermost axis of the mesh.
    estimate = expected(request, rank.rank * plan.pp // rank.ranks).amounts.model_dump()
    for name in ("working_bytes", "peak_bytes"):
        estimate[name] -= float(workspace_bytes(RUNTIME.gemm_workspaces))  # not held in tensors
    return [
        Term(
            name=name.removesuffix("_bytes"),
            predicted=float(estimate[name]),
            measured=float(measured),
        )
        for name, measured in rank.amounts.model_dump().items()
    ]


def judge_time(predicted_s: float, measured: Spread, tolerance: float) -> Outcome:
    """Within if p10 to p90 lies wholly inside the tolerance, outside if wholly outside it.

    Otherwise the repeats scatter too widely to tell, which never counts as a pass.
    """
    low, high = predicted_s / (1 + tolerance), predicted_s / (1 - min(tolerance, 0.999))
    miss = predicted_s / measured.median - 1
    text = (
        f"predicted {seconds(predicted_s)}, measured {seconds(measured.median)} "
        f"({seconds(measured.p10)} to {seconds(measured.p90)}, {measured.n} steps): "
        f"{share(abs(miss))} too {'long' if miss > 0 else 'short'}, allowed {share(tolerance)}"
    )
    if low <= measured.p10 and measured.p90 <= high:
        return Outcome(verdict="within", why=text)
    if measured.p90 < low or measured.p10 > high:
        return Outcome(verdict="outside", why=text)
    return Outcome(verdict="inside the noise", why=f"{text}; the repeats scatter across that line")


def judge_memory(predicted_bytes: float, measured_bytes: float, tolerance: float) -> Outcome:
    """Within if the error of the predicted peak is not above the tolerance."""
    miss = predicted_bytes / measured_bytes - 1
    text = (
        f"predicted {size(predicted_bytes)}, measured {size(measured_bytes)}: {share(abs(miss))} "
        f"too {'much' if miss > 0 else 'little'}, allowed {share(tolerance)}"
    )
    return Outcome(verdict="within" if abs(miss) <= tolerance else "outside", why=text)


def judge_gradients(errors: Mapping[str, float]) -> Outcome:
    """Within if every gradient equals that of one process up to the order of fp32 sums."""
    name, worst = max(errors.items(), key=lambda item: item[1])
    text = (
        f"{len(errors)} gradients against one process: relative error at most {worst:.1e} ({name})"
        f", allowed {GRADIENT_TOLERANCE:g}"
    )
    return Outcome(verdict="within" if worst <= GRADIENT_TOLERANCE else "outside", why=text)


def named_term(terms: Sequence[Term], format_value: Any) -> str:
    """A sentence on the term with the largest error."""
    off = max(terms, key=lambda term: abs(term.measured - term.predicted))
    was, is_ = format_value(off.predicted), format_value(off.measured)
    return f"most of it in {off.name}, predicted {was} and measured {is_}"


def overall(outcomes: Mapping[str, Outcome]) -> Verdict:
    """The worst verdict of all outcomes."""
    verdicts = {outcome.verdict for outcome in outcomes.values()}
    order: tuple[Verdict, ...] = ("outside", "inside the noise", "within")
    return next(verdict for verdict in order if verdict in verdicts)
