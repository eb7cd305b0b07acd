"""`planner rl`: time and memory of one step of GRPO or PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.commands.failures import FINE, NOTHING_FITS
from planner.commands.options import part_options, request_options, scalars
from planner.commands.server import answered, apart
from planner.commands.shared import (
    LIMITS,
    Json,
    read_document,
)
from planner.presentation.terminal.progress_bar import bar


@request_options(LIMITS)
@part_options("reinforcement")
def rl(
    *,
    source: str | None,
    json: Json = False,
    reinforcement: Mapping[str, Any],
    option_values: Mapping[str, Any],
) -> int:
    """Time and memory of a step of GRPO or PPO: generation, scoring, training, new weights."""
    from planner.answers.reinforcement.compute import step
    from planner.answers.reinforcement.parsing import parse_reinforcement
    from planner.presentation.terminal import output
    from planner.presentation.terminal.reinforcement_screen import reinforcement_screen

    document = read_document(source, option_values, limits=True, keep_plan=True)
    known, names = apart(_with(document, reinforcement))
    asked = parse_reinforcement(known)
    asked = asked.model_copy(update={"request": asked.request.model_copy(update=names)})
    with bar("searching"):
        answer = answered(lambda: step(asked), lambda service: service.rl(asked.document()))
    output.show(answer, json, lambda screen: reinforcement_screen(answer, asked))
    return FINE if answer.fits else NOTHING_FITS


def _with(document: dict[str, Any], own: Mapping[str, str | bool]) -> dict[str, Any]:
    """The document with the options of the step over it."""
    from planner.answers.reinforcement.documents import PART

    given, part = scalars(own, f"/{PART}"), document.get(PART)
    if not given or not isinstance(part, dict | None):
        return document
    return {**document, PART: {**(part or {}), **given}}
