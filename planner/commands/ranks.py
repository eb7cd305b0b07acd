"""`planner ranks`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.commands.failures import FINE
from planner.commands.options import request_options
from planner.commands.server import answered
from planner.commands.shared import PLAN, Json, read_request


@request_options(PLAN)
def ranks(
    *,
    source: str | None,
    order: Annotated[
        str, typer.Option(metavar="NAME", help="framework whose rank order is shown")
    ] = "megatron",
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="a picture")] = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Which rank of a plan sits where, in which groups, and which links those cross."""
    from planner.answers.plans import ranks as placing
    from planner.documents.saving import write_picture
    from planner.presentation.drawing.rank_map import ranks_svg
    from planner.presentation.terminal import output
    from planner.presentation.terminal.ranks_screen import ranks_screen

    request = read_request(source, option_values, need_plan=True)
    answer = answered(
        lambda: placing.ranks(request, request.named_plan, order),
        lambda service: service.ranks(request.document(), order=order),
    )
    if svg is not None:
        write_picture(svg, ranks_svg(answer).encode())
    output.show(answer, json, partial(ranks_screen, answer))
    return FINE
