"""Megatron-Bridge's public recipes: finds the one of a launch, and its values.

recipes.json has their values as of one commit of the repository; tests/oracles/bridge_recipes.py
writes it from a checkout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from cost_models.package_files import table
from planner.frameworks.read_results import Unreadable

PERFORMANCE = "/perf_recipes/"


@dataclass(frozen=True)
class Recipe:
    """A public recipe; accelerators: the number in its name, 0 if there is none.

    values: by `section.attribute`, with the model's name as `model`.
    """

    name: str
    path: str
    accelerators: int
    values: dict[str, Any]

    @property
    def source(self) -> str:
        """Repository, commit and file."""
        return f"{document()['repository']} {document()['commit']}, {self.path}"


def document() -> dict[str, Any]:
    """recipes.json."""
    return table("planner.frameworks.megatron_bridge", "recipes.json")


@cache
def relevant() -> frozenset[str]:
    """Every `section.attribute` that some recipe sets and that matters to a step."""
    return frozenset(key for row in document()["recipes"].values() for key in row)


def find(name: str, file: str, line: int) -> Recipe:
    """The recipe of that name, or of that alias.  Raises Unreadable with the nearest names."""
    stored = document()
    known = stored["aliases"].get(name, name)
    if known not in stored["recipes"]:
        every = [*stored["recipes"], *stored["aliases"]]
        near = get_close_matches(name[:120], every, 3, 0.6)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        said = f"{name[:120]} is not a public recipe of Megatron-Bridge "
        raise Unreadable(f"{said}({stored['commit']}){hint}", file, line)
    values = dict(stored["recipes"][known])
    count = re.search(r"_(\d+)gpu_", known)
    return Recipe(known, values.pop("path"), int(count[1]) if count else 0, values)


@dataclass(frozen=True)
class Selector:
    """The criteria by which setup_experiment.py picks a performance recipe.

    variant: that of the configuration, empty or, for example, `large_scale`.
    """

    model: str
    task: str
    accelerators: int
    gpu: str
    precision: str
    variant: str

    def name(self, count: str) -> str:
        precision = self.precision.lower().replace("_", "")
        ending = f"_{self.variant.lower()}" if self.variant.lower() not in ("", "v1", "v2") else ""
        return f"{self.model}_{self.task}_{count}gpu_{self.gpu}_{precision}{ending}_config"

    def recipe(self, file: str, line: int) -> Recipe:
        """The recipe for these accelerators, or else the one to be scaled.  Raises Unreadable."""
        recipes = document()["recipes"]
        pattern = re.compile(re.escape(self.name("*")).replace(r"\*", r"(\d+)"))
        counts = {
            int(match[1]): name
            for name, row in recipes.items()
            if PERFORMANCE in row["path"] and (match := pattern.fullmatch(name))
        }
        if not counts:
            return find(self.name(str(self.accelerators)), file, line)
        usual = document()["default_counts"].get(self.name("*"), max(counts))
        chosen = self.accelerators if self.accelerators in counts else usual
        return find(counts.get(chosen, counts[max(counts)]), file, line)
