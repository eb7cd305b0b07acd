"""Facts of a model that its spec does not carry, because they cost neither bytes nor seconds.

A script that leaves them out trains another model than the config.json it was planned from, so
the script and the bundle list those that the model at hand can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cost_models.spec import ModelSpec
from planner.answer import Note
from planner.frameworks.shell import comment


@dataclass(frozen=True)
class Uncarried:
    """One such fact, how the framework says it and what it takes unsaid, and who can have it."""

    fact: str
    how: str
    exists: Callable[[ModelSpec], bool] = lambda model: True

    def __str__(self) -> str:
        return f"{self.fact}: {self.how}"


def rotary(model: ModelSpec) -> bool:
    return model.position == "rope"


def mixture(model: ModelSpec) -> bool:
    return model.moe is not None


def gated(model: ModelSpec) -> bool:
    return model.gated_mlp


def ungated(model: ModelSpec) -> bool:
    return not model.gated_mlp


def predicts_several(model: ModelSpec) -> bool:
    return model.mtp_num_layers > 0


def of(model: ModelSpec, table: Iterable[Uncarried]) -> tuple[Uncarried, ...]:
    """What the model at hand can have."""
    return tuple(row for row in table if row.exists(model))


def note(rows: Iterable[Uncarried]) -> Note:
    return Note(
        code="not_carried",
        text="Not part of the plan and left at the default; set by hand what the model's "
        "config.json says otherwise: " + "; ".join(map(str, rows)) + ".",
    )


def comments(rows: Iterable[Uncarried]) -> str:
    """The same as comment lines."""
    head = (
        "Not part of the plan and left at the default: set by hand what the model's config.json",
        "says otherwise.",
    )
    return "\n".join(map(comment, (*head, *(f"  {row}" for row in rows))))
