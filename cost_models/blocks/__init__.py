"""Blocks: the parts that models are made of, one file each.

Importing this package registers every sublayer in it; documents name a sublayer by its `kind`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from cost_models import plugins
from cost_models.blocks.base import Block, FeedForward, Mixer, Sublayer
from cost_models.blocks.parallel import Parallel

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def _with_kind(base: type[Any]) -> Iterator[type[Sublayer]]:
    """All subclasses that declare a `kind`, at any depth."""
    subclasses: list[type[Sublayer]] = base.__subclasses__()
    for each in subclasses:
        if "kind" in each.__annotations__:
            yield each
        yield from _with_kind(each)


def kind_of(sublayer: type[Sublayer]) -> str:
    """The `kind` by which documents name the sublayer."""
    return str(sublayer.model_fields["kind"].default)


_root: type[Any] = Sublayer
_left_out = set[type[Sublayer]]()  # of plugins


def _add(module: plugins.Module) -> None:
    """Import a plugin's module; if it fails, or a kind is taken, none of its classes count."""
    known_before = set(_with_kind(_root))
    try:
        import_module(module.path)
        new = set(_with_kind(_root)) - known_before
        plugins.require_unused_names([*map(kind_of, new)], {*map(kind_of, known_before)})
    except Exception:
        _left_out.update(set(_with_kind(_root)) - known_before)
        raise


for _outside in plugins.modules("blocks"):
    plugins.attempt(_outside.plugin.name, _outside.path, partial(_add, _outside))
SUBLAYERS: tuple[type[Sublayer], ...] = tuple(
    sorted(set(_with_kind(_root)) - _left_out, key=kind_of)
)
if TYPE_CHECKING:
    AnySublayer = Sublayer
else:
    AnySublayer = Annotated[reduce(or_, SUBLAYERS), Field(discriminator="kind")]
Parallel.model_rebuild(_types_namespace={"AnySublayer": AnySublayer})

__all__ = ["SUBLAYERS", "AnySublayer", "Block", "FeedForward", "Mixer", "Sublayer"]
