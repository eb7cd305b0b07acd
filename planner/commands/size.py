"""`planner size`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE, NOTHING_FITS
from planner.commands.options import part_of, part_options, request_options
from planner.commands.server import answered, split_service_names
from planner.commands.shared import Json, Report, figure, read_document
from planner.presentation.terminal.progress_bar import bar

if TYPE_CHECKING:
    from planner.answers.sizing.request import SizingRequest

_PANEL = "Sizing"
LISTED = {name for name, field in part_of("sizing").items() if field.several}


@request_options("Limits of the search")
@part_options("sizing")
def size(
    *,
    source: str | None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PAIR",
            help="NAME=USD per accelerator-hour; again for more",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    every_row: Annotated[
        bool,
        typer.Option("--all", help="every cluster, not only the front", rich_help_panel=_PANEL),
    ] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="days against cost")] = None,
    png: Annotated[Path | None, figure("png", "days against cost")] = None,
    pdf: Annotated[Path | None, figure("pdf", "the same")] = None,
    report: Report = None,
    json: Json = False,
    sizing: Mapping[str, Any],
    option_values: Mapping[str, Any],
) -> int:
    """What to rent: days, cost and energy on each kind and number of accelerators."""
    from cost_models.catalog.local import cpu_cores
    from planner.answers.sizing.compute import size as compute
    from planner.presentation.drawing.page import write_page
    from planner.presentation.drawing.rendering import drawing
    from planner.presentation.drawing.sizing_figure import sizing_figure
    from planner.presentation.terminal import output
    from planner.presentation.terminal.sizing_screen import sizing_screen

    fields = dict(sizing)
    if "pue" in option_values:  # a sizing has it in its own part, not in a cluster
        fields["pue"] = option_values["pue"]
    option_values = {name: value for name, value in option_values.items() if name != "pue"}
    request = _read_sizing(source, option_values, fields, price or [])
    with bar("searching clusters"):
        answer = answered(
            lambda: compute(request, cpu_cores()),
            lambda service: service.sizing(request.document()),
        )
    if report is not None:
        screen = sizing_screen(answer, request, every_row=True)
        write_page(report, f"Sizing {request.base.model.name}", screen, [sizing_figure(answer)])
    figure = partial(drawing, partial(sizing_figure, answer))
    output.write_figures({"svg": svg, "png": png, "pdf": pdf}, figure)
    output.show(answer, json, lambda screen: sizing_screen(answer, request, every_row))
    return NOTHING_FITS if answer.fastest is None else FINE


def _read_sizing(
    source: str | None, option_values: Mapping[str, Any], spec: Mapping[str, str], prices: list[str]
) -> SizingRequest:
    from planner.answers.sizing.request import parse_sizing
    from planner.documents.loading import scalar
    from planner.documents.problems import join, refuse

    document = read_document(source, option_values, limits=True)
    sizing = {} if document.get("sizing") is None else document["sizing"]
    if not isinstance(sizing, dict):
        return parse_sizing(document)
    document, names = split_service_names(document)
    for name, text in spec.items():
        values = [scalar(item.strip(), join("/sizing", name)) for item in text.split(",")]
        sizing[name] = values if name in LISTED else values[0] if len(values) == 1 else text
    at = "/sizing/prices_usd_per_accelerator_hour"
    for pair in prices:
        kind, equals, usd = pair.partition("=")
        if not equals:
            raise refuse(at, "usage", f"--price takes NAME=USD, got {pair[:80]!r}")
        table = sizing.setdefault("prices_usd_per_accelerator_hour", {})
        table[kind.strip()] = scalar(usd.strip(), join(at, kind.strip()))
    request = parse_sizing({**document, "sizing": sizing})
    return request.model_copy(update={"base": request.base.model_copy(update=names)})
