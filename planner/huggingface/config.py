"""Typed reading of a config.json: values are checked, defaults noted and faults collected.

A reader never raises: a value it cannot use becomes a Problem and the smallest legal number, so
that one pass over a file finds all of its faults.  The importer raises at the end.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

# The bounds of ModelSpec, for numbers from which its fields are computed.
WIDTH = 1_000_000
HEADS = 100_000
LAYERS = 10_000
TOKENS = 10_000_000


class Problem(NamedTuple):
    """One fault: its JSON pointer, a message, the value found, and similar known names."""

    pointer: str
    message: str
    got: str = ""
    did_you_mean: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.pointer or '/'}: {self.message}"
        if self.got:
            text += f", got {self.got}"
        if self.did_you_mean:
            text += f"; did you mean {', '.join(self.did_you_mean)}?"
        return text


class ModelImportError(ValueError):
    """A config that no model can be read from: `problems` lists every fault that was found."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class UnknownArchitecture(ModelImportError):
    """A config that no family here reads."""


def short_text(value: object) -> str:
    """A short text of any value, however large or deep."""
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 100 else text[:97] + "..."


def nearest(name: str, known: Iterable[object]) -> tuple[str, ...]:
    """Up to three known names close to `name`."""
    names = [text[:100] for text in islice(known, 1000) if isinstance(text, str)]
    return tuple(difflib.get_close_matches(name[:100], names, n=3, cutoff=0.7))


class Config:
    """One config object of one family; collects problems and notes while it is read.

    A name may be a path to a key of an inner object: attn_config/alibi.  defaults: those of the
    family, by key; they come before the defaults that are given when a key is read.
    """

    def __init__(self, data: Mapping[str, Any], family: str, pointer: str = "") -> None:
        self.data = data
        self.family = family
        self.pointer = pointer
        self.defaults: Mapping[str, Any] = {}
        self.problems: list[Problem] = []
        self.guessed: list[str] = []
        self.left_out: list[str] = []

    def value(self, name: str) -> Any:
        """What the file gives for this key; None where it says nothing."""
        outer, _, inner = name.rpartition("/")
        return (self.nested(outer) if outer else self).data.get(inner)

    def states(self, *names: str) -> bool:
        """Whether the file gives one of these keys a value other than null."""
        return any(self.value(name) is not None for name in names)

    def spelled(self, names: str) -> str:
        """The first of these names that the file states, or else the first."""
        found = names.split()
        return next((name for name in found if self.states(name)), found[0])

    def nested(self, name: str) -> Config:
        """The object under `name`, or an empty one; it shares the lists of faults and guesses."""
        data = self.data.get(name)
        if data is not None and not isinstance(data, Mapping):
            self.refuse(name, "must be an object")
        return self._inside(data, f"/{name}")

    def nested_in(self, name: str, index: int) -> Config:
        """The object at `index` of the list under `name`."""
        data = self.data[name][index]
        if not isinstance(data, Mapping):
            self.refuse(name, "must hold objects only")
        return self._inside(data, f"/{name}/{index}")

    def _inside(self, data: object, path: str) -> Config:
        found = data if isinstance(data, Mapping) else {}
        inner = Config(found, self.family, self.pointer + path)
        inner.problems, inner.guessed = self.problems, self.guessed
        inner.left_out = self.left_out
        return inner

    def refuse(self, name: str, message: str) -> None:
        """Note a fault of the value of `name`."""
        value = self.value(name)
        got = short_text(value) if value is not None or name in self.data else ""
        problem = Problem(f"{self.pointer}/{name}", message, got)
        if problem not in self.problems:
            self.problems.append(problem)

    def require(self, name: str, default: object, reason: str) -> None:
        """Refuse any value of `name` other than `default`; a file may leave it out."""
        value = self.value(name)
        if value is not None and value != default:
            self.refuse(name, f"only {short_text(default)} can be planned: {reason}")

    def guess(self, name: str, default: object, because: str = "") -> None:
        """Note that `name` was not stated, and which value is used."""
        value = f"{because} = {short_text(default)}" if because else short_text(default)
        source = "" if because else f" (the default of {self.family})"
        self.guessed.append(f"{name}: not stated, {value}{source}")

    def count(
        self, *names: str, most: int, least: int = 1, default: int | None = None, because: str = ""
    ) -> int:
        """The whole number under the first of `names` that is stated, in least..most.

        default: used and noted when none is stated; None: the key is required.  because: where
        the default comes from.
        """
        if names[0] in self.defaults:
            default, because = self.defaults[names[0]], ""
        stated = [name for name in names if self.states(name)]
        if not stated:
            if default is None:
                self._missing(names)
                return least
            self.guess(names[0], default, because)
            return default
        name, value = stated[0], self.value(stated[0])
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(name, f"must be a whole number from {least} to {most}")
            return least
        for other in stated[1:]:
            if self.value(other) != value:
                self.refuse(other, f"contradicts /{name}, which is {value}")
        return value

    def optional(self, name: str, *, most: int, default: int | None) -> int | None:
        """Like count, for a key where null means that the model has no such thing."""
        default = self.defaults.get(name, default)
        if name in self.data and self.data[name] is None:
            return None
        if name not in self.data and default is None:
            self.guess(name, None)
            return None
        return self.count(name, most=most, default=default)

    def flag(self, name: str, default: bool, *, null: bool | None = None) -> bool:
        """The boolean under `name`; the default is noted when it is not stated.

        null: the meaning of null; None: null counts as not stated.
        """
        value, default = self.value(name), self.defaults.get(name, default)
        if value is None and null is not None and name in self.data:
            return null
        if value is None:
            self.guess(name, default)
            return default
        if not isinstance(value, bool):
            self.refuse(name, "must be true or false")
            return default
        return value

    def probability(self, name: str, default: float) -> float:
        """The dropout probability under `name`, in [0, 1)."""
        value, default = self.value(name), self.defaults.get(name, default)
        if value is None:
            self.guess(name, default)
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            self.refuse(name, "must be a number from 0 to below 1")
            return default
        return float(value)

    def _missing(self, names: tuple[str, ...]) -> None:
        hints = nearest(names[0], [key for key in self.data if key not in names])
        message = f"missing; a {self.family} config states {' or '.join(names)}"
        self.problems.append(Problem(f"{self.pointer}/{names[0]}", message, "", hints))
