"""`planner calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE
from planner.commands.options import request_options
from planner.commands.shared import PLAN, Json, read_request

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cost_models.calibrations import Calibration

_PANEL = "The calibration"


def _option(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=_PANEL, **more)


@request_options(PLAN)
def calibrate(
    *,
    source: str | None,
    name: Annotated[
        str | None,
        _option("of the site and its profile (the same as --site); default: local", metavar="NAME"),
    ] = None,
    extends: Annotated[
        str | None, _option("profile that has the rest; default: the machine's", metavar="NAME")
    ] = None,
    max_seconds: Annotated[
        float,
        _option("for each start of processes; what is left then is left out", min=10, max=43_200),
    ] = 300.0,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Measure this machine's kernels and links, for a site to plan with.

    With a plan only what that plan needs; without a request the full set of sizes.
    """
    from planner.commands.validate import running
    from planner.evidence.uncertainty import profiles
    from planner.presentation.terminal import output
    from planner.running.validate.calibrate import calibration_request, run

    option_values = dict(option_values)
    site = option_values.pop("site", None)
    if None not in (name, site) and name != site:
        raise typer.BadParameter("--name and --site are the same: give one")
    name = name or site or "local"
    base = calibration_request.names(name, extends)
    if source is None and not option_values:
        request, jobs = calibration_request.full(max_seconds)
    else:
        request, jobs = calibration_request.of_plan(
            read_request(source, option_values, need_plan=True), max_seconds
        )
    limits = calibration_request.limits(max_seconds)
    with running(json) as progress:
        calibration = run.calibrate(request, jobs, name, base, limits, progress)
    path = profiles.save(calibration)
    wrote = f"\nwrote {path}; use it with --site {name}"
    output.show(calibration, json, lambda screen: _screen(calibration), [wrote])
    return FINE


def _screen(calibration: Calibration) -> RenderableType:
    """The number of points of each kind, and the spread of their repeats."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("measured", "points", "spread"):
        table.add_column(heading, justify="left" if heading == "measured" else "right")
    for kind in type(calibration.points).model_fields:
        points = getattr(calibration.points, kind)
        if points:
            spreads = sorted((p.high_s - p.low_s) / max(p.seconds, 1e-9) for p in points)
            middle = spreads[len(spreads) // 2]
            table.add_row(kind, str(len(points)), f"{middle:.0%}")
    return table
