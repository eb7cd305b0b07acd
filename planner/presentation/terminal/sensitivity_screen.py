"""The tornado chart on a terminal, and the values at which the best plan changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from planner.answers.sensitivities.documents import InputSensitivity, SensitivityAnswer
from planner.answers.sensitivities.format import change_place, difference, factor_words
from planner.answers.sensitivities.tornado import Bar, Row, heading, quiet, reach, rows
from planner.documents.formats import size, whole_plan_words
from planner.documents.plan_report import PlanReport
from planner.presentation.terminal.plan_rows import RequestSummary, speed, whole_run
from planner.presentation.terminal.screens import header
from planner.presentation.terminal.text_wrap import Flow, notes

_WIDE, _WIDEST = 100, 120
_MAX_NAME_LENGTH = 25  # cells, on a narrow terminal
_MIN_BAR = 7  # cells on one side
# For a lower and a higher input: block, character for ASCII-only terminals, colour.
_SIGNS = {False: ("░", "-", "blue"), True: ("█", "+", "yellow")}
_MAX_CHANGES = 2  # shown per input
_MAX_EXPLAINED = 3  # up to this many inputs are also described in sentences


def sensitivity_screen(
    answer: SensitivityAnswer, summary: RequestSummary, console: Console
) -> RenderableType:
    """The answer to `planner sensitivity`."""
    drawn, still = rows(answer), quiet(answer)
    differs = answer.held.id != answer.best.id
    parts: list[RenderableType] = [
        header(summary, answer.profile),
        Text(),
        *_plan("Given plan" if differs else "Best plan", answer.held, answer, summary),
        *(_plan("Best plan", answer.best, answer, summary) if differs else ()),
        Text(),
        *_tornado(answer, drawn, console),
    ]
    if still:
        parts.append(Flow(still, ", ", indent=2, style="dim", head="little effect:  "))
    changing = [row for row in answer.inputs if row.changes]
    if len(answer.inputs) <= _MAX_EXPLAINED:
        for row in answer.inputs:
            parts += notes(row.title, row.words) or [Text(), Text(row.title, "bold")]
    elif changing:
        parts += [Text(), Text("Where the best plan changes", "bold")]
        parts += [line for row in changing for line in _changes(row)]
    return Group(*parts)


def _plan(
    title: str, report: PlanReport, answer: SensitivityAnswer, summary: RequestSummary
) -> Iterator[RenderableType]:
    """A plan's fields and its results at the base; a plan held fixed is marked."""
    fixed = ", held fixed" * (report is answer.held)
    first, *parts = whole_plan_words(report.plan)
    if answer.measure == "peak memory":
        parts.append(f"peak {size(report.memory.peak_bytes)}")
    head = Text.assemble((f"{title}{fixed}", "bold"), f"  {first}")
    yield Flow([head, *parts], indent=2)
    yield Flow([*speed(report), *whole_run(report, summary)], indent=2, head="  ")


def _cut(title: str, longest: int) -> str:
    return title if len(title) <= longest else f"{title[: longest - 3]}..."


def _nearest_values(rows: list[Row], asked_ends: Sequence[str]) -> Iterator[RenderableType]:
    """The ends that are not those asked for, since only some values are possible."""
    others = [
        f"{row.title} {factor}"
        for row in rows
        for bar in row.bars
        if (factor := factor_words(bar.factor)) not in asked_ends
    ]
    if others:
        yield Flow(others, ", ", indent=2, style="dim", head="^ nearest possible value: ")


def _tornado(
    answer: SensitivityAnswer, rows: list[Row], console: Console
) -> Iterator[RenderableType]:
    """A line per input: its bar on a logarithmic axis around the base, and its end values."""
    longest = _MAX_NAME_LENGTH if console.width < _WIDE else 3 * _MAX_NAME_LENGTH
    names = min(longest, max(len(row.title) for row in rows))
    values = max([len(row.value) for row in rows] + [4])
    asked_ends = _column_factors(answer)
    ends = [_ends(row, asked_ends, replanned) for row in rows for replanned in (False, True)]
    low, high = (max([len(pair[i]) for pair in ends] + [5]) for i in (0, 1))
    width = min(console.width, _WIDEST)
    elastic = width >= _WIDE
    side = (width - names - values - low - high - 8 - 11 * elastic) // 2
    side = max(side, _MIN_BAR)
    yield Text(heading(answer), "bold")
    head = f"{'':{names}}  {'base':>{values}}  {asked_ends[0]:>{low}} "
    head += f"{'less':>{side}}|{'more':<{side}} {asked_ends[1]:>{high}}"
    yield Text(head + "  elasticity" * elastic, "dim", no_wrap=True, overflow="ellipsis")
    limit = reach(rows)
    letters = console.options.ascii_only
    for row in rows:
        for replanned in (False, True)[: 1 + row.again]:
            low_cell, right = _ends(row, asked_ends, replanned)
            title, value = ("  planned again", "") if replanned else (row.title, row.value)
            line = Text(no_wrap=True, overflow="ellipsis", style="dim" if replanned else "")
            line.append(f"{_cut(title, names):{names}}  {value:>{values}}  {low_cell:>{low}} ")
            line.append_text(_bars(row, replanned, side, limit, letters))
            line.append(f" {right:>{high}}")
            if elastic and not replanned:
                line.append(f"  {row.elasticity:>10}")
            yield line
    marks = {up: signs[letters] for up, signs in _SIGNS.items()}
    yield Text(f"{marks[False]} input lower, {marks[True]} input higher", "dim")
    yield from _nearest_values(rows, asked_ends)


def _column_factors(answer: SensitivityAnswer) -> tuple[str, str]:
    """The asked factors furthest from the base, as column headings."""
    factors = answer.request["sensitivity"]["factors"]
    low, high = min(factors), max(factors)
    return factor_words(low) if low < 1 else "", factor_words(high) if high > 1 else ""


def _ends(row: Row, asked_ends: tuple[str, str], replanned: bool) -> tuple[str, str]:
    """The two end values of a line, marked if their factor differs from the column's."""
    cells = {False: "", True: ""}
    for bar in row.bars:
        cell = bar.replanned_words if replanned else bar.fixed_words
        factor = factor_words(bar.factor)
        if cell:
            cells[bar.factor > 1] = cell if factor in asked_ends else f"{cell}^"
    return cells[False], cells[True]


def _bars(row: Row, replanned: bool, side: int, limit: float, letters: bool) -> Text:
    """The cells of a line's bars, decreases left of the base; a longer bar is drawn first."""
    cells: list[tuple[str, str]] = [(" ", "")] * (2 * side)

    def change(bar: Bar) -> float:
        return (bar.replanned if replanned else bar.fixed) or 0.0

    for bar in sorted(row.bars, key=lambda bar: -abs(change(bar))):
        sign, letter, colour = _SIGNS[bar.factor > 1]
        length = round(abs(change(bar)) / limit * side)
        for k in range(length):
            cells[side + k if change(bar) > 0 else side - 1 - k] = (
                letter if letters else sign,
                colour,
            )
    line = Text()
    for i, (sign, colour) in enumerate(cells):
        if i == side:
            line.append("|", "dim")
        line.append(sign, colour)
    return line


def _changes(sensitivity: InputSensitivity) -> Iterator[RenderableType]:
    """The nearest changes of plan of one input."""
    nearest = sorted(sensitivity.changes, key=lambda c: max(c.factor_after, 1 / c.factor_after))
    shown = [change for change in sensitivity.changes if change in nearest[:_MAX_CHANGES]]
    for change in shown:
        first, *rest = difference(change.before, change.after)
        head = Text.assemble(
            (sensitivity.title, "bold"), f" {change_place(sensitivity, change)}: {first}"
        )
        yield Flow([head, *rest], ", ", indent=4)
    more = len(sensitivity.changes) - len(shown)
    if more or not sensitivity.all_changes:
        yield Text(f"    further changes beyond: --input {sensitivity.name}", "dim")
