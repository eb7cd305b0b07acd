"""`planner accuracy` on a terminal: scores, open inputs, where the model is furthest off."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.documents.first_sight import KindErrors
from planner.documents.formats import gib, or_dash, seconds, share, signed_share
from planner.learning.accuracy.accuracy_answer import (
    AccuracyAnswer,
    MemorySummary,
    Row,
    Summary,
    ratio_words,
    remarks,
)
from planner.learning.accuracy.suspects import Assumption, assumptions, suspects, worst
from planner.presentation.accuracy_rows import (
    hundredths,
    large_groups_and_pairs,
    open_rows,
    pairs_in_order,
)
from planner.presentation.terminal.plain_table import plain_table
from planner.presentation.terminal.text_wrap import Flow, prose

_MOST_SOURCES, _MOST_GROUPS, _MOST_OPEN, _MOST_WORST, _MOST_REASONS = 40, 20, 10, 8, 15
_BAR_CELLS = 24  # cells
SHORT = {"micro_batch": "mbs"}
_ASIDE = re.compile(r" ?[(][^)]*[)]")
_GOOD, _FAIR = 0.05, 0.10  # median |ln| below which a bar is green, or yellow


def accuracy_screen(answer: AccuracyAnswer, console: Console) -> RenderableType:
    """The scores of all rows."""
    known = assumptions(answer.rows)
    rows: list[RenderableType] = [
        *_header(answer),
        Text(),
        *_time(answer.summary, console),
        *_intervals(answer.summary),
        Text(),
        *_memory(answer.summary.memory),
    ]
    for part in (
        _ranking(answer.summary),
        _open_section(answer.rows),
        _worst(answer.rows, known),
        _not_predicted(answer.rows),
    ):
        if part:
            rows += [Text(), *part]
    return Group(*rows)


def rows_screen(answer: AccuracyAnswer) -> Iterator[Text]:
    """Every row on a line, and then what the numbers of its assumptions mean."""
    known = assumptions(answer.rows)
    width = max([*(len(row.id) for row in answer.rows), 3])
    yield Text(
        f"{'row':<{width}}  {'predicted':>9}  {'measured':>9}  {'ratio':>6}  {'GiB':>6}  "
        f"{'meas.':>6}  assumed",
        "bold",
    )
    for row in answer.rows:
        if row.reason is not None:
            yield Text(f"{row.id:<{width}}  not predicted: {row.reason}")
            continue
        numbers = " ".join(map(str, sorted(known[text].number for text in row.assumptions)))
        yield Text.assemble(
            f"{row.id:<{width}}  {_time_of(row.predicted_iteration_time_s):>9}  "
            f"{_time_of(row.published_iteration_time_s):>9}  {ratio_words(row):>6}  "
            f"{or_dash(row.predicted_peak_bytes, gib):>6}  "
            f"{or_dash(row.published_peak_bytes, gib):>6}  ",
            (numbers, "dim"),
            ("  " + ", ".join(remarks(row)), "yellow"),
        )
    yield Text()
    if known:
        yield Text("Assumed", "bold")
    for assumption in known.values():
        yield Text(f"{assumption.number:>4}  {assumption.text} ({assumption.where})")


def _header(answer: AccuracyAnswer) -> Iterator[RenderableType]:
    summary, tables = answer.summary, [row.table for row in answer.rows]
    yield Text.assemble(("Predicted against measured", "bold"), f"  {answer.data}")
    pieces: list[str | Text] = [
        Text.assemble(
            (f"{summary.predicted:,}", "bold"),
            f" of {summary.rows:,} rows predicted ({share(summary.coverage)})",
        ),
        f"{tables.count('scored'):,} scored",
    ]
    for table, label in (
        ("open", "with open inputs"),
        ("low", "in doubt, listed only"),
        ("not_measured", "without a time"),
    ):
        if table in tables:
            pieces.append(f"{tables.count(table):,} {label}")
    yield Flow(pieces, indent=2)


def _intervals(summary: Summary) -> Iterator[RenderableType]:
    """Coverage of the intervals, and how much runs of a source improve its other estimates."""
    intervals = summary.intervals
    if intervals is not None:
        pieces: list[str | Text] = [
            Text.assemble(("Intervals", "bold"), "  as wide as errors at first sight")
        ]
        for name, held in intervals.rows.held.items():
            width = math.expm1(intervals.rows.mean_width_ln[name] / 2.0)
            sources = share(intervals.held_mean_of_sources[name])
            pieces.append(
                f"{name}% hold {share(held)} of rows, {sources} by source, ± {share(width)}"
            )
        yield Text()
        yield Flow(pieces, indent=2)
    if summary.shots:
        lines = [
            f"{count}: {share(errors.mean)} ("
            + ", ".join(f"{kind} {share(error)}" for kind, error in errors.mean_by_kind.items())
            + ")"
            for count, errors in summary.shots.items()
        ]
        first = next(iter(summary.shots.values()))
        others = f"error of the others, {len(first.by_source)} sources"
        yield Flow([Text("Runs shown", "bold"), others, *lines], indent=2)


def _time(summary: Summary, console: Console) -> Iterator[RenderableType]:
    by_source = summary.time.by_source
    mean = summary.time.mean_of_source_medians
    if mean is None:
        yield Text("Time  no row could be scored", "bold")
    else:
        yield Flow(
            [
                Text.assemble(
                    ("Time", "bold"), "  off by ", (share(mean), "bold"), ": the median"
                    if len(by_source) == 1 else f": the mean of {len(by_source)} source medians",
                ),
                "|ln(predicted / measured)|",
            ],
            indent=6,
        )  # fmt: skip
        yield _kinds("By kind", "", summary.time.by_kind)
    seen = summary.first_sight
    scope = f", {seen.runs:,} runs of {seen.sources} sources before anything was tuned to them"
    yield _kinds("At first sight", scope, seen.by_kind)
    table = _table("  source", "rows", "median", "p90", "bias")
    table.add_column("")
    longest = max([source.p90_abs_ln for source in by_source.values()], default=1.0) or 1.0
    ordered = sorted(by_source.items(), key=lambda item: item[1].median_abs_ln)
    for key, source in ordered[:_MOST_SOURCES]:
        name = _short(f"  {key}" + ", layers" * (source.layer_rows == source.n))
        figures = (source.median_abs_ln, source.p90_abs_ln)
        table.add_row(
            name, f"{source.n:,}", *map(share, figures), signed_share(source.bias_ln),
            _bar(*figures, longest, console),
        )  # fmt: skip
    if len(ordered) > _MOST_SOURCES:
        table.add_row(f"  {len(ordered) - _MOST_SOURCES:,} more, worse")
    is_open = summary.time.open
    if is_open.median_abs_ln is not None and is_open.p90_abs_ln is not None:
        table.add_row(
            Text("  inputs open", "dim"), f"{is_open.n:,}", share(is_open.median_abs_ln),
            share(is_open.p90_abs_ln), signed_share(is_open.bias_ln or 0.0),
            Text(f"{share(is_open.within_range_share or 0.0)} measured within range", "dim"),
        )  # fmt: skip
    if table.row_count:
        yield table


def _kinds(title: str, of: str, by_kind: Mapping[str, KindErrors]) -> Flow:
    """The errors of each kind of model: means of source medians."""
    parts = [f"{kind} {or_dash(errors.median_abs_ln, share)}" for kind, errors in by_kind.items()]
    return Flow([Text.assemble((title, "bold"), of), *parts], indent=2)


def _bar(median: float, p90: float, longest: float, console: Console) -> Text:
    """The median, and fainter behind it the 90th percentile."""
    plain = console.color_system is None or console.no_color
    full = round(_BAR_CELLS * median / longest)
    rest = max(round(_BAR_CELLS * p90 / longest) - full, 0)
    style = "green" if median < _GOOD else "yellow" if median < _FAIR else "red"
    return Text.assemble(
        (("#" if plain else "█") * full, style), (("-" if plain else "░") * rest, style)
    )


def _memory(memory: MemorySummary) -> Iterator[RenderableType]:
    parts: list[str | Text] = []
    if memory.median_abs_ln is not None and memory.mean_abs_error is not None:
        parts = [
            Text.assemble(
                f"{memory.n:,} peaks, median error ", (share(memory.median_abs_ln), "bold")
            ),
            f"mean {share(memory.mean_abs_error)}",
            f"signed {signed_share(memory.mean_error or 0.0)}",
            f"{share(memory.under_predicted_share or 0.0)} under-predicted by more than 3 %",
        ]
    if memory.oom_rows:
        style = "" if memory.oom_caught == memory.oom_rows else "yellow"
        parts.append(
            Text(f"{memory.oom_caught} of {memory.oom_rows} out-of-memory runs caught", style)
        )
    first, *rest = parts or ["no peak is stated"]
    yield Flow([Text.assemble(("Memory", "bold"), "  ", first), *rest], indent=8)
    if ran := memory.ran_but_predicted_not_to_fit:
        shown = [*ran[:6], *([f"{len(ran) - 6:,} more"] if len(ran) > 6 else [])]
        head = f"  {len(ran):,} ran but are predicted not to fit: "
        yield Flow(shown, ", ", indent=4, head=head)


def _ranking(summary: Summary) -> list[RenderableType]:
    groups = summary.ranking
    if not groups:
        return []
    ordered, pairs = large_groups_and_pairs(groups)
    table = _table("  model and cluster", "plans", "tau", "ceiling", "regret")
    for name, group in ordered[:_MOST_GROUPS]:
        table.add_row(
            _short(f"  {name}"), f"{group.n:,}", or_dash(group.kendall_tau, hundredths),
            or_dash(group.kendall_tau_ceiling, hundredths), f"{group.top1_regret:.3f}",
        )  # fmt: skip
    rows: list[RenderableType] = [
        Flow(
            [
                Text.assemble(("Ranking", "bold"), "  Kendall's tau-b of the plans of a group"),
                "the ceiling that repeated measurements allow",
                "regret: time of the plan liked best over the best",
            ],
            "; ",
            indent=9,
        )
    ]
    if ordered:
        rows.append(table)
    if len(ordered) > _MOST_GROUPS:
        rows.append(Text(f"  {len(ordered) - _MOST_GROUPS:,} more groups"))
    if pairs:
        rows.append(Text(f"  {pairs_in_order(pairs)}"))
    return rows


def _open_section(rows: Iterable[Row]) -> list[RenderableType]:
    listed = open_rows(rows)
    if not listed:
        return []
    table = _table("  row", "predicted", "range", "measured", "ratio", "open")
    for row in listed[:_MOST_OPEN]:
        table.add_row(
            Text(f"  {row.id}", no_wrap=True, overflow="ellipsis"),
            _time_of(row.predicted_iteration_time_s),
            f"{_time_of(row.lowest_s)} to {_time_of(row.highest_s)}",
            _time_of(row.published_iteration_time_s),
            ratio_words(row),
            ", ".join(SHORT.get(name, name) for name in row.open_inputs),
        )
    title = Text.assemble(
        ("Inputs open", "bold"),
        f"  {len(listed):,} rows do not state what moves their time by more than 5 %",
    )
    more = len(listed) - _MOST_OPEN
    return [title, table, *([Text(f"  {more:,} more, nearer to 1")] if more > 0 else [])]


def _worst(rows: Sequence[Row], assumptions: dict[str, Assumption]) -> list[RenderableType]:
    off = worst(rows, _MOST_WORST)
    if not off:
        return []
    result: list[RenderableType] = [
        Text.assemble(
            ("Furthest off", "bold"), "  suspect: what is assumed where a source is off most"
        )
    ]
    width = max(len(row.id) for row in off)
    for row in off:
        result.append(
            Text.assemble(
                f"  {row.id:<{width}}  {_time_of(row.predicted_iteration_time_s):>8} for "
                f"{_time_of(row.published_iteration_time_s):>8}  ",
                (ratio_words(row), "bold"),
                f"  {row.model}",
                no_wrap=True,
                overflow="ellipsis",
            )
        )
        if row.plan is not None:
            result.append(Flow(row.plan.split(" · "), indent=6, style="dim", head="    "))
        result += [
            prose(f"suspect: {s.text} ({s.where})", indent=4, hanging=2)
            for s in suspects(row, assumptions)
        ]
    return result


def _not_predicted(rows: Iterable[Row]) -> list[RenderableType]:
    left = [row for row in rows if row.reason is not None]
    if not left:
        return []
    shown = [prose(f"{row.id}: {row.reason}", hanging=2) for row in left[:_MOST_REASONS]]
    more = len(left) - _MOST_REASONS
    title = Text.assemble(("Not predicted", "bold"), f"  {len(left):,}, which count as not covered")
    return [title, *shown, *([Text(f"  {more:,} more")] if more > 0 else [])]


def _table(*headings: str) -> Table:
    table = plain_table(headings, {headings[0], "open"}, style="dim", no_wrap=True)
    table.columns[0].no_wrap = False
    return table


def _short(name: str) -> Text:
    """A short name for the first column: text in brackets is dropped."""
    return Text(_ASIDE.sub("", name), no_wrap=True, overflow="ellipsis")


def _time_of(value: float | None) -> str:
    return or_dash(value, seconds)
