"""Facts of a model that change neither memory nor time, and that a written launch leaves out.

Without them a script trains a different model from the config.json that was planned.  So the
script and the bundle list the facts that the model states but the framework has no option for, and
those that the model can have but does not state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cost_models.spec import ModelSpec
from planner.documents.plan_report import Note
from planner.frameworks.bash_writer import comment

# Numerics that every model has: if a model states some numerics but not these, they are unknown,
# while others that it does not state are absent.
ALWAYS = {"norm_epsilon", "init_std", "rope_theta"}
MULTIPLIERS = (
    "attention_softcap", "logit_softcap", "attention_scale", "embedding_multiplier",
    "residual_multiplier", "logit_multiplier",
)  # fmt: skip


@dataclass(frozen=True)
class Uncarried:
    """One such fact, the framework's option for it with its default, and which models have it.

    numerics: the fields of cost_models.numerics.Numerics that hold it.
    """

    fact: str
    how: str
    exists: Callable[[ModelSpec], bool] = lambda model: True
    numerics: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.fact}: {self.how}"

    def known(self, model: ModelSpec) -> bool:
        """Whether the model states it, or implies its absence by stating others."""
        stated = model.numerics.stated
        return bool(self.numerics and stated) and not set(self.numerics) & ALWAYS - stated


class Missing(NamedTuple):
    """rows: facts that the model can have but does not state; lost: stated, but without option."""

    rows: tuple[Uncarried, ...]
    lost: tuple[str, ...]


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


def of(model: ModelSpec, table: Iterable[Uncarried], said: Collection[str]) -> Missing:
    """The facts that the written files leave out.

    said: the fields of the model's numerics that are written.
    """
    rows = tuple(row for row in table if row.exists(model) and not row.known(model))
    lost = sorted(model.numerics.stated - set(said))
    return Missing(rows, tuple(f"{name} {_words(getattr(model.numerics, name))}" for name in lost))


def _words(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, float | str):
        return f"{value}"
    stated = value.model_dump(exclude_none=True)
    long = {
        name: f"{len(each)} factors" for name, each in stated.items() if isinstance(each, tuple)
    }
    return ", ".join(f"{name} {each}" for name, each in (stated | long).items())


def notes(missing: Missing) -> Iterator[Note]:
    """The bundle's notes on the facts that it leaves out."""
    if missing.lost:
        yield Note(code="cannot_be_said", text=f"{_LOST}: {'; '.join(missing.lost)}.")
    if missing.rows:
        yield Note(
            code="not_carried",
            text="Not part of the plan and left at the default; set by hand if the model's "
            f"config.json differs: {'; '.join(map(str, missing.rows))}.",
        )


def comments(missing: Missing) -> str:
    """Comment lines on the facts that the bundle leaves out."""
    lines = [f"{_LOST}:", *(f"  {row}" for row in missing.lost)] if missing.lost else []
    if missing.rows:
        lines += [
            "Not part of the plan and left at the default; set by hand if config.json differs:",
            *(f"  {row}" for row in missing.rows),
        ]
    return "\n".join(map(comment, lines))


_LOST = "The framework has no option for these facts of the model, so it trains another model"
