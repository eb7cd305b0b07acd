"""Values of statically evaluated Python: plain values, unevaluated calls, unknown values."""

from __future__ import annotations

from collections.abc import Callable
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


Library = Callable[[Call], Value]
