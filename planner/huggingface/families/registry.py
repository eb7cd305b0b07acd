"""The registry of families: every table of this package, and the models that contain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

from cost_models.package_files import table
from planner.huggingface import families
from planner.huggingface.config import Config
from planner.huggingface.families import vision
from planner.huggingface.families.rows import Family, Fields


def tables() -> dict[str, Family]:
    """The families of every module of this package; a module is found by being there."""
    names = sorted(each.name for each in iter_modules(families.__path__))
    modules = (import_module(f"{families.__name__}.{name}") for name in names if name != "registry")
    return {
        kind: own for module in modules for kind, own in vars(module).get("FAMILIES", {}).items()
    }


FAMILIES = tables()


class TextModel(NamedTuple):
    """The family that reads the text_config of a vision-language model, and its own defaults."""

    family: str
    defaults: Mapping[str, int]


_TABLE = table(families.__name__, "wrappers.json")
TEXT_MODELS = {name: TextModel(*row) for name, row in _TABLE["texts"].items()}


@dataclass(frozen=True)
class Wrapper:
    """A vision-language model.

    text: the model_type of its text_config, unless that states another.  encoder: reads its
    vision_config, given the whole config and the language model's width; None: only the language
    model is planned.  tied: whether embeddings are tied by default.  flat: older files have the
    keys of the language model at top level.
    """

    text: str
    encoder: Callable[[Config, Config, int], Fields] | None
    architectures: tuple[str, ...]
    tied: bool = False
    flat: bool = False


def _wrapper(
    text: str,
    architectures: Sequence[str],
    encoder: str = "",
    tied: bool = False,
    flat: bool = False,
) -> Wrapper:
    """A row of wrappers.json, with the encoder by the name of its function."""
    reads = getattr(vision, encoder) if encoder else None
    return Wrapper(text, reads, tuple(architectures), tied, flat)


WRAPPERS = {name: _wrapper(**row) for name, row in _TABLE["wrappers"].items()}
# Models whose vision_config may be null: they then have no encoder.
NO_IMAGES = frozenset({"gemma4"})
FAMILY_OF_ARCHITECTURE: dict[str, str] = {}
for _name, _family in FAMILIES.items():
    for _architecture in _family.architectures:
        FAMILY_OF_ARCHITECTURE.setdefault(_architecture, _name)
