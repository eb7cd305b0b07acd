"""The words of a command line before they are parsed: short names, and options that stand twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from planner.documents.short_names import SHORT_NAMES

_SHORT = {f"--{short}": f"--{name.replace('_', '-')}" for short, name in SHORT_NAMES.items()}
_SHORT["--no-sp"] = "--no-sequence-parallel"
# A name that is so much nearer than the next is the one that was meant.
_CLEARLY = 0.1


def written_out(command: Any, arguments: Sequence[str]) -> list[str]:
    """The words with short names of options written out, where the command has the long ones."""
    known = _options(command, arguments)
    result = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        long = _SHORT.get(flag)
        result.append(f"{long}{equals}{value}" if long in known and flag not in known else argument)
    return result


def repeated(command: Any, arguments: Sequence[str]) -> Iterator[str]:
    """A sentence for each option with one value that stands there with several."""
    values: dict[str, list[str]] = {}
    known = _options(command, arguments)
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == "--":
            break
        flag, equals, value = argument.partition("=")
        option = known.get(flag)
        if option is not None and not (option.multiple or option.is_flag or option.count):
            values.setdefault(option.opts[0], []).append(value if equals else after)
    for flag, texts in values.items():
        if len(set(texts)) > 1:
            yield f"{flag} stands {len(texts)} times ({', '.join(texts)}): the last counts"


def nearest_option(typed: str, options: Sequence[str]) -> tuple[str, ...]:
    """What was probably meant, the nearest first; one alone where it is clearly that."""
    if _SHORT.get(typed) in options:
        return (_SHORT[typed],)
    close = get_close_matches(typed, options, n=3, cutoff=0.7)
    likeness = [SequenceMatcher(None, typed, option).ratio() for option in close]
    if len(close) > 1 and likeness[0] - likeness[1] > _CLEARLY:
        return (close[0],)
    return tuple(close)


def _options(command: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """The options of the command that the words name, by each of their names."""
    for argument in arguments:
        commands = getattr(command, "commands", {})
        if argument in commands:
            command = commands[argument]
    return {
        name: parameter
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }
