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


def written_out(command: Any, words: Sequence[str]) -> list[str]:
    """The words with short names of options written out, where the command has the long ones."""
    known = _options(command, words)
    found = []
    for word in words:
        flag, equals, value = word.partition("=")
        long = _SHORT.get(flag)
        found.append(f"{long}{equals}{value}" if long in known and flag not in known else word)
    return found


def repeated(command: Any, words: Sequence[str]) -> Iterator[str]:
    """A sentence for each option with one value that stands there with several."""
    values: dict[str, list[str]] = {}
    known = _options(command, words)
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if word == "--":
            break
        flag, equals, value = word.partition("=")
        option = known.get(flag)
        if option is not None and not (option.multiple or option.is_flag or option.count):
            values.setdefault(option.opts[0], []).append(value if equals else after)
    for flag, given in values.items():
        if len(set(given)) > 1:
            yield f"{flag} stands {len(given)} times ({', '.join(given)}): the last counts"


def nearest_option(typed: str, options: Sequence[str]) -> tuple[str, ...]:
    """What was probably meant, the nearest first; one alone where it is clearly that."""
    if _SHORT.get(typed) in options:
        return (_SHORT[typed],)
    close = get_close_matches(typed, options, n=3, cutoff=0.7)
    likeness = [SequenceMatcher(None, typed, one).ratio() for one in close]
    if len(close) > 1 and likeness[0] - likeness[1] > _CLEARLY:
        return (close[0],)
    return tuple(close)


def _options(command: Any, words: Sequence[str]) -> dict[str, Any]:
    """The options of the command that the words name, by each of their names."""
    for word in words:
        commands = getattr(command, "commands", {})
        if word in commands:
            command = commands[word]
    return {
        name: one
        for one in command.params
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("-")
    }
