"""All pipeline schedules side by side: the same work per rank, the same links."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import PipelineSchedule
from cost_models.schedules.simulate import FloatArray, Links, Times, simulate
from cost_models.sources import SOURCES
from planner import frameworks
from planner.answers.pipelines import timeline
from planner.documents.plan_report import Document
from planner.documents.request import PlanRequest

# Where a schedule takes any number of chunks.
_USUAL_CHUNKS = (2, 4)


class ComparisonRequest(timeline.PipelineTimes):
    """A pipeline to compare schedules on: a rank's work is `chunks` times the given seconds."""

    chunks: Annotated[int, Field(ge=1, le=64)] = 1


class ScheduleRow(Document):
    """One schedule with one number of chunks; without times where it cannot run, for `reason`.

    peak_in_flight: of the worst rank; 1 is what one micro-batch leaves on it.
    """

    schedule: str
    title: str
    chunks: int
    reason: str
    makespan_s: float | None
    bubble_of_total: float | None
    peak_in_flight: float | None
    freed_at: str
    weight_copies: float
    messages_per_micro_batch: int | None
    synchronous: bool
    staleness: str
    frameworks: tuple[str, ...]
    citation: str


class ComparisonAnswer(Document):
    """The answer to `planner compare-schedules`: fastest first, then those that cannot run."""

    stages: int
    micro_batches: int
    ideal_s: float
    schedules: tuple[ScheduleRow, ...]


def parse_comparison(document: Any) -> ComparisonRequest:
    """The request of a user's document.  Raises RequestError with every problem found."""
    return timeline.read_pipeline(document, ComparisonRequest)


def compare_schedules(request: ComparisonRequest) -> ComparisonAnswer:
    """Every schedule on equal stages."""
    share = Times.equal(
        request.stages,
        1,
        request.chunks * request.forward_s,
        request.chunks * request.input_grad_s,
        request.chunks * request.weight_grad_s,
    )
    return compare(
        request.stages, request.micro_batches, share, request.links, chunks=request.chunks
    )


def compare_for_plan(
    request: PlanRequest, plan: ParallelPlan, times: Times, links: Links
) -> ComparisonAnswer:
    """Every schedule on the pipeline of a legal plan, with what its ranks take."""
    micro_batches = plan.micro_batches(request.training.global_batch_size)
    schedule = timeline.find_schedule(plan.schedule)
    routes = [schedule.route(plan.pp, plan.vpp, m) for m in range(micro_batches)]
    share = timeline.per_micro_batch(times, routes)
    return compare(plan.pp, micro_batches, share, links, chunks=plan.vpp)


def compare(
    stages: int, micro_batches: int, share: Times, links: Links, chunks: int = 1
) -> ComparisonAnswer:
    """Every schedule with the same work.

    share: seconds of one micro-batch per rank, shape (stages, 1); each schedule splits it evenly
    over the chunks that a micro-batch passes there.  chunks: tried beside the usual numbers.
    """
    rows = [
        _row(schedule, stages, count, micro_batches, share, links)
        for schedule in SCHEDULES.values()
        for count in _chunk_counts(schedule, chunks)
    ]
    ranked = sorted(rows, key=lambda row: float("inf") if (s := row.makespan_s) is None else s)
    return ComparisonAnswer(
        stages=stages,
        micro_batches=micro_batches,
        ideal_s=micro_batches * float(share.work_s.max()),
        schedules=tuple(ranked),
    )


def _chunk_counts(schedule: PipelineSchedule, chunks: int) -> tuple[int, ...]:
    if schedule.chunk_counts:
        return schedule.chunk_counts
    return tuple(sorted({*_USUAL_CHUNKS, max(2, chunks)}))


def _row(
    schedule: PipelineSchedule,
    stages: int,
    chunks: int,
    micro_batches: int,
    share: Times,
    links: Links,
) -> ScheduleRow:
    reason = timeline.why_not(schedule, stages, chunks, micro_batches) or timeline.too_large(
        schedule, stages, chunks, micro_batches
    )
    ranks = np.arange(stages, dtype=np.float64)
    facts: dict[str, Any] = {
        "schedule": schedule.id,
        "chunks": chunks,
        "reason": reason,
        "weight_copies": float(np.max(schedule.weight_copies(ranks, float(stages)))),
        "frameworks": frameworks.running(schedule.id),
        "citation": SOURCES.get(schedule.citation, schedule.citation),
    }
    if reason:
        return ScheduleRow.of(
            schedule, **facts, makespan_s=None, bubble_of_total=None, peak_in_flight=None,
            messages_per_micro_batch=None,
        )  # fmt: skip
    parts = timeline.visits(schedule, stages, chunks)

    def split(seconds: FloatArray) -> FloatArray:
        return np.repeat(seconds / parts, chunks, axis=1)

    times = Times(
        split(share.forward_s), split(share.input_gradient_s), split(share.weight_gradient_s)
    )
    result = simulate(schedule, stages, chunks, micro_batches, times, links)
    ideal_s = micro_batches * float(share.work_s.max())
    return ScheduleRow.of(
        schedule,
        **facts,
        makespan_s=result.makespan_s,
        bubble_of_total=max(0.0, 1.0 - ideal_s / result.makespan_s),
        peak_in_flight=float(result.peak_units.max()),
        messages_per_micro_batch=schedule.messages(stages, chunks),
    )
