"""The timelines of a step of reinforcement learning: a bar per group of accelerators."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from planner.answers.reinforcement.documents import Lane, Way
from planner.documents.formats import seconds
from planner.presentation.terminal.bars import glyph, legend

_STYLES = {
    "generation": ("G", "blue"), "reward": ("R", "cyan"), "policy_scoring": ("S", "yellow"),
    "reference_scoring": ("F", "bright_yellow"), "critic_scoring": ("V", "magenta"),
    "policy_training": ("P", "green"), "critic_training": ("C", "bright_green"),
    "weight_transfer": ("W", "red"), "offload": ("O", "bright_black"),
}  # fmt: skip


def step_timeline(ways: tuple[Way, ...], console: Console) -> Iterator[RenderableType]:
    """Every way on one scale, the answer's first; below each other what works at the same time."""
    scale = max(way.step_time_s for way in ways)
    names = {lane: f"{lane.name} {lane.accelerators:,}" for way in ways for lane in way.lanes}
    margin = max(map(len, names.values()))
    width = max(20, min(console.width, 100) - margin - 5)
    used = {bar.part for way in ways for lane in way.lanes for bar in lane.bars}
    yield Text.assemble(
        ("Timeline", "bold"), "  of one step; pale or small letters: for a later step"
    )
    for way in ways:
        yield Text(f"  {way.name}, {seconds(way.step_time_s)}")
        for lane in way.lanes:
            name = f"    {names[lane]:<{margin}} "
            yield Text.assemble(name, _bars(lane, scale, width, console))
    labels = {name: name for name in _STYLES if name in used}
    yield legend(labels, _STYLES, console)


def _bars(lane: Lane, scale: float, width: int, console: Console) -> Text:
    line = Text()
    for bar in lane.bars:
        letter, colour = _STYLES[bar.part]
        line.append(" " * (round(width * bar.start_s / scale) - len(line)))
        cells = round(width * bar.end_s / scale) - len(line)
        mark = glyph(letter.lower() if bar.ahead else letter, console)
        line.append(mark * cells, style=f"dim {colour}" if bar.ahead else colour)
    return line
