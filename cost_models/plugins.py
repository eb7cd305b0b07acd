"""Packages from outside that bring accelerators, models, blocks, runtimes and frameworks.

A package is registered in the entry points' group `parallel_planner.plugins`, by the plugin's name
and the package's, and has folders like ours (docs/plugins.md).  What is broken is left out, and
named by `problems`; a name that is already taken keeps its first owner.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

GROUP = "parallel_planner.plugins"

T = TypeVar("T")
_problems: dict[str, None] = {}  # in the order of their discovery, each once


@dataclass(frozen=True)
class Plugin:
    """A registered package."""

    name: str
    package: str
    folder: Path


@dataclass(frozen=True)
class Module:
    """A module of a plugin's folder, not imported yet."""

    plugin: Plugin
    name: str
    path: str


@cache
def plugins() -> tuple[Plugin, ...]:
    """All that are registered, by name."""
    from importlib.metadata import entry_points  # which takes long to import

    loaded = (
        attempt(entry.name, entry.value, partial(_plugin, entry.name, entry.value))
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    )
    return tuple(plugin for plugin in loaded if plugin is not None)


def _plugin(name: str, package: str) -> Plugin:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LookupError("no such package")
    return Plugin(name, package, Path(next(iter(spec.submodule_search_locations))))


def problems() -> tuple[str, ...]:
    """What is broken of what was loaded so far, each a line that begins with the plugin."""
    return tuple(_problems)


def attempt(plugin: str, task: str, made: Callable[[], T]) -> T | None:
    """What a plugin makes; None where that fails, which is a problem then."""
    try:
        return made()
    except Exception as error:  # whatever a package from outside does
        message = " ".join(str(error).split())[:300]
        _problems[f"{plugin}: {task}: {type(error).__name__}: {message}"] = None
        return None


def rows(file: str, key: str, read: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """What plugins add to a table such as catalog/models.json: its rows under `key`, read."""
    for plugin in plugins():
        path = plugin.folder / file
        if not path.exists():
            continue
        documents = attempt(plugin.name, file, partial(_rows, path, key))
        for number, row in enumerate(documents or ()):
            parsed = attempt(plugin.name, f"{file}, row {number}", partial(read, row))
            if parsed is not None:
                yield parsed


def _rows(path: Path, key: str) -> list[dict[str, Any]]:
    documents = json.loads(path.read_text(encoding="utf-8"))[key]
    if not isinstance(documents, list) or not all(isinstance(row, dict) for row in documents):
        raise ValueError(f"{key} must be a list of objects")
    return documents


def require_unused_names(names: Collection[str], known: Collection[str]) -> None:
    """Raise ValueError where one of the names is known already."""
    if taken := [name for name in names if name in known]:
        raise ValueError(f"the name {taken[0]!r} is taken")


def modules(folder: str) -> Iterator[Module]:
    """The modules and packages in a folder of plugins, such as runtimes/."""
    for plugin in plugins():
        for path in sorted((plugin.folder / folder).glob("[!_]*")):
            if path.suffix == ".py" or (path / "__init__.py").exists():
                yield Module(plugin, path.stem, f"{plugin.package}.{folder}.{path.stem}")


def attribute(module: Module, name: str, kind: type[T]) -> T:
    """The attribute of this name in a module.  Raises TypeError if it is of another kind."""
    value = getattr(import_module(module.path), name)
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    return value
