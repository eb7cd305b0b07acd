"""`planner sensitivity`: how the answer moves with each input."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE
from planner.commands.options import request_options
from planner.commands.server import answered
from planner.commands.shared import LIMITS, Json, Report, load, nothing_fits, read_request
from planner.commands.timeline import PICTURES, Theme, picture
from planner.presentation.terminal.progress_bar import bar

if TYPE_CHECKING:
    from planner.answers.sensitivities.documents import SensitivitySpec


@request_options(LIMITS)
def sensitivity(
    *,
    source: str | None,
    input: Annotated[
        str | None, typer.Option(metavar="NAMES", help="inputs to change; default: all that apply")
    ] = None,
    factors: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="multiples; default 0.5,0.8,1.25,2")
    ] = None,
    resolution: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="share to which a change of plan is located"),
    ] = None,
    json: Json = False,
    svg: Annotated[Path | None, picture("svg", "the tornado as a picture")] = None,
    png: Annotated[Path | None, picture("png", "the same (needs the extra `plot`)")] = None,
    pdf: Annotated[Path | None, picture("pdf", "the same, for a paper")] = None,
    theme: Annotated[Theme, typer.Option(rich_help_panel=PICTURES)] = Theme.auto,
    report: Report = None,
    option_values: Mapping[str, Any],
) -> int:
    """How the answer moves with each input, and where the best plan changes."""
    from planner.answers.plans.emission import NothingFits
    from planner.answers.sensitivities import analysis
    from planner.presentation.drawing.page import paper, write_page
    from planner.presentation.drawing.rendering import SCREEN_INCH, drawing
    from planner.presentation.drawing.tornado_svg import tornado_svg
    from planner.presentation.terminal import output
    from planner.presentation.terminal.plan_rows import asked_of
    from planner.presentation.terminal.sensitivity_screen import sensitivity_screen

    document = load(source)
    spec = _spec(document.pop(analysis.PART, None), input, factors, resolution)
    request = read_request(source, option_values, limits=True, keep_plan=True, document=document)
    try:
        with bar("changing inputs"):
            answer = answered(
                lambda: analysis.sensitivity(request, spec),
                lambda service: service.sensitivity(
                    request.document() | {analysis.PART: spec.model_dump(mode="json")}
                ),
            )
    except NothingFits as error:
        return nothing_fits(error.problems, json)
    draw = partial(drawing, partial(tornado_svg, answer), theme=theme.value, wide_inch=SCREEN_INCH)
    written = output.write_figures({"svg": svg, "png": png, "pdf": pdf}, draw)
    if report is not None:
        shown = sensitivity_screen(answer, asked_of(request), paper())
        title = f"How a plan for {request.model.name} moves with its inputs"
        write_page(report, title, shown, [tornado_svg(answer, "light")])
    screen = partial(sensitivity_screen, answer, asked_of(request))
    output.show(answer, json, screen, [f"wrote {path}" for path in written])
    return FINE


def _spec(
    part: Any, names: str | None, factors: str | None, resolution: str | None
) -> SensitivitySpec:
    """The `sensitivity` part of the request file, overridden by the command line's options."""
    from planner.answers.sensitivities.analysis import PART, parse_spec
    from planner.documents.loading import scalar

    def read(name: str, text: str) -> Any:
        return scalar(text.strip(), f"/{PART}/{name}")

    fields: dict[str, Any] = {}
    if names is not None:
        fields["inputs"] = [name.strip().replace("-", "_") for name in names.split(",")]
    if factors is not None:
        fields["factors"] = [read(f"factors/{i}", f) for i, f in enumerate(factors.split(","))]
    if resolution is not None:
        fields["resolution"] = read("resolution", resolution)
    return parse_spec(fields if part is None else part | fields if isinstance(part, dict) else part)
