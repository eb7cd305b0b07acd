"""Blocks: the parts that models are made of, one file each.

A mixer is known as soon as its file is here: documents name it by its `kind`.
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from cost_models.blocks.base import Block, Mixer

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

MIXERS: tuple[type[Mixer], ...] = tuple(sorted(Mixer.__subclasses__(), key=lambda m: m.__name__))
if TYPE_CHECKING:
    AnyMixer = Mixer
else:
    AnyMixer = Annotated[reduce(or_, MIXERS), Field(discriminator="kind")]

__all__ = ["MIXERS", "AnyMixer", "Block", "Mixer"]
