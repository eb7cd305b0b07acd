"""`planner accuracy --html`: the scores as one page that needs nothing else, not even scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from statistics import median

from planner.documents.formats import gib, or_dash, seconds, share, signed_share
from planner.learning.accuracy.accuracy_answer import (
    TABLES,
    AccuracyAnswer,
    MemorySummary,
    Ranking,
    Row,
    SourceMemory,
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
from planner.presentation.drawing.accuracy_plot import (
    MOST_SOURCES,
    drawable,
    scatter,
    sources,
    strip,
)
from planner.presentation.drawing.accuracy_plot import STYLE as PLOT_STYLE
from planner.presentation.drawing.page import document
from planner.presentation.drawing.theme import colours, sheet

MOST_ROWS = 2_000  # of a table; the JSON has all
_MAX_WORST = 20
_STYLE = sheet("accuracy_page")


def page(answer: AccuracyAnswer) -> str:
    """The page."""
    summary, known = answer.summary, assumptions(answer.rows)
    parts = [
        _tiles(summary),
        _figures(answer.rows),
        _time(summary),
        _memory(summary.memory),
        _ranking(summary),
        _open_section(answer.rows),
        _worst(answer.rows, known),
        _not_predicted(answer.rows),
        _rows(answer.rows, known),
        _assumed(known.values()),
    ]
    title = f"Predicted against measured: {escape(answer.data)}"
    body = "\n".join(part for part in parts if part)
    style = f"{colours('auto', ':root')}{PLOT_STYLE}{_STYLE}"
    return document(title, style, f"""<main>
<h1>Predicted against measured</h1>
<p class="quiet">{escape(answer.data)}: {summary.predicted:,} of {summary.rows:,} rows predicted.
Errors are |ln(predicted / measured)| as a percentage, the bias keeps its sign.</p>
{body}
</main>""")  # fmt: skip


def _tiles(summary: Summary) -> str:
    time, memory = summary.time, summary.memory
    count = len(time.by_source)
    tiles = [
        ("time", _share(time.mean_of_source_medians), f"mean of {count:,} source medians"),
        (
            "coverage",
            share(summary.coverage),
            f"{summary.rows - summary.predicted:,} not predicted",
        ),
        ("peak memory", _share(memory.median_abs_ln), f"median of {memory.n:,} rows"),
    ]
    if memory.oom_rows:
        tiles.append(
            ("out-of-memory caught", f"{memory.oom_caught} of {memory.oom_rows}", "do not fit")
        )
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>"
        for name, value, note in tiles
    )
    return f"<dl>{cells}</dl>"


def _figures(rows: Sequence[Row]) -> str:
    order, drawn = sources(rows), drawable(rows)
    order = [source for source in order if source in {row.source_key for row in drawn}]
    if not drawn:
        return "<p>No row has both a predicted and a measured time.</p>"
    by_source: dict[str, list[float]] = {}
    for row in rows:
        if row.table == "scored" and row.ln_ratio is not None:
            by_source.setdefault(row.source_key, []).append(row.ln_ratio)
    medians = {source: median(values) for source, values in by_source.items()}
    total = sum(row.table in ("scored", "open") for row in rows)
    cut = f" {len(drawn):,} of {total:,} rows are drawn." if len(drawn) < total else ""
    more = len(order) - MOST_SOURCES
    rest = f" {more:,} more sources have no lane." if more > 0 else ""
    return f"""<div class="figures">
<figure>{scatter(drawn, order)}
<figcaption>The line: equal; the band: within 10 %. A hollow mark: an input is not stated, and the
thin line is the range.{cut}</figcaption></figure>
<figure>{strip(drawn, order, medians)}
<figcaption>The same rows by source; the upright bar is the source's median of what is
scored.{rest}</figcaption></figure>
</div>"""


def _time(summary: Summary) -> str:
    by_source = summary.time.by_source
    if not by_source:
        return ""
    ordered = sorted(by_source.items(), key=lambda item: item[1].median_abs_ln)[:MOST_ROWS]
    longest = max(source.p90_abs_ln for _, source in ordered) or 1.0
    body = [
        [
            _name(key + (" (layers)" if source.layer_rows == source.n else "")),
            f"{source.n:,}", share(source.median_abs_ln), share(source.p90_abs_ln),
            signed_share(source.bias_ln), _bars(source.median_abs_ln, source.p90_abs_ln, longest),
        ]
        for key, source in ordered
    ]  # fmt: skip
    p = summary.time.open
    if p.n:
        inside = f"{_share(p.within_range_share)} measured within their range"
        body.append(
            [_name("inputs open, not in the mean"), f"{p.n:,}", _share(p.median_abs_ln),
             _share(p.p90_abs_ln), signed_share(p.bias_ln or 0.0), f"<td class=t>{inside}</td>"]
        )  # fmt: skip
    heads = ("source", "rows", "median", "90th percentile", "bias", "")
    return _section("Time by source", _table(heads, body))


def _bars(middle: float, p90: float, longest: float) -> str:
    width = 220
    full, rest = width * middle / longest, width * max(p90 - middle, 0.0) / longest
    return (
        f'<td class=t><span class="bar" style="width:{full:.0f}px"></span>'
        f'<span class="bar tail" style="width:{rest:.0f}px"></span></td>'
    )


def _memory(memory: MemorySummary) -> str:
    heads = ("source", "rows", "median", "mean", "mean with sign", "low by more than 3 %")
    parts: list[tuple[str, SourceMemory | MemorySummary]] = [
        *list(memory.by_source.items())[:MOST_ROWS],
        ("all", memory),
    ]
    body = [
        [
            _name(name), f"{part.n:,}", _share(part.median_abs_ln), _share(part.mean_abs_error),
            or_dash(part.mean_error, signed_share), _share(part.under_predicted_share),
        ]
        for name, part in parts
    ]  # fmt: skip
    ran = memory.ran_but_predicted_not_to_fit
    listed = ", ".join(map(escape, ran[:MOST_ROWS]))
    missed = (
        f"<details><summary>{len(ran):,} runs ran but are predicted not to fit</summary>"
        f"<p>{listed}</p></details>"
        if ran
        else ""
    )
    caught = (
        f"<p>{memory.oom_caught} of {memory.oom_rows} runs that ran out of memory are predicted "
        "not to fit.</p>"
        if memory.oom_rows
        else ""
    )
    note = "<p class=quiet>Each row is compared with the quantity that its source measured.</p>"
    table = _table(heads, body) if memory.n else "<p>No peak is stated.</p>"
    return _section("Peak memory", note + table + caught + missed)


def _ranking(summary: Summary) -> str:
    if not summary.ranking:
        return ""
    note = (
        "<p class=quiet>Plans of one model on one cluster, repeats of a plan taken together. Tau "
        "is Kendall's tau-b of predicted and measured times; its ceiling is what a model of the "
        "true times may expect, given how far repeats of equal plans of the source lie apart. "
        "Regret is the measured time of the plan predicted fastest over the best.</p>"
    )
    groups, pairs = large_groups_and_pairs(summary.ranking)
    table = _groups(groups[:MOST_ROWS]) if groups else ""
    if pairs := pairs[: max(MOST_ROWS - len(groups), 0)]:
        table += f"<details><summary>{pairs_in_order(pairs)}</summary>{_groups(pairs)}</details>"
    return _section("Ranking", note + table)


def _groups(groups: Iterable[tuple[str, Ranking]]) -> str:
    body = [
        [
            f"<th scope=row class=long>{escape(name)}</th>", f"{group.n:,}",
            or_dash(group.kendall_tau, hundredths),
            or_dash(group.kendall_tau_ceiling, hundredths), f"{group.top1_regret:.3f}",
        ]
        for name, group in groups
    ]  # fmt: skip
    return _table(("group", "plans", "tau", "ceiling", "regret"), body)


def _open_section(rows: Iterable[Row]) -> str:
    body = [
        [
            _name(row.id), _seconds(row.predicted_iteration_time_s), _seconds(row.lowest_s),
            _seconds(row.highest_s), _seconds(row.published_iteration_time_s),
            escape(ratio_words(row)),
            f"<td class=t>{escape(', '.join(row.open_inputs))}</td>",
        ]
        for row in open_rows(rows)[:MOST_ROWS]
    ]  # fmt: skip
    if not body:
        return ""
    note = (
        "<p class=quiet>What these rows do not state moves their time by more than 5 %; they are "
        "not in the headline.</p>"
    )
    heads = ("row", "predicted", "lowest", "highest", "measured", "ratio", "not stated")
    return _section("Inputs open", note + _table(heads, body, text=(6,)))


def _worst(rows: Sequence[Row], assumptions: dict[str, Assumption]) -> str:
    body = []
    for row in worst(rows, _MAX_WORST):
        hints = "; ".join(f"{s.text} ({s.where})" for s in suspects(row, assumptions))
        body.append(
            [
                _name(row.id), _seconds(row.predicted_iteration_time_s),
                _seconds(row.published_iteration_time_s), escape(ratio_words(row)),
                f"<td class=long>{escape(row.model)}: {escape(row.plan or '')}</td>",
                f"<td class=long>{escape(hints)}</td>",
            ]
        )  # fmt: skip
    if not body:
        return ""
    note = (
        "<p class=quiet>Suspect: an assumption whose rows are further off than the rest of their "
        "source.</p>"
    )
    heads = ("row", "predicted", "measured", "ratio", "plan", "suspect")
    return _section("Furthest off", note + _table(heads, body, text=(4, 5)))


def _not_predicted(rows: Iterable[Row]) -> str:
    left = [row for row in rows if row.reason is not None]
    body = [
        [_name(row.id), f"<td class=long>{escape(row.reason or '')}</td>"]
        for row in left[:MOST_ROWS]
    ]
    if not body:
        return ""
    more = f"<p>{len(left) - MOST_ROWS:,} more in the JSON.</p>" if len(left) > MOST_ROWS else ""
    return _section("Not predicted", _table(("row", "reason"), body, text=(1,)) + more)


def _rows(rows: Sequence[Row], assumptions: dict[str, Assumption]) -> str:
    body = [
        [
            _name(row.id), _seconds(row.predicted_iteration_time_s),
            _seconds(row.published_iteration_time_s), escape(ratio_words(row)),
            or_dash(row.predicted_peak_bytes, gib), or_dash(row.published_peak_bytes, gib),
            f"<td class=t>{', '.join(remarks(row))}</td>",
            f"<td class=long>{escape(row.model)} on {escape(row.cluster)}: "
            f"{escape(row.plan or '')}</td>",
            f"<td class=t>{_links(row, assumptions)}</td>",
        ]
        for row in rows[:MOST_ROWS]
    ]  # fmt: skip
    terms = "".join(
        f"<li>{name.replace('_', ' ')}: {escape(meaning)}</li>" for name, meaning in TABLES.items()
    )
    more = f"<p>{len(rows) - MOST_ROWS:,} more in the JSON.</p>" if len(rows) > MOST_ROWS else ""
    heads = (
        "row", "predicted", "measured", "ratio", "GiB", "GiB measured", "", "plan", "assumed",
    )  # fmt: skip
    table = _table(heads, body, text=(6, 7, 8))
    return _section(
        f"All {len(rows):,} rows",
        f"<details><summary>Every row, with the numbers of its assumptions</summary>{table}{more}"
        f"<ul class=quiet>{terms}</ul></details>",
    )


def _links(row: Row, assumptions: dict[str, Assumption]) -> str:
    numbers = sorted(assumptions[text].number for text in row.assumptions)
    return " ".join(f'<a href="#a{number}">{number}</a>' for number in numbers)


def _assumed(assumptions: Iterable[Assumption]) -> str:
    items = "".join(
        f'<li id="a{a.number}" value="{a.number}">{escape(a.text)} '
        f"<span class=quiet>({a.where})</span></li>"
        for a in list(assumptions)[:MOST_ROWS]
    )
    return _section("Assumptions", f"<ol>{items}</ol>") if items else ""


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{title}</h2>{inside}</section>"


def _table(heads: Sequence[str], body: Iterable[Sequence[str]], text: Sequence[int] = ()) -> str:
    """Cells that are no element yet become one; the first column names the row."""
    text_at = {0, *text}
    head = "".join(
        f"<th scope=col{' class=t' * (i in text_at)}>{name}</th>" for i, name in enumerate(heads)
    )
    rows = "\n".join(
        "<tr>" + "".join(c if c.startswith("<") else f"<td>{c}</td>" for c in cells) + "</tr>"
        for cells in body
    )
    head = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    return f'<div class="wide" tabindex="0"><table>{head}\n<tbody>{rows}</tbody></table></div>'


def _name(text: str) -> str:
    return f"<th scope=row class=t>{escape(text)}</th>"


def _seconds(value: float | None) -> str:
    return or_dash(value, seconds)


def _share(value: float | None) -> str:
    return or_dash(value, share)
