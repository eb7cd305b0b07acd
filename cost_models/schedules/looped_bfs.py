"""Breadth-first (looped BFS): all micro-batches through one chunk, then through the next.

Lamy-Poirier, arXiv 2211.05953, section 4.  Backwards run the forwards' order in reverse.
"""

from __future__ import annotations

from cost_models.schedules.base import Action, Kind, Order, PipelineSchedule, loop_messages
from cost_models.schedules.gpipe import all_in_flight
from cost_models.schedules.interleaved import INTERLEAVED


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Every rank: forwards chunk after chunk, then backwards from the last forward to the first."""
    ways = [(batch, chunk) for chunk in range(chunks) for batch in range(micro_batches)]
    forwards = tuple(Action(Kind.FORWARD, batch, chunk) for batch, chunk in ways)
    backwards = tuple(Action(Kind.BACKWARD, batch, chunk) for batch, chunk in reversed(ways))
    return (forwards + backwards,) * stages


LOOPED_BFS = PipelineSchedule(
    id="looped-bfs",
    title="Breadth-first (looped BFS)",
    citation="looped-bfs",
    extra_s=INTERLEAVED.extra_s,
    holds="always",
    in_flight=all_in_flight,
    allowed=lambda stages, chunks, micro_batches: "",
    order=order,
    # Between its chunks a rank works on other micro-batches.
    shown_messages=lambda stages, chunks: loop_messages(stages, 1),
    chunk_counts=(),
    keeps_all=True,
)
