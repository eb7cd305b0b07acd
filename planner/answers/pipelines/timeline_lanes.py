"""Common parts of all timeline pictures: kinds of actions, lanes as arrays, columns, ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.answers.pipelines.timeline import TimelineAnswer
from planner.documents.formats import seconds, share

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# The kinds that fill a lane, in the order of a column's stack from the bottom; the rest is idle.
KINDS: dict[str, str] = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "C": "waits for a message",
}
WAIT = list(KINDS).index("C")


@dataclass(frozen=True)
class Lane:
    """One rank: its actions and waits in order of time, and the activations that it holds.

    kind: index into KINDS; micro_batch, chunk: -1 for a wait.
    """

    rank: int
    kind: IntArray
    micro_batch: IntArray
    chunk: IntArray
    start_s: FloatArray
    end_s: FloatArray
    held_at_s: FloatArray
    held: FloatArray

    @cached_property
    def busy_s(self) -> float:
        """Total seconds of its actions."""
        return float((self.end_s - self.start_s)[self.kind != WAIT].sum())

    def shares(self, edges_s: FloatArray) -> FloatArray:
        """Share of the time between neighbouring edges that each kind takes: (columns, kinds)."""
        shares = np.zeros((len(edges_s) - 1, len(KINDS)))
        for kind in np.unique(self.kind):
            mine = self.kind == kind
            start, end = self.start_s[mine], self.end_s[mine]
            done = np.concatenate([[0.0], np.cumsum(end - start)])
            # The seconds spent so far grow during each action and are constant between actions.
            at = np.column_stack([start, end]).ravel()
            spent = np.column_stack([done[:-1], done[1:]]).ravel()
            shares[:, kind] = np.diff(np.interp(edges_s, at, spent)) / np.diff(edges_s)
        return shares

    def most_held(self, edges_s: FloatArray) -> FloatArray:
        """The most activations that it holds between neighbouring edges."""
        steps = np.searchsorted(self.held_at_s, edges_s, side="right")
        before = np.concatenate([[0.0], self.held])[steps[:-1]]
        inside = [
            float(self.held[first:last].max()) if last > first else 0.0
            for first, last in pairwise(steps.tolist())
        ]
        most: FloatArray = np.maximum(before, inside)
        return most


def lanes(answer: TimelineAnswer) -> list[Lane]:
    """The lanes of an answer, one per rank."""
    return [_lane(answer, rank) for rank in range(answer.stages)]


def _lane(answer: TimelineAnswer, rank: int) -> Lane:
    index = {kind: i for i, kind in enumerate(KINDS)}
    actions, waits = answer.actions[rank], answer.waits[rank]
    rows = [(index[a.kind], a.micro_batch, a.chunk, a.start_s, a.end_s) for a in actions]
    rows += [(WAIT, -1, -1, wait.start_s, wait.end_s) for wait in waits]
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    # A forward pass allocates its activation when it starts; a backward frees its own at its end.
    held_at = np.array([a.start_s if a.kind == "F" else a.end_s for a in actions])
    table = table[np.argsort(table[:, 3], kind="stable")]
    whole = table[:, :3].astype(np.int64)
    return Lane(
        rank=rank,
        kind=whole[:, 0],
        micro_batch=whole[:, 1],
        chunk=whole[:, 2],
        start_s=table[:, 3],
        end_s=table[:, 4],
        held_at_s=held_at,
        held=np.array(answer.in_flight[rank]),
    )


def p10_action_s(lanes: list[Lane]) -> float:
    """The 10th percentile of the durations of all actions that are longer than zero."""
    lengths = _lengths(lanes)
    return float(np.quantile(lengths[lengths > 0], 0.1))


def mean_s(lanes: list[Lane]) -> float:
    """The mean duration of an action in seconds."""
    return float(_lengths(lanes).mean())


def _lengths(lanes: list[Lane]) -> FloatArray:
    return np.concatenate([(lane.end_s - lane.start_s)[lane.kind != WAIT] for lane in lanes])


def column_edges(answer: TimelineAnswer, most: int) -> FloatArray:
    """The edges in seconds of at most `most` columns, each of which sums up many actions.

    A column spans whole cycles, a cycle being the time of one micro-batch in one chunk, so that
    the columns of a steady state look alike instead of showing an aliasing pattern.
    """
    cycle_s = answer.ideal_s / (answer.micro_batches * answer.chunks)
    width = cycle_s * math.ceil(answer.makespan_s / most / cycle_s)
    count = math.ceil(answer.makespan_s / width - 1e-9)
    edges: FloatArray = np.minimum(np.arange(count + 1) * width, answer.makespan_s)
    return edges


def kinds_in(answer: TimelineAnswer) -> list[str]:
    """The kinds that occur, in the order of KINDS."""
    found = {action.kind for rank in answer.actions for action in rank}
    return [kind for kind in KINDS if kind in found or (kind == "C" and any(answer.waits))]


def ticks(until: float, most: int = 10) -> list[float]:
    """Round values from 0 to `until`, at most `most` + 1, in steps of 1, 2 or 5 times 10^n."""
    step = 10.0 ** math.floor(math.log10(until / most))
    step *= next(factor for factor in (1, 2, 5, 10) if until / (step * factor) <= most)
    return [i * step for i in range(int(until / step + 1e-9) + 1)]


def unit(makespan_s: float) -> tuple[float, str]:
    """The unit of the time axis: its length in seconds and its symbol."""
    for scale, sign in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if makespan_s >= scale:
            return scale, sign
    return 1e-9, "ns"


def headline(answer: TimelineAnswer) -> str:
    """The size of a timeline, in words."""
    chunks = f" x {answer.chunks} chunks" if answer.chunks > 1 else ""
    return (
        f"{_count(answer.stages, 'stage')}{chunks}, {_count(answer.micro_batches, 'micro-batch')}"
    )


def facts(answer: TimelineAnswer) -> list[str]:
    """The results as short texts: makespan, bubble, peak activations, messages."""
    peak = max(answer.peak_in_flight)
    worst = answer.peak_in_flight.index(peak)
    return [
        f"{seconds(answer.makespan_s)} in all, ideal {seconds(answer.ideal_s)}",
        f"bubble {share(answer.bubble_of_total)}",
        f"peak {peak:.4g} {'activations' if peak != 1 else 'activation'} on rank {worst}",
        f"{answer.messages_per_micro_batch} messages per micro-batch",
    ]


def basis(answer: TimelineAnswer) -> list[str]:
    """Short texts that say how the timeline was computed and what it assumes."""
    parts = []
    if answer.closed_form_extra_s is None:
        parts.append("simulated; no closed form")
    else:
        formula_s = answer.ideal_s + answer.closed_form_extra_s
        free = " for free messages" if any(answer.waits) else ""
        parts.append(f"simulated; closed form{free} {seconds(formula_s)} ({answer.holds})")
    parts.append(f"activations freed at the {answer.freed_at}")
    parts.append("synchronous" if answer.synchronous else "asynchronous")
    return parts


def _count(value: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{value} {noun}{plural * (value != 1)}"
