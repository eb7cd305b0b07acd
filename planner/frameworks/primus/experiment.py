"""A config of Primus as written: the presets that it names, and its overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from planner.frameworks import yaml_files
from planner.frameworks.launch_files import SET, GivenValues
from planner.frameworks.megatron import attribute_names
from planner.frameworks.primus.names import PRESETS
from planner.frameworks.read_results import StatedValue, Unreadable
from planner.frameworks.yaml_files import YamlFile

YAML = (".yaml", ".yml")
MODULES = ("pre_trainer", "post_trainer")  # Primus accepts either name
BACKEND = "megatron"
_VARIABLE = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")


@dataclass(frozen=True)
class Experiment:
    """A config, its module that trains, the other files, and the user's given values."""

    config: YamlFile
    module: str
    files: Mapping[str, str]
    given: GivenValues

    @property
    def body(self) -> dict[str, Any]:
        """The module: its backend, its presets and the overrides."""
        found: dict[str, Any] = self.config.values["modules"][self.module]
        return found

    @property
    def model(self) -> str:
        """The name of the model's preset."""
        return str(self.resolved(self.body.get("model") or "")).removeprefix("../")

    @property
    def model_at_hand(self) -> bool:
        """Whether the model's preset is in PRESETS or among the files."""
        return self.model in PRESETS or self._path(self.model) is not None

    @cached_property
    def overrides(self) -> dict[str, StatedValue]:
        """The overrides of the presets; the user's given values come last."""
        prefix = f"modules.{self.module}.overrides."
        found = {
            key: StatedValue(
                self.resolved(value), self.config.name, self.config.lines.get(prefix + key, 0)
            )
            for key, value in (self.body.get("overrides") or {}).items()
        }
        for given, value in self.given.values.items():
            key = given.removeprefix("--").replace("-", "_")
            if key in attribute_names.options():
                found[key] = StatedValue(yaml_files.value(value), SET, 0)
        return found

    def resolved(self, value: Any) -> Any:
        """A value, parsed as YAML after its variables are replaced by given values or defaults."""
        if not isinstance(value, str) or not _VARIABLE.search(value):
            return value
        known = self.given.variables
        text = _VARIABLE.sub(lambda one: known.get(one[1], one[2] or one[0]), value)
        return text if "${" in text else yaml_files.value(text)

    def preset(self, name: str, below: str = "") -> dict[str, StatedValue]:
        """The values of a preset and of those that it extends.

        below: the file that extends it.  Raises Unreadable if a preset is not among the files.
        """
        if name in PRESETS:
            return {
                key: StatedValue(value, self.config.name, 0) for key, value in PRESETS[name].items()
            }
        path = self._path(name)
        if path is None or path == below:
            place = below or self.config.name
            what = f"extends {name}" if below else f"the preset {name}"
            raise Unreadable(f"{what}, which is not among the files", place)
        found = yaml_files.read(self.files[path], path)
        above = found.values.get("extends") or []
        told: dict[str, StatedValue] = {}
        for one in above if isinstance(above, list) else [str(above)]:
            base = str(one).removeprefix("../")
            if not base.startswith("primus_"):  # defaults of its own options, which have no effect
                told |= self.preset(base, path)
        for key, value in found.values.items():
            if key != "extends":
                told[key] = StatedValue(self.resolved(value), path, found.lines.get(key, 0))
        return told

    def _path(self, name: str) -> str | None:
        """The file of a preset; None if it is not among the files."""
        last = name.rsplit("/", 1)[-1]
        others = (one for one in self.files if one != self.config.name)
        return next((one for one in others if one.rsplit("/", 1)[-1] == last), None)


def experiment(files: Mapping[str, str], given: GivenValues) -> Experiment:
    """The config among the files.  Raises Unreadable if there is none for Megatron-LM."""
    for name, text in files.items():
        if name.endswith(YAML):
            found = yaml_files.read(text, name)
            if isinstance(found.values.get("modules"), dict):
                break
    else:
        raise Unreadable(f"no YAML has modules (files: {', '.join(files) or 'none'})")
    modules = found.values["modules"]
    module = next((one for one in MODULES if isinstance(modules.get(one), dict)), None)
    if module is None:
        raise Unreadable(f"modules has no {MODULES[0]}", found.name)
    backend = modules[module].get("framework")
    if backend != BACKEND:
        line = found.lines.get(f"modules.{module}.framework", 0)
        raise Unreadable(f"{module}.framework is {backend!r}; {BACKEND} is read", found.name, line)
    return Experiment(found, module, files, given)
