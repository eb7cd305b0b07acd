"""`planner calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.command import PLAN, Json, RequestFile, RequestOption, read_request, source_of
from planner.failures import FINE
from planner.options import request_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cost_models.calibrations import Calibration
    from planner.request import PlanRequest
    from planner.validate.calibrate.job import Job

_PANEL = "The calibration"


def _option(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=_PANEL, **more)


@request_options(PLAN)
def calibrate(
    *,
    request_file: RequestFile = None,
    request: RequestOption = None,
    name: Annotated[
        str, _option("of the profile: a letter or digit, then those and . _ -", metavar="NAME")
    ] = "local",
    extends: Annotated[
        str | None, _option("profile that has the rest; default: the machine's", metavar="NAME")
    ] = None,
    max_seconds: Annotated[
        float,
        _option("for each start of processes; what is left then is left out", min=10, max=43_200),
    ] = 300.0,
    json: Json = False,
    given: Mapping[str, Any],
) -> int:
    """Measure this machine's kernels and links; an efficiency profile to plan with.

    With a plan only what that plan needs; without a request the full set of sizes.
    """
    from planner import output, profiles
    from planner.validate.calibrate import run
    from planner.validate.process import Limits, RunFailed, Stopped, stoppable
    from planner.validate.run_command import failed, progress_lines, stopped

    base = _names(name, extends)
    source = source_of(request_file, request)
    if source is None and not given:
        asked, jobs = _full(max_seconds)
    else:
        asked, jobs = _of_plan(read_request(source, given, need_plan=True), max_seconds)
    # Starting the processes comes on top, and the last point may begin just in time.
    limits = Limits(wall_s=2 * max_seconds + 120)
    try:
        with stoppable(), progress_lines() as progress:
            found = run.calibrate(asked, jobs, name, base, limits, progress)
    except RunFailed as error:
        return failed(error, json)
    except Stopped as by:
        return stopped(by)
    path = profiles.save(found)
    if json:
        output.print_json(found)
    else:
        screen = output.Screen()
        screen.print(_screen(found))
        screen.print(f"\nwrote {path}; use it with --profile {name}", soft_wrap=True, markup=False)
    return FINE


def _names(name: str, extends: str | None) -> str:
    """The built-in profile to extend; RequestError where a name is no good."""
    import re

    from cost_models import profiles
    from cost_models.calibrations import PROFILE_NAME
    from cost_models.catalog import local
    from cost_models.profiles import FALLBACK
    from planner.problems import refuse
    from planner.validation import looked_up

    if not re.fullmatch(PROFILE_NAME, name):
        detail = "must be lower-case letters, digits, ., _ and -, at most 64, none of .-_ first"
        raise refuse("/name", "wrong_name", detail, name)
    if name in profiles.profiles():
        raise refuse("/name", "name_taken", f"{name} is a built-in profile", name)
    usual = extends or local.cluster().groups[0].accelerator.efficiency_profile or FALLBACK
    return looked_up("/extends", lambda: profiles.profile(usual)).id


def _of_plan(request: PlanRequest, budget_s: float) -> tuple[PlanRequest, list[tuple[int, Job]]]:
    """What the plan needs, as it would be validated on this machine."""
    from planner.problems import choice
    from planner.validate.calibrate import wanted
    from planner.validate.native import native
    from planner.validate.scale import scaled

    if request.training.precision not in wanted.PRECISIONS:
        problem = choice("/training/precision", request.training.precision, wanted.PRECISIONS)
        from planner.problems import RequestError

        raise RequestError([problem])
    small = scaled(native(request, compiled=False).request).request
    return small, wanted.of_request(small, budget_s)


def _full(budget_s: float) -> tuple[PlanRequest, list[tuple[int, Job]]]:
    """The full set, in the precision that the machine trains in."""
    from cost_models.catalog import local
    from planner.documents import parse_request
    from planner.validate.calibrate import wanted

    group = local.cluster().groups[0]
    cpu = group.accelerator.id == local.CPU_ID
    request = parse_request(wanted.EXAMPLE, need_plan=True)
    training = request.training.model_copy(update={"precision": "fp32" if cpu else "bf16"})
    request = request.model_copy(update={"training": training})
    ranks = [n for n in wanted.RANKS if n <= group.accelerators_per_node]
    return request, wanted.full(request.model, training, ranks, budget_s)


def _screen(found: Calibration) -> RenderableType:
    """How many points of each kind, and how far apart their repeats lie."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("measured", "points", "spread"):
        table.add_column(heading, justify="left" if heading == "measured" else "right")
    for kind in type(found.points).model_fields:
        points = getattr(found.points, kind)
        if points:
            spreads = sorted((p.high_s - p.low_s) / max(p.seconds, 1e-9) for p in points)
            middle = spreads[len(spreads) // 2]
            table.add_row(kind, str(len(points)), f"{middle:.0%}")
    return table
