"""Model presets by name: GPT-2 to models of today, from `models.json`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cost_models import plugins
from cost_models.catalog.names import normal, resolve
from cost_models.spec import ModelSpec

# Where a source is a configuration on Hugging Face, or names its page there.
_HUB_NAME = re.compile(r"(?:config\.json of |huggingface\.co/)([\w.-]+/[\w.-]*\w)")


@dataclass(frozen=True)
class ModelEntry:
    """One preset: its spec, the source of its dims, and the parameter count its authors state."""

    id: str
    aliases: tuple[str, ...]
    source: str
    expected_parameters: int
    expected_active_parameters: int | None
    spec: ModelSpec

    @property
    def hub_name(self) -> str:
        """Its name on Hugging Face as its source spells it; empty where that states none."""
        match = _HUB_NAME.search(self.source)
        known = match is not None and normal(match[1]) in map(normal, self.aliases)
        return match[1] if match is not None and known else ""


@cache
def models() -> tuple[ModelEntry, ...]:
    """All presets, in the order of the file; then those of plugins."""
    data = json.loads(Path(__file__).with_name("models.json").read_text("utf-8"))
    entries = tuple(map(_entry, data["models"]))
    names = {normal(name) for entry in entries for name in (entry.id, *entry.aliases)}

    def added(row: dict[str, Any]) -> ModelEntry:
        entry = _entry(row)
        entry_names = {normal(name) for name in (entry.id, *entry.aliases)}
        plugins.require_unused_names(entry_names, names)
        names.update(entry_names)
        return entry

    return (*entries, *plugins.rows("catalog/models.json", "models", added))


def _entry(row: dict[str, Any]) -> ModelEntry:
    """A row of a file as a preset.  Raises ValueError that names what it lacks."""
    if missing := [
        key for key in ("id", "source", "expected_parameters", "spec") if key not in row
    ]:
        raise ValueError(f"a preset needs {', '.join(missing)}")
    return ModelEntry(
        id=row["id"],
        aliases=tuple(row.get("aliases", ())),
        source=row["source"],
        expected_parameters=row["expected_parameters"],
        expected_active_parameters=row.get("expected_active_parameters"),
        spec=ModelSpec(name=row["id"], **row["spec"]),
    )


@cache
def _by_id() -> dict[str, ModelEntry]:
    return {entry.id: entry for entry in models()}


@cache
def _ids_by_alias() -> dict[str, str]:
    return {normal(alias): entry.id for entry in models() for alias in (entry.id, *entry.aliases)}


def hub_name(spec: ModelSpec) -> str:
    """The name on Hugging Face of the preset that a model is; empty if it is none, or has none."""
    entry = _by_id().get(spec.name)
    return entry.hub_name if entry is not None and entry.spec == spec else ""


def model(name: str) -> ModelSpec:
    """The preset of that id or alias, in any case.  Raises UnknownName."""
    return _by_id()[resolve(name, _ids_by_alias(), "model")].spec
