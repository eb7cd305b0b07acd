"""`planner rl` and `planner rl-emit`: one step of GRPO or PPO, and the files that run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE, NOTHING_FITS
from planner.commands.options import part_options, request_options, scalars
from planner.commands.server import answered, split_service_names
from planner.commands.shared import LIMITS, Json, nothing_fits, print_bundle, read_document
from planner.presentation.terminal.progress_bar import bar

if TYPE_CHECKING:
    from planner.answers.reinforcement.documents import ReinforcementRequest
    from planner.inputs.logs.rl_steps import MeasuredSteps


@request_options(LIMITS)
@part_options("reinforcement")
def rl(
    *,
    source: str | None,
    measured_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a log of such steps, of verl, NeMo-RL, slime or TRL"),
    ] = None,
    json: Json = False,
    reinforcement: Mapping[str, Any],
    option_values: Mapping[str, Any],
) -> int:
    """Time and memory of a step of GRPO or PPO: generation, scoring, training, new weights."""
    from planner.answers.reinforcement.compute import step
    from planner.presentation.terminal import output
    from planner.presentation.terminal.reinforcement_screen import reinforcement_screen

    request = _read_request(source, reinforcement, option_values)
    measured = None if measured_log is None else _measured_steps(measured_log)
    with bar("searching"):
        answer = answered(lambda: step(request), lambda service: service.rl(request.document()))
    if measured is None:
        output.show(answer, json, lambda screen: reinforcement_screen(answer, request, screen))
    else:
        from planner.answers.reinforcement.measured import beside
        from planner.presentation.terminal.measured_step_screen import measured_screen

        compared = beside(request, answer, measured)
        output.show(compared, json, lambda screen: measured_screen(compared, request, screen))
    return FINE if answer.fits else NOTHING_FITS


@request_options(LIMITS)
@part_options("reinforcement")
def rl_emit(
    *,
    source: str | None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write all files into this folder")
    ] = None,
    json: Json = False,
    reinforcement: Mapping[str, Any],
    option_values: Mapping[str, Any],
) -> int:
    """Launch files of a whole step: generation, scoring, training, for one of seven trainers."""
    from planner.answers.plans.emission import NothingFits
    from planner.answers.reinforcement.emission import files

    request = _read_request(source, reinforcement, option_values)
    try:
        with bar("searching"):
            bundle = answered(
                lambda: files(request), lambda service: service.rl_bundle(request.document())
            )
    except NothingFits as error:
        return nothing_fits(error.problems, json)
    return print_bundle(bundle, output, json, as_script=True)


def _measured_steps(path: Path) -> MeasuredSteps:
    """What a log says of its steps.  Raises RequestError."""
    from planner.documents.problems import refuse
    from planner.inputs.logs.rl_steps import read_steps
    from planner.inputs.logs.stream import lines_of

    try:
        with path.open("rb") as file:
            return read_steps(lines_of(file), path.name)
    except OSError as error:
        raise refuse("/log", "unreadable", f"{path}: {error.strerror}") from None


def _read_request(
    source: str | None, options: Mapping[str, Any], option_values: Mapping[str, Any]
) -> ReinforcementRequest:
    """The request of a document and of options.  Raises RequestError."""
    from planner.answers.reinforcement.parsing import parse_reinforcement

    document = read_document(source, option_values, limits=True, keep_plan=True)
    known, names = split_service_names(_with_options(document, options))
    request = parse_reinforcement(known)
    return request.model_copy(update={"request": request.request.model_copy(update=names)})


def _with_options(document: dict[str, Any], options: Mapping[str, str | bool]) -> dict[str, Any]:
    """The document with the options of the step over it."""
    from planner.answers.reinforcement.documents import PART

    values, part = scalars(options, f"/{PART}"), document.get(PART)
    if not values or not isinstance(part, dict | None):
        return document
    return {**document, PART: {**(part or {}), **values}}
