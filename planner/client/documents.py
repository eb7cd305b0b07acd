"""Documents that only a service makes, from its OpenAPI document.

Written by `python -m api.client_code --write`; not to be changed by hand.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from planner.documents.plan_report import Document
from planner.documents.scored_runs import ScoredRun
from planner.inventory.catalog import (
    AcceleratorEntry,
    ClusterEntry,
    FrameworkEntry,
    ModelEntry,
    ScheduleEntry,
)

Status = Literal["feasible", "memory"]

Kind = Literal["validations", "calibrations", "dryruns", "sweeps"]

State = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]


class Models(Document):
    """All model presets."""

    models: tuple[ModelEntry, ...]


class Accelerators(Document):
    """All accelerators."""

    accelerators: tuple[AcceleratorEntry, ...]


class Clusters(Document):
    """All cluster presets."""

    clusters: tuple[ClusterEntry, ...]


class Frameworks(Document):
    """All frameworks."""

    frameworks: tuple[FrameworkEntry, ...]


class Schedules(Document):
    """All pipeline schedules."""

    schedules: tuple[ScheduleEntry, ...]


class JobPage(Document):
    """Some jobs, the newest first; next: the cursor of those after them."""

    rows: tuple[JobRow, ...]
    next: str | None


class JobRow(Document):
    """A job in a list."""

    id: str
    kind: Kind
    title: str
    state: State
    phase: str
    progress: Progress
    attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    owner: str | None
    links: dict[str, str]


class Progress(Document):
    """The progress of a job's phase; total 0: unknown."""

    done: int
    total: int
    text: str


class JobAnswer(Document):
    """A job: what was asked, and in the end its result, or the problem document that says
    why.

    A cancelled sweep has the rows that were answered until then.
    """

    id: str
    kind: Kind
    title: str
    state: State
    phase: str
    progress: Progress
    attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    owner: str | None
    links: dict[str, str]
    request: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None


class SavedPlanPage(Document):
    """Saved plans in the order of their names; next: the cursor of those after them."""

    rows: tuple[SavedPlanAnswer, ...]
    next: str | None


class SavedPlanAnswer(Document):
    """A saved plan."""

    note: str
    request: dict[str, Any]
    answer_id: str | None
    name: str
    saved_at: datetime
    owner: str | None


class SiteList(Document):
    """All sites by name."""

    rows: tuple[SiteEntry, ...]


class SiteEntry(Document):
    """A site; learned_at: its latest run; problem: what is wrong with a file of it."""

    name: str
    runs: int
    learned_at: datetime | None
    calibrated_at: str | None
    problem: str | None


class ScoredRuns(Document):
    """All published runs in the headline of `planner accuracy`."""

    rows: tuple[ScoredRun, ...]


class Health(Document):
    """The service answers."""

    status: Literal["ok"]
    version: str
