"""Values of statically evaluated Python: plain values, unevaluated calls, unknown values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Value = Any


@dataclass(frozen=True)
class Unknown:
    """A value that the file does not determine; source: its expression."""

    source: str
    line: int


@dataclass(eq=False)
class Call:
    """A call that is not evaluated: a constructor with its arguments, or a method of `owner`.

    name: dotted, as imported.  lines: line of each keyword argument or assigned attribute.
    """

    name: str
    line: int
    args: tuple[Value, ...] = ()
    kwargs: dict[str, Value] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    owner: Value = None

    @property
    def short(self) -> str:
        """The name without the module: `Class` or `Class.Config`."""
        parts = self.name.split(".")
        return ".".join(parts[-2:]) if parts[-1] == "Config" else parts[-1]

    def set(self, name: str, value: Value, line: int) -> None:
        self.kwargs[name] = value
        self.lines[name] = line


@dataclass(frozen=True, eq=False)
class Function:
    """A function as a value; scope: the names around it, bound: the object it is a method of."""

    node: ast.FunctionDef
    scope: Mapping[str, Value]
    bound: Value = None


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the file: its attributes with their values, and its methods.

    bases: names of those that it is derived from, as imported.
    """

    name: str
    line: int
    bases: tuple[str, ...]
    attributes: dict[str, Value]
    methods: dict[str, Function]


@dataclass(eq=False)
class Instance(Call):
    """An object of a class of the file; its attributes are keyword arguments."""

    kind: Class | None = None


Library = Callable[[Call], Value]
