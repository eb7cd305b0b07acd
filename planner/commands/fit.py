"""`planner fit`: which ways to fine-tune a model fit on which cards, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.commands.failures import FINE, NOTHING_FITS
from planner.commands.options import part_of, part_options, read, some_options
from planner.commands.server import answered, repeated
from planner.commands.shared import Json, read_model
from planner.presentation.terminal.progress_bar import bar

_TRAINING = (
    "global_batch_size", "tokens", "precision", "optimizer", "lora_rank", "lora_targets",
    "lora_dropout",
)  # fmt: skip


@some_options("model", *_TRAINING)
@part_options("fit")
def fit(
    *,
    card: Annotated[
        str | None, typer.Option(metavar="NAME", help="kind of card, such as rtx-4090")
    ] = None,
    cards: Annotated[int, typer.Option(min=1, help="so many of it in one node")] = 1,
    on: Annotated[
        str | None,
        typer.Option("--on", "--cluster", metavar="NAME", help="p5.48xlarge, 2x8xh100-sxm, local"),
    ] = None,
    json: Json = False,
    fit: Mapping[str, Any],
    option_values: Mapping[str, Any],
) -> int:
    """Which ways to fine-tune a model fit on one card or node, how long and how fast.

    Without --card and --on: which of the usual cards do, at one length.
    """
    from planner.documents.loading import scalar
    from planner.documents.problems import join

    if card is not None and on is not None:
        raise typer.BadParameter("give --card rtx-4090 or --on p5.48xlarge, not both")
    training = {name: read(name, text, False) for name, text in option_values.items()}
    named = training.pop("model", None)
    parts: dict[str, Any] = {}
    for name, text in fit.items():
        values = [scalar(item.strip(), join("/fit", name)) for item in text.split(",")]
        parts[name] = values if part_of("fit")[name].several else values[0]
    document = {"model": None if named is None else read_model(named, Path()), "training": training}
    if card is None and on is None:
        return _by_card({**document, "cards": _of_cards(parts)}, named, json)
    cluster = on if card is None else f"1x{cards}x{card}"
    return _on_cards({**document, "cluster": cluster, "fit": parts}, named, json)


def _of_cards(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The options for every card: the methods, and the first length."""
    lengths = parts.get("lengths") or ()
    if len(lengths) > 1 or "price_usd_per_accelerator_hour" in parts:
        raise typer.BadParameter("without --card, give one of --lengths, and no price")
    fields = {"methods": parts["methods"]} if "methods" in parts else {}
    return {**fields, "seq_length": lengths[0]} if lengths else fields


def _by_card(document: dict[str, Any], named: str | None, json: bool) -> int:
    """Which cards do."""
    from planner.answers.fits.by_card import fit_cards, parse_cards
    from planner.presentation.terminal import output
    from planner.presentation.terminal.fit_screen import cards_screen

    request = parse_cards(document)
    with bar("searching", best=False):
        answer = answered(
            lambda: fit_cards(request), lambda service: service.fit_cards(request.document())
        )
    able = [row for row in answer.rows if any(cell and cell.fits for cell in row.cells.values())]
    card = (able or answer.rows[-1:])[0].accelerator
    lines = ["", "Next", f"  {repeated(f'planner fit --model {named} --card {card}')}"]
    output.show(answer, json, lambda screen: cards_screen(answer, request), lines)
    return FINE if able else NOTHING_FITS


def _on_cards(document: dict[str, Any], named: str | None, json: bool) -> int:
    """What the given cards do."""
    from planner.answers.fits.compute import fit as compute
    from planner.answers.fits.request import parse_fit
    from planner.presentation.terminal import output
    from planner.presentation.terminal.fit_screen import fit_commands, fit_screen

    request = parse_fit(document).model_copy(update={"model_file": str(named)})
    with bar("searching", best=False):
        answer = answered(lambda: compute(request), lambda service: service.fit(request.document()))
    lines = [""] if any(fit_commands(answer)) else []
    for title, command in fit_commands(answer):
        lines += [f"{title}:", f"  {repeated(command)}"]
    output.show(answer, json, lambda screen: fit_screen(answer, request), lines)
    return FINE if any(row.longest_seq_length for row in answer.rows) else NOTHING_FITS
