"""Where formulas and constants come from: citation keys, and the registry of public formulas.

A formula is a pure function of float64 arrays that broadcast; a single plan is the 0-d case.
`@formula` records the unit of its result and the sources it rests on, so that tests can run
over all of them (known source, vector == scalar, dimensions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from numpy.typing import NDArray

from cost_models.package_files import table

# Counts may arrive as int64 columns; every formula computes in float64.
Array = float | NDArray[Any]
Unit = Literal["byte", "s", "flop", "1", "byte/s", "flop/s"]

SOURCES: dict[str, str] = table(__package__ or "", "sources.json")


@dataclass(frozen=True)
class Formula:
    function: Callable[..., Any]
    unit: Unit
    sources: tuple[str, ...]


F = TypeVar("F", bound=Callable[..., Any])

FORMULAS: dict[str, Formula] = {}


def formula(unit: Unit, *sources: str) -> Callable[[F], F]:
    """Register a public formula: the unit of its result and its citation keys."""

    def register(function: F) -> F:
        FORMULAS[f"{function.__module__}.{function.__name__}"] = Formula(function, unit, sources)
        return function

    return register
