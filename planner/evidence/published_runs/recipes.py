"""What published recipes recompute, offload, dispatch and overlap, where a row does not say."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from planner.evidence.published_runs.runs import Run

_TABLE = Path(__file__).with_name("recipes.json")
# A container or release of NVIDIA's is named after its year and month.
_RELEASE = re.compile(r"(?:container|release|nemo)[ -](2\d\.\d\d)")
_PATTERNS = ("stack", "model", "gpu", "precision", "notes", "source")
_NUMBERS = ("ep", "micro_batch", "zero_stage")


@dataclass(frozen=True)
class Recipe:
    """Fields of plan and training that recipes set for a row, and what was assumed of them."""

    plan: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def release_of(run: Run) -> str:
    """Year and month of the software's release, as the row says; else the middle of its year."""
    match = _RELEASE.search(f"{run['stack']} {run['source']} {run.notes}".lower())
    return match[1] if match else f"{run.year % 100}.05"


def recipe_for(run: Run) -> Recipe:
    """What the recipes that a row ran set; later ones win."""
    plan: dict[str, Any] = {}
    training: dict[str, Any] = {}
    notes: list[str] = []
    for entry in _entries():
        if _matches(entry, run):
            plan.update(entry["plan"])
            training.update(entry.get("training", {}))
            notes.append(f"recipe of {release_of(run)}: {entry['file']}")
    if "recompute_modules" in plan:
        plan["recompute_modules"] = tuple(plan["recompute_modules"])
    return Recipe(plan, training, tuple(notes))


def _matches(entry: dict[str, Any], run: Run) -> bool:
    """Recipes that recompute match only rows that leave it open, or say just `selective`."""
    is_open = not run.known("recompute") or run["recompute"].lower() == "selective"
    return (
        (is_open or "recompute" not in entry["plan"])
        and entry.get("since", "") <= release_of(run) < entry.get("until", "99")
        and all(re.search(entry.get(name, ""), run[name].lower()) for name in _PATTERNS)
        and all(run.integer(name) == entry[name] for name in _NUMBERS if name in entry)
    )


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(_TABLE.read_text(encoding="utf-8"))["recipes"])
