"""`planner timeline` and `planner compare-schedules`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from planner.commands.failures import FINE
from planner.commands.options import FIELDS, PIPELINE, part_options, request_options, scalars
from planner.commands.server import answered
from planner.commands.shared import PLAN, Json, figure, load, read_request

if TYPE_CHECKING:
    from planner.answers.pipelines.timeline import TimelineAnswer
    from planner.commands.server import Client
    from planner.documents.request import PlanRequest

T = TypeVar("T")
PICTURES = "Pictures"
picture = partial(figure, panel=PICTURES)


class Theme(StrEnum):
    """Colours of a picture; auto: as the reader's screen, in PNG and PDF light."""

    auto = "auto"
    light = "light"
    dark = "dark"


@request_options(PLAN)
@part_options("pipeline")
def timeline(
    *,
    source: str | None,
    json: Json = False,
    svg: Annotated[Path | None, picture("svg", "a static picture")] = None,
    html: Annotated[Path | None, picture("html", "a page to zoom and point at")] = None,
    trace: Annotated[Path | None, picture("trace", "a Chrome trace, for Perfetto")] = None,
    png: Annotated[Path | None, picture("png", "a picture (needs the extra `plot`)")] = None,
    pdf: Annotated[Path | None, picture("pdf", "the same, for a paper")] = None,
    theme: Annotated[Theme, typer.Option(rich_help_panel=PICTURES)] = Theme.auto,
    pipeline: Mapping[str, Any],
    option_values: Mapping[str, Any],
) -> int:
    """When each rank of a pipeline does what: of a plan, or of a schedule with given times."""
    from planner.answers.pipelines import plan_timeline
    from planner.answers.pipelines import timeline as timelines
    from planner.presentation.terminal import output
    from planner.presentation.terminal.timeline_screen import timeline_screen

    answer = _answer(
        source,
        pipeline,
        option_values,
        plan_timeline.timeline_of,
        lambda document: timelines.timeline(timelines.parse_timeline(document)),
        lambda service, document: service.timeline(document),
    )
    paths = {"svg": svg, "html": html, "trace": trace, "png": png, "pdf": pdf}
    written = output.write_figures(paths, partial(_draw, answer, theme.value))
    wrote = [f"wrote {path}" for path in written]
    output.show(answer, json, partial(timeline_screen, answer), wrote)
    return FINE


@request_options(PLAN)
@part_options("pipeline")
def compare_schedules(
    *,
    source: str | None,
    json: Json = False,
    pipeline: Mapping[str, Any],
    option_values: Mapping[str, Any],
) -> int:
    """All pipeline schedules side by side: time, bubble, memory, messages, who runs them."""
    from planner.answers.pipelines import all_schedules, plan_timeline
    from planner.presentation.terminal import output
    from planner.presentation.terminal.timeline_screen import comparison_screen

    answer = _answer(
        source,
        pipeline,
        option_values,
        plan_timeline.schedules_of,
        lambda document: all_schedules.compare_schedules(all_schedules.parse_comparison(document)),
        lambda service, document: service.schedule_comparison(document),
    )
    output.show(answer, json, partial(comparison_screen, answer))
    return FINE


def _answer(
    source: str | None,
    pipeline: Mapping[str, Any],
    option_values: Mapping[str, Any],
    of_plan: Callable[[PlanRequest], T],
    of_pipeline: Callable[[dict[str, Any]], T],
    remotely: Callable[[Client, dict[str, Any]], T],
) -> T:
    """The answer about a request's plan, or about a pipeline without a model."""
    document = load(source)
    if not _is_of_plan(document, pipeline, option_values):
        bare = {**document, **option_values, **scalars(pipeline)}
        return answered(lambda: of_pipeline(bare), lambda service: remotely(service, bare))
    request = read_request(source, option_values, need_plan=True, document=document)
    return answered(lambda: of_plan(request), lambda service: remotely(service, request.document()))


def _is_of_plan(
    document: Mapping[str, Any], pipeline: Mapping[str, Any], option_values: Mapping[str, Any]
) -> bool:
    """Whether the question is about a plan; otherwise about a pipeline without a model."""
    from planner.documents.problems import refuse

    of_plan = [name for name in option_values if name != "schedule"]
    if pipeline and of_plan:
        flags = ", ".join(FIELDS[name].flag for name in of_plan)
        others = ", ".join(PIPELINE[name].flag for name in pipeline)
        detail = f"{flags} goes with a plan, {others} with a pipeline without a model: not both"
        raise refuse("", "usage", detail)
    return bool(of_plan) or "model" in document


def _draw(answer: TimelineAnswer, theme: Any, kind: Any) -> bytes:
    from planner.presentation.drawing import html, rendering, svg, trace

    if kind == "html":
        return html.html(answer, theme).encode()
    if kind == "trace":
        return trace.trace(answer).encode()
    return rendering.drawing(partial(svg.svg, answer), kind, theme, rendering.SCREEN_INCH)
