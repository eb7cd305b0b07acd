"""Breadth-first (looped BFS): all micro-batches through one chunk, then through the next.

Lamy-Poirier, arXiv 2211.05953, section 4.  Backwards run the forwards' order in reverse.
"""

from __future__ import annotations

from cost_models.schedules import routes
from cost_models.schedules.base import Action, Costs, Kind, Order, PipelineSchedule
from cost_models.schedules.gpipe import all_in_flight, chain_messages, one_copy
from cost_models.schedules.interleaved import looped_extra_s
from cost_models.sources import Array


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Every rank: forwards chunk after chunk, then backwards from the last forward to the first."""
    ways = [(batch, chunk) for chunk in range(chunks) for batch in range(micro_batches)]
    forwards = tuple(Action(Kind.FORWARD, batch, chunk) for batch, chunk in ways)
    backwards = tuple(Action(Kind.BACKWARD, batch, chunk) for batch, chunk in reversed(ways))
    return (forwards + backwards,) * stages


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    work_s = costs.forward_s + costs.input_gradient_s + costs.weight_gradient_s
    return looped_extra_s(work_s, costs.others_s, chunks, micro_batches)


LOOPED_BFS = PipelineSchedule(
    id="looped-bfs",
    title="Breadth-first (looped BFS)",
    citation="looped-bfs",
    extra_s=_extra_s,
    holds="always",
    in_flight=all_in_flight,
    weight_copies=one_copy,
    messages=chain_messages,
    allowed=lambda stages, chunks, micro_batches: "",
    route=routes.loop,
    order=order,
    chunk_counts=(),
    keeps_all=True,
)
