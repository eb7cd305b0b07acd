"""A sizing on a terminal: choices, Pareto front, where scaling stops paying, assumptions."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.answers.sizing.answer import Offer, Row, SizingAnswer
from planner.answers.sizing.request import SizingRequest, SizingSpec
from planner.documents.formats import (
    chance,
    days,
    dollars,
    energy,
    listed,
    or_dash,
    share,
    short,
    whole_plan_words,
)
from planner.evidence.uncertainty.error_band import SURE
from planner.presentation.terminal.plain_table import plain_table
from planner.presentation.terminal.text_wrap import Flow, notes, prose

_EXCEEDS = {"deadline": "late", "budget": "over budget", "power": "over power"}


def sizing_screen(
    answer: SizingAnswer, request: SizingRequest, every_row: bool = False
) -> RenderableType:
    """The answer to `planner size`."""
    model, training = request.base.model, request.base.training
    rows: list[RenderableType] = [
        Text.assemble(
            (model.name, "bold"), f"  on {short(training.tokens or 0)} tokens · sequence "
            f"{training.seq_length:,} · batch {training.global_batch_size:,} · {training.precision}"
        ),
        Text(),
        *_choices(answer, request),
    ]  # fmt: skip
    rows += _rivals(answer)
    every_row = every_row or bool(request.sizing.clusters)
    shown = range(len(answer.rows)) if every_row else answer.front
    if shown:
        rows += [Text(), Text("All" if every_row else "Days against cost", style="bold")]
        rows.append(_table(answer, list(shown)))
    rows += _stops_paying(answer)
    rows += [Text(), *_smallest(answer)]
    rows += _batch_sizes(answer, request)
    rows += notes("Assumed", (note.text for note in answer.assumptions))
    return Group(*rows)


def _choices(answer: SizingAnswer, request: SizingRequest) -> Iterator[RenderableType]:
    sizing = request.sizing
    limits = [
        label
        for value, label in (
            (sizing.deadline_days, f"within {days(sizing.deadline_days or 0)}"),
            (sizing.budget_usd, f"for at most {dollars(sizing.budget_usd or 0)}"),
            (sizing.power_watts, f"on at most {(sizing.power_watts or 0) / 1e3:,.0f} kW"),
        )
        if value is not None
    ]
    named = ", ".join(limits)
    if answer.fastest is None:
        anything = any(row.plan is not None for row in answer.rows)
        text = f"Nothing keeps the limits: {named}" if anything else "No plan fits on any cluster"
        yield Text(text, style="bold red")
        yield from _unpriced(answer, sizing)
        yield from (_offer(answer, offer) for offer in answer.offers)
        return
    heads: dict[int, list[str]] = {}
    for head in ("recommended", "cheapest", "fastest"):
        place = getattr(answer, head)
        if place is not None:
            heads.setdefault(place, []).append(head)
    for place, own in heads.items():
        yield from _choice(listed(own).capitalize(), named, answer.rows[place])


def _unpriced(answer: SizingAnswer, sizing: SizingSpec) -> Iterator[RenderableType]:
    """That what has no price was not held against a budget."""
    budget = sizing.budget_usd is not None
    if budget and any(row.plan is not None and row.cost_usd is None for row in answer.rows):
        yield prose("What has no price keeps no budget: give prices, see Assumed.", 2, 2)


def _rivals(answer: SizingAnswer) -> Iterator[RenderableType]:
    """The best cluster of each other kind, with the chances that it is sooner or cheaper."""
    if not answer.rivals:
        return
    yield Text()
    yield Text("Best cluster of each other kind", style="bold")
    for rival in answer.rivals:
        row = answer.rows[rival.row]
        assert row.days is not None
        cost = "no price known" if row.cost_usd is None else dollars(row.cost_usd)
        parts = [f"  {row.accelerators:,} x {row.accelerator}: {_band(row)}", cost]
        parts.append(f"{_chance_words(rival.chance_sooner, 'sooner')}")
        if rival.chance_cheaper is not None:
            parts.append(f"{_chance_words(rival.chance_cheaper, 'cheaper')}")
        yield Flow(parts, indent=4)


def _chance_words(value: float, adjective: str) -> str:
    """A chance in words, with a note if it is too close to 50 % to decide."""
    clear = value >= SURE or value <= 1.0 - SURE
    return f"{chance(value)} chance to be {adjective}" + ("" if clear else ": cannot be told apart")


def _band(row: Row) -> str:
    """Days, with their error band."""
    assert row.days is not None
    band = "" if row.low_days is None else f" ({days(row.low_days)} to {days(row.high_days or 0)})"
    return days(row.days) + band


_OFFERS = {
    "deadline": lambda value: f"a deadline of {days(value)}",
    "budget": lambda value: f"a budget of {dollars(value)}",
    "power": lambda value: f"{value / 1e3:,.0f} kW",
    "tokens": lambda value: f"{short(value)} tokens",
}


def _offer(answer: SizingAnswer, offer: Offer) -> RenderableType:
    """A relaxed limit, and the cluster that would keep it."""
    row = answer.rows[offer.row]
    # Days and cost grow with the tokens.
    share = offer.value / answer.request["training"]["tokens"] if offer.limit == "tokens" else 1.0
    money = "" if row.cost_usd is None else f" for {dollars(share * row.cost_usd)}"
    text = f"{_OFFERS[offer.limit](offer.value)} would do: {row.accelerators:,} x {row.accelerator}"
    return prose(f"{text} in {days(share * (row.days or 0))}{money}", 2, 2)


def _choice(head: str, limits: str, row: Row) -> Iterator[RenderableType]:
    assert row.plan is not None
    assert row.days is not None
    assert row.training_days is not None
    assert row.effective_share is not None
    yield Text.assemble(
        (f"{head}  ", "bold"),
        (f"{row.accelerators:,} x {row.accelerator}", "bold green"),
        f"  {limits}",
    )
    assert row.error_band is not None
    if not row.error_band.accelerator_rows:
        yield Text(f"  no published run on {row.accelerator}: extrapolated from others")
    money = "no price known" if row.cost_usd is None else dollars(row.cost_usd)
    used = "" if row.energy_kwh is None else energy(row.energy_kwh)
    band = _band(row)
    if row.chance_kept is not None:
        band += f", chance of meeting it {chance(row.chance_kept)}"
    lost = f"{share(1 - row.effective_share)} of the time lost to failures and checkpoints"
    yield Flow([*filter(None, (band, money, used)), lost], indent=2, head="  ")
    assert row.mfu is not None
    assert row.memory_headroom is not None
    yield Flow(
        [*whole_plan_words(row.plan), f"MFU {share(row.mfu)}",
         f"{share(row.memory_headroom)} of memory free"],
        indent=2, head="  ",
    )  # fmt: skip


def _table(answer: SizingAnswer, shown: list[int]) -> Table:
    columns = ("number", "kind", "days", "cost", "energy", "MFU", "free", "tokens/$")
    table = plain_table(columns, {"kind"}, gap=1, no_wrap=True)
    table.add_column("")
    for i in shown:
        row = answer.rows[i]
        if row.plan is None:
            table.add_row(f"{row.accelerators:,}", row.accelerator, *[""] * 6, row.reason)
            continue
        assert row.days is not None
        assert row.mfu is not None
        assert row.memory_headroom is not None
        best = {name: getattr(answer, name) for name in ("recommended", "cheapest", "fastest")}
        marks = [*(_EXCEEDS[name] for name in row.exceeds)]
        marks += [name for name, index in best.items() if index == i]
        table.add_row(
            f"{row.accelerators:,}", row.accelerator,
            f"{row.days:,.0f}" if row.days >= 100 else f"{row.days:.3g}",
            or_dash(row.cost_usd, dollars), or_dash(row.energy_kwh, energy),
            share(row.mfu), share(row.memory_headroom), or_dash(row.tokens_per_usd, short),
            ", ".join(marks), style="dim" if row.exceeds else "",
        )  # fmt: skip
    return table


def _stops_paying(answer: SizingAnswer) -> Iterator[RenderableType]:
    """The step from which on a saved day costs more than a day of training before it."""
    if answer.stops_paying is None:
        return
    step = answer.stops_paying
    slow, fast = answer.rows[step.row], answer.rows[step.faster_row]
    assert slow.cost_usd is not None
    assert slow.days is not None
    yield Text()
    yield prose(
        f"Scaling stops paying after {slow.accelerators:,} x {slow.accelerator}: "
        f"{fast.accelerators:,} x {fast.accelerator} saves {days(step.days_saved)} for "
        f"{dollars(step.cost_added_usd)} more, {dollars(step.usd_per_day_saved)} a day "
        f"saved, where a day of training costs {dollars(slow.cost_usd / slow.days)}",
        indent=0, hanging=2,
    )  # fmt: skip


def _batch_sizes(answer: SizingAnswer, request: SizingRequest) -> Iterator[RenderableType]:
    """Tokens and steps to the same loss at other batch sizes."""
    if not answer.batch_sizes:
        return
    yield Text()
    yield prose(
        f"Batches that reach the same loss: efficient up to the critical batch of "
        f"{request.sizing.critical_batch_size:,}; beyond it tokens rise faster than steps fall",
        indent=0, hanging=2,
    )  # fmt: skip
    table = plain_table(("batch", "tokens", "steps", ""), {""}, no_wrap=True)
    for batch in answer.batch_sizes:
        marks = [] if batch.efficient else ["past the critical batch"]
        if batch.global_batch_size == request.base.training.global_batch_size:
            marks.insert(0, "as asked")
        table.add_row(
            f"{batch.global_batch_size:,}", short(batch.tokens), f"{batch.steps:,.0f}",
            ", ".join(marks), style="" if batch.efficient else "dim",
        )  # fmt: skip
    yield table


def _smallest(answer: SizingAnswer) -> Iterator[RenderableType]:
    fits = [f"{count:,} x {kind}" for kind, count in answer.fits_from.items() if count is not None]
    none = [kind for kind, count in answer.fits_from.items() if count is None]
    if fits:
        yield Flow(fits, indent=2, head="Smallest that fits: ")
    if none:
        yield Flow(none, indent=2, head="Fits on none of these sizes: ")
