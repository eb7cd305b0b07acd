"""Bars on a terminal: memory per stage against capacity, and where an iteration goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, repeat

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cost_models.cost_parts import MEMORY_PARTS, TIME_PARTS, MemoryPart, TimePart
from planner.documents.formats import gib, seconds, share
from planner.documents.plan_report import Memory, PlanReport, StageMemory
from planner.presentation.terminal.text_wrap import Flow

# The letter fills the bar where there is no colour.
# By place; parts beyond them are white.
_MEMORY_COLOURS = (
    "blue", "cyan", "magenta", "green", "yellow", "bright_yellow", "red", "white", "bright_black",
)  # fmt: skip
_TIME_COLOURS = (
    "green", "blue", "cyan", "yellow", "bright_yellow", "bright_magenta", "magenta",
    "bright_black", "red", "bright_cyan", "bright_red", "bright_white",
)  # fmt: skip


def _styles(
    parts: Mapping[str, TimePart] | Mapping[str, MemoryPart], colours: tuple[str, ...]
) -> dict[str, tuple[str, str]]:
    """The letter and the colour of each part."""
    letters = (part.letter for part in parts.values())
    colour = chain(colours, repeat("white"))
    return dict(zip(parts, zip(letters, colour, strict=False), strict=False))


_MEMORY_STYLES = _styles(MEMORY_PARTS, _MEMORY_COLOURS)
_TIME_STYLES = _styles(TIME_PARTS, _TIME_COLOURS)
_MAX_STAGES = 6  # rows of memory bars


def memory_bars(memory: Memory, console: Console) -> list[RenderableType]:
    """A bar per stage, with the capacity as a line; a long pipeline shows its fullest stages."""
    stages = _shown_stages(memory)
    scale = max([memory.capacity_bytes, *(stage.total_bytes for stage in stages)])
    width = max(20, min(console.width, 100) - 32)
    grid = Table.grid(padding=(0, 1))
    for stage in stages:
        filled = bar(stage.parts, _MEMORY_STYLES, scale, width, console)
        filled = _capacity_mark(filled, memory.capacity_bytes / scale, width, console)
        over = stage.total_bytes > memory.capacity_bytes
        total = Text(f"{gib(stage.total_bytes):>6}", style="bold red" if over else "")
        worst = "<- worst" if stage.stage == memory.worst_stage and len(memory.stages) > 1 else ""
        grid.add_row(f"  stage {stage.stage}", filled, total, worst)
    title = Text("Memory", style="bold")
    title.append(f"  GiB per stage, of {gib(memory.capacity_bytes)}", style="")
    hidden = len(memory.stages) - len(stages)
    if hidden:
        title.append(f"; {hidden} more stage{'s' * (hidden > 1)}, none fuller", style="")
    drawn = [cells(stage.parts, scale, width, MEMORY_PARTS) for stage in stages]
    used = [name for name in MEMORY_PARTS if any(parts[name] for parts in drawn)]
    return [title, grid, legend({name: name for name in used}, _MEMORY_STYLES, console)]


def _shown_stages(memory: Memory) -> list[StageMemory]:
    """All stages, or of a long pipeline the first, the last, the worst and the fullest."""
    if len(memory.stages) <= _MAX_STAGES:
        return list(memory.stages)
    keep = {0, len(memory.stages) - 1, memory.worst_stage}
    fullest = sorted(memory.stages, key=lambda stage: -stage.total_bytes)
    for stage in fullest:
        if len(keep) == _MAX_STAGES:
            break
        keep.add(stage.stage)
    return [stage for stage in memory.stages if stage.stage in keep]


def time_bar(report: PlanReport, console: Console) -> list[RenderableType]:
    """One bar for the parts of an iteration, largest first in the legend."""
    parts, total = report.time_parts_s, report.iteration_time_s
    width = max(20, min(console.width, 100) - 2)
    title = Text("Time", style="bold")
    title.append(f"  where the {seconds(total)} of an iteration go", style="")
    line = Text("  ")
    line.append_text(bar(parts, _TIME_STYLES, total, width - 2, console))
    shown = sorted((n for n in TIME_PARTS if parts.get(n, 0) > 0), key=lambda n: -parts[n])
    labels = {n: f"{n} {seconds(parts[n])} {share(parts[n] / total)}" for n in shown}
    return [title, line, legend(labels, _TIME_STYLES, console)]


def bar(
    parts: Mapping[str, float],
    styles: Mapping[str, tuple[str, str]],
    scale: float,
    width: int,
    console: Console,
) -> Text:
    """Parts side by side."""
    line = Text()
    for name, count in cells(parts, scale, width, styles).items():
        letter, colour = styles[name]
        line.append(glyph(letter, console) * count, style=colour)
    line.append(" " * (width - len(line)))
    return line


def cells(
    parts: Mapping[str, float], scale: float, width: int, names: Iterable[str]
) -> dict[str, int]:
    """How many characters each part takes: cumulative rounding keeps the whole within one."""
    counts, end, filled = {}, 0.0, 0
    for name in names:
        end += parts.get(name, 0.0)
        counts[name] = round(width * end / scale) - filled
        filled += counts[name]
    return counts


def glyph(letter: str, console: Console) -> str:
    """What fills a bar: the letter where there is no colour."""
    return letter if _plain(console) else "█"


def _plain(console: Console) -> bool:
    """Whether there are no colours; NO_COLOR leaves bold and dim."""
    return console.color_system is None or console.no_color


def _capacity_mark(line: Text, at: float, width: int, console: Console) -> Text:
    """The bar with the capacity as a line: after its end, or inside it where a stage overflows."""
    mark = "|" if _plain(console) else "┃"
    position = round(width * at)
    start, end = line[:position], line[position:]
    return Text.assemble(start, (mark, "bold"), end)


def legend(
    labels: Mapping[str, str], styles: Mapping[str, tuple[str, str]], console: Console
) -> RenderableType:
    """Each letter or colour with what it stands for, on as few lines as that takes."""
    entries = [
        Text.assemble((glyph(styles[name][0], console), styles[name][1]), f" {label}")
        for name, label in labels.items()
    ]
    return Padding(Flow(entries, "  "), (0, 0, 0, 2))
