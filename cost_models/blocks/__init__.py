"""Blocks: the parts that models are made of, one file each.

What may stand in a layer is known as soon as its file is here: documents name it by its `kind`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from cost_models.blocks.base import Block, FeedForward, Mixer, Sublayer
from cost_models.blocks.parallel import Parallel

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def _named(kind: type[Any]) -> Iterator[type[Sublayer]]:
    """The classes under one that documents can name."""
    subclasses: list[type[Sublayer]] = kind.__subclasses__()
    for each in subclasses:
        if "kind" in each.__annotations__:
            yield each
        yield from _named(each)


def kind_of(sublayer: type[Sublayer]) -> str:
    """The word that names it in documents."""
    return str(sublayer.model_fields["kind"].default)


_root: type[Any] = Sublayer
SUBLAYERS: tuple[type[Sublayer], ...] = tuple(sorted(_named(_root), key=kind_of))
if TYPE_CHECKING:
    AnySublayer = Sublayer
else:
    AnySublayer = Annotated[reduce(or_, SUBLAYERS), Field(discriminator="kind")]
Parallel.model_rebuild(_types_namespace={"AnySublayer": AnySublayer})

__all__ = ["SUBLAYERS", "AnySublayer", "Block", "FeedForward", "Mixer", "Sublayer"]
