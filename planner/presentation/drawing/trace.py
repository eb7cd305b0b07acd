"""A timeline as a Chrome trace, the JSON that Perfetto and chrome://tracing open.

One process, a thread per rank; times in microseconds.  Format: "Trace Event Format", the
complete (X), counter (C) and metadata (M) events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from planner.answers.pipelines import timeline_lanes
from planner.answers.pipelines.timeline import TimelineAnswer

_US = 1e6
_PROCESS = 1


def trace(answer: TimelineAnswer) -> str:
    """The trace as JSON text."""
    events = list(_events(answer))
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": answer.schedule,
            "size": timeline_lanes.headline(answer),
            "result": "; ".join([*timeline_lanes.facts(answer), *timeline_lanes.basis(answer)]),
        },
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"))


def _events(answer: TimelineAnswer) -> Iterator[dict[str, Any]]:
    yield _name("process_name", 0, name=f"{answer.title}: {timeline_lanes.headline(answer)}")
    for lane in timeline_lanes.lanes(answer):
        # Thread 0 stands for the process itself in some viewers.
        thread = lane.rank + 1
        yield _name("thread_name", thread, name=f"rank {lane.rank}")
        yield _name("thread_sort_index", thread, sort_index=lane.rank)
        yield from _steps(lane, thread)
        yield from _memory(lane)


def _memory(lane: timeline_lanes.Lane) -> Iterator[dict[str, Any]]:
    """Counter events of the activations held, one at every change."""
    last = 0.0
    for at, count in zip(lane.held_at_s.tolist(), lane.held.tolist(), strict=True):
        if count != last:
            yield {
                "ph": "C",
                "name": f"activations held, rank {lane.rank}",
                "pid": _PROCESS,
                "ts": at * _US,
                "args": {"activations": count},
            }
        last = count


def _name(kind: str, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": args}


def _steps(lane: timeline_lanes.Lane, thread: int) -> Iterator[dict[str, Any]]:
    names = list(timeline_lanes.KINDS.values())
    columns = (lane.kind, lane.micro_batch, lane.chunk, lane.start_s, lane.end_s)
    for kind, batch, chunk, start, end in zip(*(c.tolist() for c in columns), strict=True):
        event: dict[str, Any] = {
            "ph": "X",
            "name": names[kind] if kind == timeline_lanes.WAIT else f"{names[kind]} {batch}",
            "cat": names[kind],
            "pid": _PROCESS,
            "tid": thread,
            "ts": start * _US,
            "dur": (end - start) * _US,
        }
        if kind != timeline_lanes.WAIT:
            event["args"] = {"micro_batch": batch, "chunk": chunk}
        yield event
