"""The command of a question: its own, or one made of its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from planner.commands.failures import FINE
from planner.commands.options import request_options
from planner.commands.server import answered, split_service_names
from planner.commands.shared import LIMITS, PLAN, Json, read_document
from planner.presentation.terminal.progress_bar import bar
from planner.questions.question import Question, resolved


def command_of(question: Question) -> Callable[..., int]:
    """The function that its record names, or one with the options of a request and its screen."""
    if question.function:
        written: Callable[..., int] = resolved(question.function)
        return written

    def command(
        *,
        source: str | None,
        json: Json = False,
        option_values: Mapping[str, Any],
        **parameters: str | None,
    ) -> int:
        from planner.presentation.terminal import output
        from planner.presentation.terminal.plan_rows import asked_of

        limits = not question.of_plan
        document = read_document(source, option_values, limits=limits, keep_plan=True)
        known, names = split_service_names(document)
        request = question.parsed(known).model_copy(update=names)
        with bar("searching"):
            answer = answered(
                lambda: question.answered(request, **parameters),
                lambda service: getattr(service, question.name)(request.document(), **parameters),
            )
        output.show(answer, json, partial(resolved(question.screen), answer, asked_of(request)))
        return FINE

    *shared, _ = signature(command, eval_str=True).parameters.values()
    options = [
        Parameter(
            parameter.name,
            Parameter.KEYWORD_ONLY,
            default=parameter.default,
            annotation=Annotated[str | None, typer.Option(metavar="NAME", help=parameter.about)],
        )
        for parameter in question.parameters
    ]
    command.__signature__ = Signature([*shared, *options])  # type: ignore[attr-defined]
    command.__doc__ = question.about.replace("`", "")
    return request_options(PLAN if question.of_plan else LIMITS)(command)
