"""GPipe: all forwards, then all backwards (arXiv 1811.06965, section 2)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules.base import Action, Costs, Kind, Order, PipelineSchedule
from cost_models.sources import Array, formula


@formula("s", "gpipe", "megatron-2")
def fill_drain_extra_s(others_s: Array, chunks: Array) -> Array:
    """Seconds the busiest rank waits while a pipeline fills and drains: the others' share.

    The makespan is the sum over stages plus (m - 1) times the slowest stage, in forward and
    backward alike, so the slowest stage waits once for a chunk of every other stage.  Equal stages:
    (p-1) T / v, that is (p-1)/(m v) of the ideal.
    """
    return others_s / chunks


@formula("1", "gpipe")
def all_in_flight(stage: Array, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    """Activation units a rank holds at its peak: every micro-batch.  Exact."""
    return micro_batches + np.multiply(stage, 0.0)


def one_chunk(name: str, chunks: int) -> str:
    """Why a schedule of whole stages cannot run this many chunks per rank; "" if it can."""
    return "" if chunks == 1 else f"{name} runs 1 chunk per rank, got {chunks}"


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Every rank: forwards 0..m-1, then backwards 0..m-1."""
    actions = tuple(
        Action(kind, batch, 0)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
        for batch in range(micro_batches)
    )
    return (actions,) * stages


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    return fill_drain_extra_s(costs.others_s, chunks)


GPIPE = PipelineSchedule(
    id="gpipe",
    title="GPipe",
    citation="gpipe",
    extra_s=_extra_s,
    holds="always",
    in_flight=all_in_flight,
    allowed=lambda stages, chunks, micro_batches: one_chunk("gpipe", chunks),
    order=order,
    keeps_all=True,
)
