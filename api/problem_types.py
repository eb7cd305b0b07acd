"""The kinds of problem the service answers with, each a page at /problems/{slug}."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class ProblemType:
    """One type of problem: its status, what happened, and what to do about it."""

    status: int
    title: str
    meaning: str
    remedy: str


TYPES = {
    slug: ProblemType(**fields)
    for slug, fields in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}
# The type of a status that is raised without one.
OF_STATUS: dict[int, str] = {
    kind.status: slug for slug, kind in reversed(TYPES.items()) if slug != "unavailable"
}
