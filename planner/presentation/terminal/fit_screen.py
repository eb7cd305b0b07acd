"""What fits, on a terminal: methods by lengths, what would help, the commands to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from planner.answers.fits.answer import Cell, FitAnswer, Row
from planner.answers.fits.attempt import TITLES
from planner.answers.fits.by_card import CardsAnswer, CardsRequest
from planner.answers.fits.request import FitRequest
from planner.documents.formats import dollars, gib, or_dash, short, size, value_words
from planner.presentation.terminal.plain_table import plain_table
from planner.presentation.terminal.text_wrap import Flow, notes, prose


def fit_screen(answer: FitAnswer, request: FitRequest) -> RenderableType:
    """The answer to `planner fit`."""
    return Group(
        *_header(answer, request),
        Text(),
        _table(answer),
        *_what_would_help(answer),
        *notes("Rests on", (note.text for note in answer.assumptions)),
    )


def cards_screen(answer: CardsAnswer, request: CardsRequest) -> RenderableType:
    """The answer to `planner fit` without a card."""
    tokens = f"{answer.seq_length:,} tokens"
    head = Text.assemble(
        (request.each[0].base.model.name, "bold"), f"  on one card, sequences of {tokens}"
    )
    meaning = "tokens/s where it fits, else the GiB that are missing"
    table = (Text(meaning, "dim"), Text(), _cards_table(answer)) if answer.trainers else ()
    refused = (prose(f"{TITLES[m]}: {reason}", 0, 2) for m, reason in answer.reasons.items())
    texts = [note.text for note in answer.assumptions]
    return Group(head, *table, *refused, *notes("Rests on", texts))


def _cards_table(answer: CardsAnswer) -> RenderableType:
    """A line for each card, a column for each way that has a trainer."""
    methods = list(answer.trainers)
    heads = ("card", "GiB", *(_NAMES[m] for m in methods), "USD/h", "USD/Mtok")
    table = plain_table(heads, {"card"}, gap=2, no_wrap=True)
    for row in answer.rows:
        name = Text(row.accelerator)
        name.append("" if row.precision == "bf16" else f" {row.precision}", "dim")
        cells = (_card_word(row.cells.get(method)) for method in methods)
        least_usd = min(row.usd_per_million_tokens.values(), default=None)
        table.add_row(
            name, gib(row.capacity_bytes), *cells,
            or_dash(row.price_usd_per_accelerator_hour, lambda price: f"{price:.2f}"),
            or_dash(least_usd, lambda usd: f"{usd:.3f}"),
        )  # fmt: skip
    return table


def _card_word(cell: Cell | None) -> Text:
    if cell is None:
        return Text("-", "dim")
    if cell.fits:
        return Text(f"{cell.tokens_per_s:,.0f}", "green")
    return Text(gib(cell.spare_bytes), "red")


def _header(answer: FitAnswer, request: FitRequest) -> Iterator[RenderableType]:
    """What is tried, and what the numbers of the table are."""
    each = answer.accelerators // answer.nodes
    cards = f"{answer.nodes} x {each} {answer.accelerator}"
    yield Text.assemble((request.base.model.name, "bold"), "  on  ", (cards, "bold"))
    price, tokens = answer.price_usd_per_accelerator_hour, request.base.training.tokens
    parts = [f"batch {answer.global_batch_size:,} sequences", answer.precision]
    if tokens is not None:
        parts.append(f"{short(tokens)} tokens")
    parts.append("no price known" if price is None else f"{dollars(price)} per card-hour")
    yield Flow(parts, indent=2)
    room = f"at most {gib(answer.room_bytes)} of {gib(answer.capacity_bytes)} GiB of a card"
    yield Text(f"{room} are planned; the rest allows for the error of estimates", "dim")


def _table(answer: FitAnswer) -> RenderableType:
    """A block of lines for each method."""
    heads = ("", "", *(f"{length:,}" for length in answer.lengths), "longest")
    table = plain_table(heads, {""}, gap=2, no_wrap=True)
    for row in answer.rows:
        if not row.cells:
            table.add_row(Text(_NAMES[row.method], "bold"), Text("not run", "red"))
            continue
        longest = or_dash(row.longest_seq_length, lambda tokens: f"{tokens:,}")
        for i, (name, text) in enumerate(_lines(row)):
            head = Text(_NAMES[row.method] if i == 0 else "", "bold")
            style = "" if i == 0 else "dim"
            cells = [_cell_text(cell, text, style, i == 0) for cell in row.cells]
            table.add_row(head, Text(name, style), *cells, longest if i == 0 else "")
    return table


_NAMES = {
    "full": "full", "full-offload": "full, host", "full-in-backward": "full, in bwd",
    "lora": "LoRA", "qlora": "QLoRA", "dpo": "DPO", "grpo": "GRPO",
}  # fmt: skip


def _lines(row: Row) -> Iterator[tuple[str, Callable[[Cell], str]]]:
    """The lines of a method: their names, and what is said of a cell that fits."""
    yield "GiB free", lambda cell: gib(cell.spare_bytes)
    if row.longest_seq_length is None:
        return
    if any(cell.largest_micro_batch is not None for cell in row.cells):
        yield "max mbs", lambda cell: f"{cell.largest_micro_batch:,}"
    yield "tokens/s", lambda cell: f"{cell.tokens_per_s:,.0f}"
    if any(cell.hours is not None for cell in row.cells):
        yield "hours", lambda cell: f"{cell.hours:,.3g}"
    if any(cell.cost_usd is not None for cell in row.cells):
        yield "cost", lambda cell: dollars(cell.cost_usd or 0.0)


def _cell_text(cell: Cell, text: Callable[[Cell], str], style: str, first: bool) -> Text:
    if cell.fits:
        return Text(text(cell), "green" if first else style)
    return Text(gib(cell.spare_bytes), "red") if first else Text("")


def _what_would_help(answer: FitAnswer) -> Iterator[RenderableType]:
    """Lines on methods that fit at no length: why they are not run, or what would help."""
    for row in answer.rows:
        if row.reason:
            yield prose(f"{row.title}: {row.reason}", 0, 2)
        elif row.longest_seq_length is None:
            first = row.cells[0]
            over = f"{row.title}: misses {first.seq_length:,} tokens by {size(-first.spare_bytes)}"
            yield prose(f"{over}; {_helps(row)}", 0, 2)


def _helps(row: Row) -> str:
    ways = []
    if row.host_bytes is not None:
        host = f"the optimizer in {size(row.host_bytes)} of host memory"
        ways.append(f"on these cards with {host} (--methods full-offload)")
    if row.unmeasured_trainer is not None:
        ways.append(f"with {row.unmeasured_trainer}, of which no run is published")
    if row.change is not None:
        sets = [_set(name, value) for name, value in row.change.set.items()]
        ways.append(f"with {', '.join(sets)}, {row.change.tokens_per_s:,.0f} tokens/s")
    if ways:
        return f"would fit {', or '.join(ways)}"
    # Of GRPO more nodes alone are tried.
    return (
        "more nodes do not help" if row.method == "grpo" else "neither more nodes nor offload help"
    )


def _set(name: str, value: Any) -> str:
    if name.startswith("offload_"):
        return f"{name} on these cards (planner plan)"
    return f"{value:,} such nodes" if name == "nodes" else f"{name} {value_words(value)}"


def fit_commands(answer: FitAnswer) -> Iterator[tuple[str, str]]:
    """A title for each method, and its command at the longest length tried that fits."""
    for row in answer.rows:
        if cell := next((cell for cell in row.cells[::-1] if cell.command), None):
            title = f"{row.title}, {cell.seq_length:,} tokens, by {row.trainer_title}"
            yield title, str(cell.command)
