"""Blocks: the parts that models are made of, one file each.

What may stand in a layer is known as soon as its file is here: documents name it by its `kind`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from cost_models.blocks.base import Block, FeedForward, Mixer, Sublayer
from cost_models.blocks.parallel import Parallel

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def _named(kind: type[Sublayer]) -> Iterator[type[Sublayer]]:
    """The classes under one that documents can name."""
    for each in kind.__subclasses__():
        if "kind" in each.__annotations__:
            yield each
        yield from _named(each)


SUBLAYERS: tuple[type[Sublayer], ...] = tuple(sorted(_named(Sublayer), key=lambda m: m.__name__))
if TYPE_CHECKING:
    AnySublayer = Sublayer
else:
    AnySublayer = Annotated[reduce(or_, SUBLAYERS), Field(discriminator="kind")]
Parallel.model_rebuild(_types_namespace={"AnySublayer": AnySublayer})

__all__ = ["SUBLAYERS", "AnySublayer", "Block", "FeedForward", "Mixer", "Sublayer"]
