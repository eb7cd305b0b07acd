"""Tables on a terminal: the plans of an answer, a model, and the catalog."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import floor
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.answers.inventory.catalog import (
    AcceleratorEntry,
    Entry,
    FrameworkEntry,
    ModelEntry,
    ScheduleEntry,
)
from planner.answers.plans.two_plans import SideBySide, Value
from planner.documents import formats
from planner.documents.answer import Contender, PlanAnswer
from planner.documents.plan_report import PlanReport
from planner.documents.request import SearchSpec
from planner.evidence.uncertainty.error_band import SURE
from planner.inputs.requests.model_import import ModelAnswer
from planner.presentation.terminal.plain_table import plain_table
from planner.presentation.terminal.text_wrap import Flow, prose

# Columns of the ranking, and those that are there even when every plan has the default.
_RANKED = {
    "tp": "tp",
    "sequence_parallel": "sp",
    "cp": "cp",
    "pp": "pp",
    "vpp": "vpp",
    "dp": "dp",
    "ep": "ep",
    "etp": "etp",
    "zero_stage": "zero",
    "micro_batch_size": "mbs",
}
_ALWAYS_RANKED = ("tp", "pp", "dp", "zero_stage", "micro_batch_size")
_MAX_RANKED = 5
_OFF = (None, False, 0)
_MIN_RECOMPUTE = 9  # cells for what is recomputed
_RECOMPUTE = ("recompute", "recompute_modules", "recompute_method", "recompute_num_layers")


def _shown_fields(
    search: SearchSpec, plans: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]
) -> set[str]:
    """The plan fields that the request varies, those that are unusual in a plan, and those without
    which two plans would look the same.
    """
    shown = {*_ALWAYS_RANKED, *_varied_fields(search)}
    shown |= {name for name in _RANKED if any(plan[name] != defaults[name] for plan in plans)}
    if not all(map(formats.usual_schedule, plans)):
        shown.add("schedule")
    for plan, other in combinations(plans, 2):
        different = {name for name in defaults if plan[name] != other[name]}
        if not different & {*shown, *_RECOMPUTE}:
            shown |= different
    return shown


def _figures(first: Sequence[PlanReport], rivals: Sequence[Contender]) -> list[list[str]]:
    """The columns of what the plans reach, each with its heading."""
    figures = [
        ["#", *map(str, range(1, len(first) + 1))],
        ["tokens/s", *(f"{report.tokens_per_s:,.0f}" for report in first)],
        ["s/iter", *(f"{report.iteration_time_s:,.4g}" for report in first)],
        ["GiB", *(formats.gib(report.memory.peak_bytes) for report in first)],
    ]
    if rivals:
        figures.append(["best?", *(formats.chance(r.chance_best) for r in rivals)])
    return figures


def _same_in_all(columns: dict[str, list[str]], room: int) -> tuple[list[str], int]:
    """Take columns of one value out until the others fit: what they say, and the room then left."""
    below: list[str] = []
    for name in sorted(columns, key=lambda name: name in _RANKED):
        heading, cell, *others = columns[name]
        if room < _MIN_RECOMPUTE and {cell} >= {*others}:
            room += _width(columns.pop(name))
            below.append(f"{heading} {'no' if cell == '-' else cell}")
    return below, room


def ranking(answer: PlanAnswer, search: SearchSpec, width: int) -> RenderableType:
    """The first five, with the plan fields that the request varies or that say something.

    Where the columns are too many, those with one value stand in a line below.
    """
    first = answer.plans[:_MAX_RANKED]
    plans = [report.plan.model_dump() for report in first]
    defaults = ParallelPlan().model_dump()
    shown = _shown_fields(search, plans, defaults)
    columns = {
        name: [_RANKED.get(name, name.replace("_", " ")), *(_cell(plan[name]) for plan in plans)]
        for name in defaults
        if name in shown - {*_RECOMPUTE}
    }
    figures = _figures(first, answer.contenders[: len(first)])
    room = width - sum(map(_width, (*figures, *columns.values())))
    below, room = _same_in_all(columns, room)
    listed_plans = zip(*(cells for _, *cells in (*figures, *columns.values())), plans, strict=True)
    headings = [heading for heading, *_ in columns.values()]
    recomputed = [formats.recompute_words(plan) for plan in plans]
    uniform = len({*recomputed}) == 1 and len(recomputed[0]) > room and not shown & {*_RECOMPUTE}
    if uniform:
        below.append(f"recompute {recomputed[0]}")
    rows: list[RenderableType]
    if room < _MIN_RECOMPUTE:
        rows = [_plan_words_row(headings, uniform, *row) for row in listed_plans]
    else:
        rows = [_table((*figures, *columns.values()), listed_plans, 0 if uniform else room)]
    if below:
        rows.append(Flow(below, indent=2, head="in all of them: "))
    return Group(*rows, *_tie_notes(answer))


def _table(
    columns: Sequence[Sequence[str]], plans: Iterable[tuple[Any, ...]], room: int
) -> RenderableType:
    """A row for each plan; room: cells for what is recomputed, 0: it is left out."""
    table = plain_table()
    for column in columns:
        table.add_column(column[0], justify="right", vertical="bottom", width=_width(column) - 2)
    if room:
        table.add_column("recompute", no_wrap=True)
    for *row, plan in plans:
        last = [_broken(formats.recompute_words(plan), room)] if room else []
        table.add_row(*row, *last)
    return table


def _plan_words_row(headings: Sequence[str], uniform: bool, *row: Any) -> RenderableType:
    """A plan in words, where there is no room for a table; uniform: all recompute the same."""
    *cells, plan = row
    first = len(cells) - len(headings)
    number, tokens, seconds_each, peak, *best = cells[:first]
    parts = [f"{number}  {tokens} tokens/s", f"{seconds_each} s/iter", f"{peak} GiB"]
    parts += [f"best? {cell}" for cell in best]
    parts += [f"{heading} {cell}" for heading, cell in zip(headings, cells[first:], strict=True)]
    parts += [] if uniform else [f"recompute {formats.recompute_words(plan)}"]
    return Flow(parts, indent=3)


def _most_informative(answer: PlanAnswer) -> str:
    """Which of the plans in the table to run first."""
    if (telling := answer.measure_next) is None:
        return ""
    run = next(i for i, one in enumerate(answer.contenders, 1) if one.id == telling.id)
    return f", {run} first" if run <= _MAX_RANKED else ""


def _tie_notes(answer: PlanAnswer) -> Iterator[RenderableType]:
    """Which plans tie with the first, which is best on average, which run tells most."""
    contenders, best_expected = answer.contenders, answer.best_expected
    ties = [str(i) for i, c in enumerate(contenders[:_MAX_RANKED], 1) if c.tie]
    rank = next((i for i, c in enumerate(contenders, 1) if c.id == best_expected), None)
    in_table = rank is not None and rank <= _MAX_RANKED
    if ties:
        verb = "is" if len(ties) == 1 else "are"
        advice = f"measure before you choose{_most_informative(answer)}"
        advice += f"; best on average: {rank}" if in_table else ""
        yield prose(f"{formats.listed(ties)} {verb} statistically tied with 1: {advice}", hanging=2)
    if rank is not None and not (ties and in_table):
        plan = formats.whole_plan_words(contenders[rank - 1].plan)
        yield Flow(plan, indent=4, head=f"  best on average: {rank}, ")


def _broken(text: str, width: int) -> str:
    """Names that are added, on as many lines as they take."""
    return textwrap.fill(text.replace("+", "+ "), width).replace("+ ", "+")


def _width(column: Sequence[str]) -> int:
    """Cells that a column takes with its padding; a long heading stands on several lines."""
    heading, *cells = column
    return max(map(len, [*heading.split(), *cells])) + 2


def _varied_fields(search: SearchSpec) -> list[str]:
    """The plan fields for which the request itself leaves several values."""
    limited = [
        name
        for name, bounds in search.limits.items()
        if (len(bounds.values) > 1 if bounds.values is not None else bounds.min != bounds.max)
    ]
    return [*search.open, *limited]


def _cell(value: int | bool | str | Sequence[int]) -> str:
    if isinstance(value, bool):
        return ("-", "yes")[value]
    return str(value) if isinstance(value, (int, str)) else ",".join(map(str, value)) or "-"


def _dimension(answer: ModelAnswer, name: str, value: Any) -> str:
    """A field of a model in words."""
    if name == "layer_pattern":
        return formats.kinds_words(answer.layers)
    if name == "encoders":
        return "; ".join(f"{e.name}, {e.num_layers} layers" for e in answer.model.encoders)
    if isinstance(value, dict):
        parts = ((k, _dimension(answer, k, v)) for k, v in value.items() if v not in _OFF)
        return ", ".join(
            f"{k} ({v})" if isinstance(value[k], dict) else f"{k} {v}" for k, v in parts
        )
    return str(value)


def model_screen(answer: ModelAnswer) -> RenderableType:
    """The answer to `planner model`: what it counts, its dims, and what was guessed."""
    model, total, active = answer.model, answer.parameters, answer.active_parameters
    counts = [f"{formats.short(total)} parameters ({total:,})"]
    if active != total:
        counts.append(f"{formats.short(active)} active per token ({active:,})")
    grid = Table.grid(padding=(0, 2))
    defaults = {name: field.default for name, field in ModelSpec.model_fields.items()}
    for name, value in model.model_dump(exclude={"name"}).items():
        if value != defaults[name]:
            grid.add_row(f"  {name}", _dimension(answer, name, value))
    rows: list[RenderableType] = [Flow([Text(model.name, "bold"), *counts], "  ", indent=2), grid]
    sections = (("Not stated, so assumed:", answer.guessed), ("Left out:", answer.warnings))
    for heading, lines in sections:
        if lines:
            rows += [Text(heading), *(prose(line, hanging=2) for line in lines)]
    return Group(*rows)


def catalog_screen(entries: Sequence[Entry]) -> RenderableType:
    """The answer to `planner catalog`: one line per entry, or more where the terminal ends."""
    rows = [(entry.id, *_catalog_facts(entry)) for entry in entries]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    drawn = []
    for name, *facts, last in rows:
        cells = (f" {cell:<{width}}" for cell, width in zip(facts, widths[1:], strict=True))
        tail = [Text(f" {last.split()[0]}", "dim")] if last else []
        tail += [Text(w, "dim") for w in last.split()[1:]]
        pieces: list[str | Text] = [Text(f"{name:<{widths[0]}}", "bold"), *cells, *tail]
        drawn.append(Flow(pieces, " ", widths[0] + 2))
    return Group(*drawn)


def _catalog_facts(entry: Entry) -> tuple[str, str, str]:
    """The columns beside the name; the last column is cut at the terminal's width."""
    aliases = ", ".join(entry.aliases)
    if isinstance(entry, ModelEntry):
        active = f"{formats.short(entry.active_parameters)} active" if entry.spec.moe else ""
        return formats.short(entry.parameters), active, aliases
    if isinstance(entry, AcceleratorEntry):
        peak = entry.spec.peak_bf16_flop_per_s or entry.spec.peak_fp16_flop_per_s
        speed = f"{peak / 1e12:,.0f} TFLOP/s" if peak else ""
        return f"{formats.gib(entry.spec.memory_bytes)} GiB", speed, aliases
    if isinstance(entry, ScheduleEntry):
        chunks = " or ".join(map(str, entry.chunk_counts)) or "2 or more"
        return f"{chunks} chunks", ", ".join(entry.frameworks), entry.title
    if isinstance(entry, FrameworkEntry):
        return "read back" if entry.read_back else "written only", aliases, entry.versions
    kind = f"{entry.accelerators} x {entry.spec.groups[0].accelerator.name}"
    if entry.provider:  # its name is the id as the provider spells it, and what a node has
        return kind, entry.provider, entry.name.partition(", ")[2]
    return kind, entry.name, aliases


def with_chance(value: float) -> str:
    """How likely one plan is faster than another."""
    if value >= SURE:
        return f"with a chance of {formats.chance(value)}"
    # Rounded down, so that what is just not sure does not read as if it were.
    below = formats.chance(floor(100.0 * value) / 100.0)
    return f"with a chance of {below}: a statistical tie, measure both"


_TITLES = {
    "time_parts_s": "time of one iteration",
    "memory_parts_bytes": "memory of the worst stage",
}
# By the end of a name: how its value is shown to a person.
_SHOWN: dict[str, Callable[[float], str]] = {
    "per_s": lambda value: f"{formats.short(value)}/s",
    "per_accelerator": lambda value: f"{formats.short(value)}/s",
    "_bytes": lambda value: f"{formats.gib(value)} GiB",
    "_s": formats.seconds,
    "_usd": formats.dollars,
    "_kwh": formats.energy,
    "days": formats.days,
    "mfu": formats.share,
    "mfu_causal": formats.share,
    "hfu": formats.share,
}


def comparison_table(answer: SideBySide, every: bool) -> RenderableType:
    """The answer to `planner compare`: a line for each value that differs, or for every one."""
    table = plain_table()
    table.add_column("")
    for heading in ("A", "B", "B over A"):
        table.add_column(heading, justify="right", overflow="fold")
    part = ""
    for row in answer.rows:
        if row.equal and not every:
            continue
        if row.part != part:
            part = row.part
            table.add_row(Text(_TITLES.get(part, part), style="bold"))
        # The parts of a time or a memory are named without their unit.
        unit = "_s" if part == "time_parts_s" else "_bytes" if part == "memory_parts_bytes" else ""
        ratio = "" if row.ratio is None or row.equal else f"{row.ratio:.3g} x"
        cells = (_shown(row.name + unit, value) for value in (row.a, row.b))
        table.add_row(f"  {row.name}", *cells, ratio)
    if answer.chance_b_faster is None:
        return table
    ahead, behind, sure = "B", "A", answer.chance_b_faster
    if sure < 0.5:
        ahead, behind, sure = behind, ahead, 1.0 - sure
    return Group(table, Text(f"{ahead} is faster than {behind} {with_chance(sure)}"))


def _shown(name: str, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    show = next((show for end, show in _SHOWN.items() if name.endswith(end)), None)
    return show(value) if show else formats.short(value)
