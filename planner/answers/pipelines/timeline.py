"""When each rank of a pipeline does what: a schedule run with given times, as one document.

The same document is drawn (`planner.presentation.drawing`), printed by `planner timeline --json`
and sent by POST /v1/timelines.  Orders, closed forms and the clock are those of
`cost_models.schedules`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field, ValidationError

from cost_models.catalog.names import UnknownName, resolve
from cost_models.fields import Spec
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Costs, Kind, PipelineSchedule, Route
from cost_models.schedules.simulate import (
    IDLE_CAUSES,
    FloatArray,
    Links,
    Simulation,
    Times,
    simulate,
)
from cost_models.sources import SOURCES
from planner import frameworks
from planner.documents.plan_report import Document
from planner.documents.problems import RequestError, from_validation, refuse, shown
from planner.documents.request import PlanRequest
from planner.documents.typed_values import plain_object

MOST_STAGES = 256
MOST_ACTIONS = 400_000
FREE = Links()  # messages that take no time
LETTERS: dict[Kind, Literal["F", "B", "I", "W"]] = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.INPUT_GRADIENT: "I",
    Kind.WEIGHT_GRADIENT: "W",
}

# From a nanosecond to eleven days: beyond, the axis of a picture has no sensible numbers.
Duration = Annotated[float, Field(ge=1e-9, le=1e6)]
Delay = Annotated[float, Field(ge=0, le=1e6)]


class PipelineTimes(Spec):
    """A pipeline of equal stages: how long, how much work, and how slow its messages."""

    stages: Annotated[int, Field(ge=1, le=MOST_STAGES, description="pipeline ranks")]
    micro_batches: Annotated[int, Field(ge=1, le=MOST_ACTIONS, description="of one step")]
    forward_s: Annotated[Duration, Field(description="forward of one chunk")]
    input_grad_s: Annotated[Duration, Field(description="gradient of one chunk's input")]
    weight_grad_s: Annotated[
        Delay, Field(description="gradient of one chunk's weights; 0: in the one of the input")
    ]
    p2p_s: Annotated[Delay, Field(description="latency of a message between ranks")] = 0.0
    p2p_transfer_s: Annotated[
        Delay, Field(description="a message keeps its link busy for this long")
    ] = 0.0
    blocking: Annotated[bool, Field(description="a sender waits until its message is out")] = False

    @property
    def links(self) -> Links:
        return Links(self.p2p_s, self.p2p_transfer_s, self.blocking)


P = TypeVar("P", bound=PipelineTimes)


class TimelineRequest(PipelineTimes):
    """One schedule on a pipeline of equal stages."""

    schedule: Annotated[str, Field(description=f"one of {', '.join(SCHEDULES)}")]
    chunks: Annotated[
        int | None,
        Field(ge=1, le=64, description="model chunks per rank; default: the schedule's fewest"),
    ] = None


@dataclass(frozen=True, slots=True)
class TimelineAction:
    """One step of one rank: forward, backward (both gradients), or one gradient alone."""

    kind: Literal["F", "B", "I", "W"]
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank idles for a message under way, or until its own is out."""

    start_s: float
    end_s: float


class TimelineAnswer(Document):
    """The answer to `planner timeline` and POST /v1/timelines.

    ideal_s: the work of the busiest rank; bubble_of_total: the share of makespan_s that is not.
    closed_form_extra_s: makespan less ideal by the schedule's formula, for messages that take no
    time; None: it has none here.  All other numbers are the simulator's.
    peak_in_flight, in_flight: activations a rank holds, at most and after each of its actions; 1
    is what one micro-batch leaves on it.  idle_s: per rank, by cause; with the time of its
    actions it makes makespan_s.
    """

    schedule: str
    title: str
    stages: int
    micro_batches: int
    chunks: int
    makespan_s: float
    ideal_s: float
    bubble_of_total: float
    closed_form_extra_s: float | None
    holds: str
    max_stage_span_s: float
    peak_in_flight: tuple[float, ...]
    freed_at: str
    idle_s: tuple[dict[str, float], ...]
    messages_per_micro_batch: int
    synchronous: bool
    staleness: str
    frameworks: tuple[str, ...]
    citation: str
    actions: tuple[tuple[TimelineAction, ...], ...]
    waits: tuple[tuple[Wait, ...], ...]
    in_flight: tuple[tuple[float, ...], ...]


def parse_timeline(document: Any) -> TimelineRequest:
    """The request of a user's document.  Raises RequestError with every problem found."""
    return read_pipeline(document, TimelineRequest)


def read_pipeline(document: Any, model: type[P]) -> P:
    """A document as this kind of pipeline, read strictly: a string is never a number."""
    document = plain_object(document)
    try:
        return model.model_validate(document, strict=True)
    except ValidationError as error:
        raise RequestError(from_validation(error, "", document, model)) from None


def timeline(request: TimelineRequest) -> TimelineAnswer:
    """Run a schedule on equal stages; RequestError where it cannot run so."""
    schedule = find_schedule(request.schedule)
    chunks = request.chunks or fewest_chunks(schedule)
    _require_legal(schedule, request.stages, chunks, request.micro_batches)
    if reason := too_large(schedule, request.stages, chunks, request.micro_batches):
        raise refuse("/micro_batches", "too_large", reason, request.micro_batches)
    times = Times.equal(
        request.stages, chunks, request.forward_s, request.input_grad_s, request.weight_grad_s
    )
    return simulate_timeline(
        schedule, request.stages, chunks, request.micro_batches, times, request.links
    )


def timeline_of_plan(
    request: PlanRequest, plan: ParallelPlan, times: Times, links: Links
) -> TimelineAnswer:
    """A legal plan's schedule, run with the plan's own times per rank and chunk."""
    schedule = find_schedule(plan.schedule)
    micro_batches = plan.micro_batches(request.training.global_batch_size)
    if reason := too_large(schedule, plan.pp, plan.vpp, micro_batches):
        raise refuse("/training/global_batch_size", "too_large", reason)
    return simulate_timeline(schedule, plan.pp, plan.vpp, micro_batches, times, links)


def simulate_timeline(
    schedule: PipelineSchedule,
    stages: int,
    chunks: int,
    micro_batches: int,
    times: Times,
    links: Links = FREE,
) -> TimelineAnswer:
    """Run a schedule that is allowed, and say all that can be said of it."""
    result = simulate(schedule, stages, chunks, micro_batches, times, links)
    routes = [schedule.route(stages, chunks, m) for m in range(micro_batches)]
    share = per_micro_batch(times, routes)
    ideal_s = micro_batches * float(share.work_s.max())
    waits = _waits(result, routes, links)
    idle = [dict(zip(IDLE_CAUSES, row, strict=True)) for row in result.idle_s.tolist()]
    for causes, rank in zip(idle, waits, strict=True):
        causes["communication"] = sum(wait.end_s - wait.start_s for wait in rank)
    return TimelineAnswer.of(
        schedule,
        schedule=schedule.id,
        stages=stages,
        micro_batches=micro_batches,
        chunks=chunks,
        makespan_s=result.makespan_s,
        ideal_s=ideal_s,
        bubble_of_total=max(0.0, 1.0 - ideal_s / result.makespan_s),
        closed_form_extra_s=_closed_form_s(schedule, stages, chunks, micro_batches, share),
        max_stage_span_s=float(result.span_s.max()),
        peak_in_flight=tuple(result.peak_units.tolist()),
        idle_s=tuple(idle),
        messages_per_micro_batch=schedule.messages(stages, chunks),
        frameworks=frameworks.running(schedule.id),
        citation=SOURCES.get(schedule.citation, schedule.citation),
        actions=_actions(result),
        waits=waits,
        in_flight=tuple(tuple(row.tolist()) for row in result.held_units),
    )


def find_schedule(name: str) -> PipelineSchedule:
    """The schedule of this name; RequestError with the nearest where there is none."""
    try:
        return SCHEDULES[resolve(name, {key: key for key in SCHEDULES}, "schedule")]
    except UnknownName as error:
        raise refuse(
            "/schedule",
            "unknown_name",
            f"no schedule {shown(name)!r}; there are {', '.join(SCHEDULES)}",
            name,
            did_you_mean=error.nearest,
        ) from None


def fewest_chunks(schedule: PipelineSchedule) -> int:
    """The least number of chunks per rank that a schedule can have."""
    return min(schedule.chunk_counts, default=2)


def visits(schedule: PipelineSchedule, stages: int, chunks: int) -> int:
    """Chunks of one rank that a micro-batch passes: fewer than all where it has a direction."""
    return len(schedule.route(stages, chunks, 0)) // stages


def too_large(schedule: PipelineSchedule, stages: int, chunks: int, micro_batches: int) -> str:
    """Why an allowed timeline is more than one answer holds; "" where it is not."""
    steps = 3 if schedule.splits_backward else 2
    actions = stages * visits(schedule, stages, chunks) * micro_batches * steps
    if actions <= MOST_ACTIONS:
        return ""
    return f"makes {actions:,} actions on {stages} ranks; at most {MOST_ACTIONS:,} are simulated"


def why_not(schedule: PipelineSchedule, stages: int, chunks: int, micro_batches: int) -> str:
    """Why a schedule cannot run so; "" where it can."""
    return _why_not_chunks(schedule, chunks) or schedule.allowed(stages, chunks, micro_batches)


def _why_not_chunks(schedule: PipelineSchedule, chunks: int) -> str:
    counts = schedule.chunk_counts
    if chunks in counts or (not counts and chunks >= 2):
        return ""
    number = _or(counts) if counts else "at least 2"
    return f"{schedule.id} has {number} chunk{'s' * (counts != (1,))} per rank"


def _require_legal(
    schedule: PipelineSchedule, stages: int, chunks: int, micro_batches: int
) -> None:
    if reason := _why_not_chunks(schedule, chunks):
        raise refuse("/chunks", "not_allowed", reason, chunks, allowed=schedule.chunk_counts)
    reason = schedule.allowed(stages, chunks, micro_batches)
    if not reason:
        return
    # The reason is a sentence; which number to change shows in what else would be allowed.
    near = sorted(range(1, micro_batches + 4 * stages + 1), key=lambda m: abs(m - micro_batches))
    could = [m for m in near[: 16 * MOST_STAGES] if not schedule.allowed(stages, chunks, m)]
    if could:
        detail = f"{reason}; {_or(sorted(could[:2]))} would do"
        raise refuse("/micro_batches", "schedule_micro_batches", detail, micro_batches)
    raise refuse("/stages", "not_allowed", reason, stages)


def _or(values: tuple[int, ...] | list[int]) -> str:
    return " or ".join(map(str, values))


def per_micro_batch(times: Times, routes: list[Route]) -> Times:
    """Seconds of an average micro-batch per rank, shape (ranks, 1).

    Where micro-batches go two ways, not every one passes every chunk of a rank.
    """
    passes = np.zeros_like(times.forward_s)
    for route, count in Counter(routes).items():
        for spot in route:
            passes[spot] += count / len(routes)

    def of(seconds: FloatArray) -> FloatArray:
        total: FloatArray = (seconds * passes).sum(axis=1, keepdims=True)
        return total

    return Times(of(times.forward_s), of(times.input_gradient_s), of(times.weight_gradient_s))


def _closed_form_s(
    schedule: PipelineSchedule, stages: int, chunks: int, micro_batches: int, share: Times
) -> float | None:
    if schedule.extra_s is None:
        return None
    work = share.work_s
    busiest = int(np.argmax(work))
    costs = Costs(
        float(share.forward_s[busiest, 0]),
        float(share.input_gradient_s[busiest, 0]),
        float(share.weight_gradient_s[busiest, 0]),
        float(work.sum() - work[busiest]),
    )
    extra_s = float(schedule.extra_s(costs, float(stages), float(chunks), float(micro_batches)))
    return extra_s if math.isfinite(extra_s) else None  # not a number: outside of its region


def _actions(result: Simulation) -> tuple[tuple[TimelineAction, ...], ...]:
    return tuple(
        tuple(
            TimelineAction(LETTERS[kind], micro_batch, chunk, start, end)
            for (kind, micro_batch, chunk), start, end in zip(
                order, starts.tolist(), ends.tolist(), strict=True
            )
        )
        for order, starts, ends in zip(result.order, result.start_s, result.end_s, strict=True)
    )


def _sent(result: Simulation) -> Iterator[tuple[int, Kind, int, int, float]]:
    """(rank, kind, micro-batch, chunk, end in s) of every action that sends its result on."""
    for rank, (order, ends) in enumerate(zip(result.order, result.end_s, strict=True)):
        for (kind, batch, chunk), end in zip(order, ends.tolist(), strict=True):
            if kind != Kind.WEIGHT_GRADIENT:
                yield rank, kind, batch, chunk, end


def _waits(result: Simulation, routes: list[Route], links: Links) -> tuple[tuple[Wait, ...], ...]:
    """When each rank waits for messages, in order.

    An idle rank waits for the message from when the sender's action has ended; before, it waits
    for the sender.  Before its first action it only waits for the pipeline to fill.  A blocking
    sender also waits until its own message is out, and then finds its link free.
    """
    if links.latency_s == links.transfer_s == 0:
        return tuple(() for _ in result.order)
    kinds: dict[Route, int] = {}
    way = [kinds.setdefault(route, len(kinds)) for route in routes]
    spots = list(kinds)
    place = [{spot: i for i, spot in enumerate(route)} for route in spots]
    last = len(routes[0]) - 1
    # When the message of (micro-batch, position) was ready to leave, forward and backward.
    ready = ([[0.0] * (last + 1) for _ in routes], [[0.0] * (last + 1) for _ in routes])
    for rank, kind, batch, chunk, end in _sent(result):
        ready[kind != Kind.FORWARD][batch][place[way[batch]][rank, chunk]] = end
    hold_s = links.transfer_s if links.blocking else 0.0
    rounding_s = 1e-12 * result.makespan_s

    def of_rank(rank: int) -> Iterator[Wait]:
        def elsewhere(batch: int, position: int) -> bool:
            return 0 <= position <= last and spots[way[batch]][position][0] != rank

        free = float(result.start_s[rank][0])
        starts, ends = result.start_s[rank].tolist(), result.end_s[rank].tolist()
        for (kind, batch, chunk), start, end in zip(result.order[rank], starts, ends, strict=True):
            idle_since, free = free, end
            if kind == Kind.WEIGHT_GRADIENT:
                continue
            step, position = -1 if kind == Kind.FORWARD else 1, place[way[batch]][rank, chunk]
            if start > idle_since and elsewhere(batch, position + step):
                since = max(idle_since, ready[kind != Kind.FORWARD][batch][position + step])
                if start - since > rounding_s:
                    yield Wait(since, start)
            if hold_s and elsewhere(batch, position - step):
                free = end + hold_s
                yield Wait(end, free)

    return tuple(tuple(of_rank(rank)) for rank in range(len(result.order)))
