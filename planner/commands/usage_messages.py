"""What is wrong with the options themselves, in the words of the planner's other messages."""

from __future__ import annotations

import re
from typing import Any

import typer

from planner.commands.typed_words import nearest_option
from planner.documents.problems import nearest

_BOUNDS = {
    "Input should be greater than or equal to ": "must be >= ",
    "Input should be less than or equal to ": "must be <= ",
    "Input should be a valid integer": "must be an integer",
    "Input should be a valid number": "must be a number",
}


def usage_message(error: typer.TyperException) -> str:
    """A sentence on an error of the parser of options; "" where it has shown help instead."""
    typed = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if typed is not None and hasattr(error, "possibilities"):
        parameters = [] if context is None else context.command.params
        names = [name for p in parameters for name in (*p.opts, *p.secondary_opts)]
        close = nearest_option(typed, [name for name in names if name.startswith("--")])
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        return f"No such option: {typed}{hint}"
    parameter, lacks = getattr(error, "param", None), hasattr(error, "param_type")
    if parameter is None or lacks or not isinstance(error, typer.BadParameter):
        return error.format_message()
    return f"{_name(parameter)}: {_reworded(str(error))}"


def _name(parameter: Any) -> str:
    """The option, or the name that the help has for an argument."""
    long = [name for name in parameter.opts if name.startswith("--")]
    return str(long[0]) if long else str(parameter.metavar or parameter.name).upper()


def _reworded(text: str) -> str:
    """A sentence of pydantic's, by which the parser checks values, in ours."""
    text = text.removeprefix("Value error, ").rstrip(".")
    for prefix, wording in _BOUNDS.items():
        if text.startswith(prefix):
            return wording + text.removeprefix(prefix).partition(",")[0]
    if (match := re.fullmatch(r"'(.*)' is not one of (.*)", text)) is None:
        return text
    choices = match[2].replace("'", "")
    close = nearest(match[1], choices.split(", "))
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"must be one of {choices}; got {match[1]}{hint}"
