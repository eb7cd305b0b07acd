"""Parallel branches: they share one norm, and the sum of their outputs joins the residual."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from cost_models.blocks.base import Mixer
from cost_models.blocks.records import Cached, Record, Split, Weight

if TYPE_CHECKING:
    from cost_models.blocks import AnySublayer
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


class Parallel(Mixer):
    """Attention beside a state-space model (Falcon-H1), experts beside a dense MLP (Gemma 4)."""

    sources: ClassVar[tuple[str, ...]] = ("falcon-h1",)
    kind: Literal["parallel"] = "parallel"
    branches: tuple[AnySublayer, ...] = Field(max_length=8)

    @property
    def label(self) -> str:
        return " + ".join(branch.label for branch in self.branches)

    def missing(self, model: StackSpec) -> str:
        if len(self.branches) < 2:
            return "parallel needs two branches or more"
        return next(filter(None, (branch.missing(model) for branch in self.branches)), "")

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        for branch in self.branches:
            yield from branch.weights(model, split)

    def cached(self, model: StackSpec, split: Split) -> Iterator[Cached]:
        for branch in self.branches:
            yield from branch.cached(model, split)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        for branch in self.branches:
            yield from branch.records(model, d)
