"""A timeline on a terminal, to scale: a row per rank with its memory below; colour is optional."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from planner.answers.pipelines import timeline_lanes
from planner.answers.pipelines.all_schedules import ComparisonAnswer
from planner.answers.pipelines.timeline import TimelineAnswer
from planner.documents.formats import seconds, share
from planner.presentation.terminal.plain_table import plain_table

# By kind: block character, letter for terminals without blocks, colour.  The last kind is idle.
_SIGNS = {
    "F": ("█", "F", "blue"),
    "B": ("▓", "B", "green"),
    "I": ("▒", "I", "yellow"),
    "W": ("░", "W", "magenta"),
    "C": ("~", "~", "red"),
    "": ("·", ".", "bright_black"),
}
_HELD = " ▁▂▃▄▅▆▇█"
_HELD_LETTERS = " 12345678"
_MAX_RANKS = 16
_WIDEST = 160


@dataclass(frozen=True)
class _Page:
    """The layout of a row: its number of cells, the seconds that they span, and its characters."""

    cells: int
    makespan_s: float
    letters: bool
    colour: bool
    dense: bool  # a cell covers several actions
    numbered: bool  # an action covers several cells

    def sign(self, kind: int) -> tuple[str, str]:
        """The character of a kind and its style."""
        sign, letter, colour = list(_SIGNS.values())[kind]
        return (letter if self.letters else sign), colour if self.colour else ""


def timeline_screen(answer: TimelineAnswer, console: Console) -> RenderableType:
    """The answer to `planner timeline`."""
    drawn = timeline_lanes.lanes(answer)
    names = max(2, len(str(answer.stages - 1)))
    side = max(6, *(len(f"peak {peak:.4g}") for peak in answer.peak_in_flight))
    p10_share = timeline_lanes.p10_action_s(drawn) / answer.makespan_s
    cells = max(20, min(console.width, _WIDEST) - names - side - 2)
    if cells * p10_share >= 1:
        # Whole cells per action, so that equal actions look equal.
        cells = round(int(cells * p10_share + 1e-9) / p10_share)
    page = _Page(
        cells=cells,
        makespan_s=answer.makespan_s,
        letters=console.options.ascii_only,
        colour=console.color_system is not None and not console.no_color,
        numbered=cells * p10_share >= 2,
        dense=cells * timeline_lanes.mean_s(drawn) / answer.makespan_s < 1,
    )
    rows: list[RenderableType] = [
        Text.assemble((answer.title, "bold"), f"  {timeline_lanes.headline(answer)}"),
        Text(" · ".join(timeline_lanes.facts(answer))),
        Text(" · ".join(timeline_lanes.basis(answer)), style="dim"),
        *([Text(answer.staleness, style="dim")] if answer.staleness else []),
        Text(),
    ]
    shown = _shown_ranks(answer)
    for rank in shown:
        lane = drawn[rank]
        idle = share(max(0.0, 1 - lane.busy_s / answer.makespan_s))
        name = Text(f"{rank:>{names}} ")
        rows.append(Text.assemble(name, _bar(lane, page), f" {idle:>{side}}"))
        peak = f"peak {answer.peak_in_flight[rank]:.4g}"
        memory = _held(lane, page, max(answer.peak_in_flight))
        rows.append(Text.assemble(" " * (names + 1), memory, f" {peak:>{side}}"))
    rows += [_axis(answer, page, names + 1), Text(), *_legend(answer, page)]
    if hidden := answer.stages - len(shown):
        rows.append(Text(f"{hidden} more ranks not shown; --svg and --html show all"))
    return Group(*rows)


def _shown_ranks(answer: TimelineAnswer) -> list[int]:
    """All ranks, or if they are too many, an evenly spaced selection with the first and last."""
    if answer.stages <= _MAX_RANKS:
        return list(range(answer.stages))
    last = answer.stages - 1
    return [round(last * i / (_MAX_RANKS - 1)) for i in range(_MAX_RANKS)]


def _bar(lane: timeline_lanes.Lane, page: _Page) -> Text:
    kinds = _mixed(lane, page) if page.dense else _exact(lane, page)
    bar = Text()
    labels = _labels(lane, page, kinds) if page.numbered else {}
    at = 0
    while at < page.cells:
        sign, style = page.sign(int(kinds[at]))
        label = labels.get(at, "")
        if label:
            bar.append(label, style=f"{style} reverse".strip() if page.colour else "")
        else:
            bar.append(sign, style=style)
        at += max(1, len(label))
    return bar


def _exact(lane: timeline_lanes.Lane, page: _Page) -> timeline_lanes.IntArray:
    """The kind at the middle of each cell; len(KINDS) stands for idle."""
    middle = (np.arange(page.cells) + 0.5) / page.cells * page.makespan_s
    at = np.minimum(np.searchsorted(lane.end_s, middle, side="right"), len(lane.kind) - 1)
    inside = (lane.start_s[at] <= middle) & (middle < lane.end_s[at])
    return np.where(inside, lane.kind[at], len(timeline_lanes.KINDS))


def _mixed(lane: timeline_lanes.Lane, page: _Page) -> timeline_lanes.IntArray:
    """One kind per cell, chosen so that each kind gets its share of the time along the row."""
    edges = np.linspace(0, page.makespan_s, page.cells + 1)
    work = lane.shares(edges)
    shares = np.column_stack([work, np.maximum(0, 1 - work.sum(axis=1))])
    kinds = np.empty(page.cells, dtype=np.int64)
    owed = np.zeros(shares.shape[1])
    for cell, row in enumerate(shares):
        # A kind that is absent here loses its carried share, so that none leaks into later phases.
        owed = np.where(row > 0, owed + row, 0.0)
        kinds[cell] = int(np.argmax(owed))
        owed[kinds[cell]] -= 1.0
    return kinds


def _labels(
    lane: timeline_lanes.Lane, page: _Page, kinds: timeline_lanes.IntArray
) -> dict[int, str]:
    """Micro-batch numbers by first cell, for actions that are at least one cell wider than them."""
    scale = page.cells / page.makespan_s
    first = np.ceil(lane.start_s * scale - 0.5).astype(int).tolist()
    last = np.ceil(lane.end_s * scale - 0.5).astype(int).tolist()
    return {
        a: str(batch)
        for a, b, batch, kind in zip(
            first, last, lane.micro_batch.tolist(), lane.kind.tolist(), strict=True
        )
        if kind != timeline_lanes.WAIT and b - a > len(str(batch)) and kinds[a] == kind
    }


def _held(lane: timeline_lanes.Lane, page: _Page, peak: float) -> Text:
    steps = _HELD_LETTERS if page.letters else _HELD
    counts = lane.most_held(np.linspace(0, page.makespan_s, page.cells + 1))
    # Any amount above zero shows at least the lowest step.
    heights = np.ceil(np.maximum(counts, 0) / peak * (len(steps) - 1) - 1e-9).astype(int)
    return Text("".join(steps[height] for height in heights), style="dim" if page.colour else "")


def _axis(answer: TimelineAnswer, page: _Page, indent: int) -> Text:
    scale, sign = timeline_lanes.unit(answer.makespan_s)
    line = [" "] * page.cells
    for value in timeline_lanes.ticks(answer.makespan_s / scale, most=max(2, page.cells // 10)):
        at = round(value * scale / answer.makespan_s * page.cells)
        label = f"{value:g}"
        if at + len(label) <= page.cells:
            line[at : at + len(label)] = label
    return Text(" " * indent + "".join(line) + f" {sign}", style="dim")


def _legend(answer: TimelineAnswer, page: _Page) -> list[Text]:
    legend = Text()
    for kind in (*timeline_lanes.kinds_in(answer), ""):
        sign, style = page.sign(list(_SIGNS).index(kind))
        legend.append(sign * 2, style=style)
        legend.append(f" {timeline_lanes.KINDS.get(kind, 'idle')}   ")
    notes = ["under a rank: the activations it holds"]
    if page.dense:
        notes.insert(0, "each cell shows one of several steps")
    elif page.numbered:
        notes.insert(0, "numbers are micro-batches")
    return [legend, Text("; ".join(notes), style="dim")]


def comparison_screen(answer: ComparisonAnswer, console: Console) -> RenderableType:
    """The answer to `planner compare-schedules`."""
    stages, count = answer.stages, answer.micro_batches
    title = Text.assemble(
        (f"{stages} stages, {count} micro-batches", "bold"),
        f"  {seconds(answer.ideal_s)} of work per rank",
    )
    notes = [
        "v: chunks per rank; peak: activations on the fullest rank, of 1 per micro-batch;",
        "sends: messages per micro-batch; copies: of the weights",
    ]
    stale = {row.schedule: row.staleness for row in answer.schedules if row.staleness}
    notes += [f"* {name}, asynchronous: {staleness}" for name, staleness in stale.items()]
    rows = [title, Text(), _comparison(answer, min(console.width, _WIDEST)), Text()]
    rows += [Text(note, style="dim") for note in notes]
    refused: dict[str, list[str]] = {}
    for row in answer.schedules:
        if row.reason:
            refused.setdefault(f"{row.schedule}: {row.reason}", []).append(str(row.chunks))
    if refused:
        rows += [Text(), Text("Cannot run here", style="bold")]
    for reason, chunks in refused.items():
        counts = f" ({', '.join(chunks)} chunks)" if len(chunks) > 1 else ""
        rows.append(Text(f"  {reason}{counts}"))
    return Group(*rows)


def _comparison(answer: ComparisonAnswer, width: int) -> RenderableType:
    """The schedules that can run, one per line; the last column is truncated to the width."""
    headings = ["schedule", "v", "time", "bubble", "peak", "sends", "copies"]
    cells = [
        [
            row.schedule + "*" * (not row.synchronous), str(row.chunks),
            seconds(row.makespan_s or 0.0), share(row.bubble_of_total or 0.0),
            f"{row.peak_in_flight:.4g}", str(row.messages_per_micro_batch),
            f"x{row.weight_copies:g}",
        ]
        for row in answer.schedules
        if not row.reason
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    room = max(9, width - sum(widths) - 2 * len(widths))
    table = plain_table(headings, headings[:1], no_wrap=True)
    for column, size in zip(table.columns, widths, strict=True):
        column.min_width = size
    table.add_column("run by", no_wrap=True)
    runners = [row.frameworks for row in answer.schedules if not row.reason]
    for row, frameworks in zip(cells, runners, strict=True):
        names = Text(", ".join(frameworks) or "-")
        names.truncate(room, overflow="ellipsis")
        table.add_row(*row, names)
    return table
