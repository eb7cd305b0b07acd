"""What stands in for the modules that published recipes import, so that only recipes run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Collection
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

SECTIONS = (
    "model", "train", "ddp", "optimizer", "mixed_precision", "comm_overlap", "dataset", "peft",
    "tokenizer",
)  # fmt: skip
# Functions and tables of other modules that fill in a recipe, by name.
FILLERS: dict[str, Any] = {}


class Meta(type):
    """A class whose unknown attributes are remembered by name: `AttnBackend.flash`."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kept(made_by=f"{cls.__name__}.{name}")

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls


class Kept(metaclass=Meta):
    """An object that remembers what was set on it; what was not is None."""

    def __init__(self, *words: Any, made_by: str = "", **values: Any) -> None:
        self.__dict__["made_by"] = made_by or type(self).__name__
        self.__dict__["words"] = words
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.made_by == "ConfigContainer" and name in (*SECTIONS, "rng", "validation"):
            self.__dict__[name] = Kept(made_by=name)
            return self.__dict__[name]
        if self.made_by.startswith("AutoBridge"):
            if name.endswith("_parallel_size"):
                return 1  # as ModelParallelConfig has it
            return Kept(*self.words, made_by=f"AutoBridge.{name}")
        if self.made_by == "ConfigContainer":
            return Kept(made_by=name)
        return None

    def __call__(self, *words: Any, **values: Any) -> Kept:
        if self.made_by.startswith("AutoBridge"):
            return Kept(*(words or self.words), made_by=self.made_by)
        return Kept(*words, made_by=self.made_by, **values)


class Stub(ModuleType):
    """A module that has whatever is asked of it."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = FILLERS.get(name) or Meta(name, (Kept,), {})
        setattr(self, name, made)
        return made


class Finder(MetaPathFinder, Loader):
    """Finds the recipes in a checkout and stubs for what they import.

    source: the folder that holds their packages.  stubbed: packages of which all but the recipes
    are stubs; is_recipe: whether a module of them is one.  stub: makes the others, by name.
    """

    def __init__(
        self, source: Path, stubbed: Collection[str], is_recipe: Callable[[str], bool],
        stub: Callable[[str], ModuleType] = Stub,
    ) -> None:  # fmt: skip
        self._source, self._stubbed, self._is_recipe, self._stub = source, stubbed, is_recipe, stub

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] not in self._stubbed:
            return None
        if not self._is_recipe(name):
            return ModuleSpec(name, self, is_package=True)
        place = self._source / name.replace(".", "/")
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        folders = [str(place)] if place.is_dir() else None
        return importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=folders
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def plain(value: Any) -> Any:
    """A value as JSON, or the name of what it is."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Kept):
        return value.made_by.rsplit(".", 1)[-1]
    if isinstance(value, Meta):
        return value.__name__
    known = isinstance(value, int | float | str | bool | None)
    return value if known else getattr(value, "__name__", type(value).__name__)


def write_table(path: Path, table: dict[str, Any], rows: str) -> None:
    """A table as JSON, one line for each of its `rows`."""
    head = {key: value for key, value in table.items() if key != rows}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in table[rows].items())
    path.write_text(f'{json.dumps(head)[:-1]},\n"{rows}": {{\n{lines}\n}}}}\n')
