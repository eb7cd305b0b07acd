"""What readers of post-training have in common: sizes of a step, models and keys by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from cost_models.catalog.names import UnknownName
from cost_models.spec import ModelSpec
from planner.frameworks import architecture
from planner.frameworks.read_results import Setting, Unreadable
from planner.huggingface.named_models import find, is_open, names_none


class Sizes(NamedTuple):
    """Tokens per sequence, sequences per step, and sequences per micro-batch."""

    length: int
    batch: int
    micro: int


def sequences(tokens: int, length: int, share: int) -> int:
    """The longest sequences of a pass of so many tokens; they divide a replica's share."""
    most = min(max(tokens // length, 1), share)
    return next(n for n in range(most, 0, -1) if share % n == 0)


def preset(name: str, unnamed: str, place: tuple[str, int], notes: list[str]) -> ModelSpec:
    """The preset of the last folder of a path or name; unnamed: what is missing without one.

    Raises Unreadable.
    """
    name = name.rstrip("/")
    if is_open(name):
        text = f"the model is {name[:100]}, which the files do not say: give it (--model)"
        raise Unreadable(text, *place)
    try:
        return find(name, notes)
    except UnknownName as error:
        last = name.rsplit("/", 1)[-1][:100]
        found = f"the model {last} is no preset ({error})" if name else unnamed
        if name and names_none(name):
            found = f"the model {last} is a folder or a place to fill in"
        raise Unreadable(f"{found}: give it (--model)", *place) from None


def with_prediction(model: ModelSpec, layers: int) -> ModelSpec:
    """The model with so many prediction layers."""
    if layers == model.mtp_num_layers:
        return model
    kept = {} if layers else {"mtp_layer": ()}
    return ModelSpec(**{**model.model_dump(), "mtp_num_layers": layers, **kept})


def refuse_shapes(left: Iterable[Setting], named: bool, same: Collection[str] = ()) -> None:
    """Raises Unreadable if a key that was not looked up may change what is trained.

    Only the last part of a key counts: the names of its groups tell nothing about it.  named:
    whether the model is given.  same: last parts that change nothing.
    """
    last = ((one.name.rsplit(".", 1)[-1], one) for one in left)
    shapes = [one.model_copy(update={"name": name}) for name, one in last if name not in same]
    architecture.refuse(shapes, named=named)
