"""Documents that a service sends besides answers: jobs, saved plans, sites, its health."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from cost_models.fields import Spec
from planner.documents.first_sight import FirstSight
from planner.documents.plan_report import Document
from planner.documents.scored_runs import ScoredRun

Kind = Literal["validations", "calibrations", "dryruns", "sweeps"]
State = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Rights to a site; each includes those before it.  own: to share it, and forget what it learned.
Right = Literal["read", "teach", "own"]
RIGHTS: tuple[Right, ...] = get_args(Right)
EVERYONE = "*"
Caller = Annotated[str, Field(pattern=r"^[^\x00-\x20\x7f]{1,64}$")]
OVER: tuple[State, ...] = ("succeeded", "failed", "cancelled")


class Progress(Document):
    """The progress of a job's phase; total 0: unknown."""

    done: int = 0
    total: int = 0
    text: str = ""


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


class JobAnswer(JobRow):
    """A job: what was asked, and in the end its result, or the problem document that says why.

    A cancelled sweep has the rows that were answered until then.
    """

    request: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None


class JobPage(Document):
    """Some jobs, the newest first; next: the cursor of those after them."""

    rows: tuple[JobRow, ...]
    next: str | None


class SavedPlanSpec(Spec):
    """What is saved under a name: a request as it was asked, complete or not."""

    # Lines of text, without other control characters.
    note: Annotated[
        str, Field(max_length=4000, pattern=r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$")
    ] = ""
    request: dict[str, Any]
    answer_id: Annotated[str, Field(max_length=64, pattern="^[a-z]{2}_[0-9a-z]+$")] | None = None


class SavedPlanAnswer(SavedPlanSpec):
    """A saved plan."""

    note: str  # one of an earlier release may have any characters
    name: str
    saved_at: datetime
    owner: str | None


class SavedPlanPage(Document):
    """Saved plans in the order of their names; next: the cursor of those after them."""

    rows: tuple[SavedPlanAnswer, ...]
    next: str | None


class SharedSpec(Spec):
    """With whom a site is shared: the right of each caller, and of no others.

    A caller is the name of a key, user: and the name of whoever signed in, or * for everyone.
    """

    shared: Annotated[dict[Caller, Right], Field(max_length=1_000)]


class SiteRights(Document):
    """Whose a site is, and with whom it is shared; owner: None for one that has none."""

    name: str
    owner: str | None
    shared: dict[str, Right]

    def allow(self, caller: str, right: Right) -> bool:
        """Whether a caller has this right, or one that includes it."""
        if caller == self.owner:
            return True
        granted = [self.shared.get(caller), self.shared.get(EVERYONE)]
        return any(held and RIGHTS.index(held) >= RIGHTS.index(right) for held in granted)


class SiteEntry(Document):
    """A site; learned_at: its latest run; problem: what is wrong with a file of it.

    owner, shared: as in SiteRights.
    """

    name: str
    runs: int = 0
    learned_at: datetime | None = None
    calibrated_at: str | None = None
    problem: str | None = None
    owner: str | None = None
    shared: Mapping[str, Right] = {}


class SiteList(Document):
    """All sites by name."""

    rows: tuple[SiteEntry, ...]


class ScoredRuns(Document):
    """All published runs in the headline of `planner accuracy`.

    first_sight: how far off releases were on sources before anyone could tune to them.
    """

    rows: tuple[ScoredRun, ...]
    first_sight: FirstSight


class Health(Document):
    """The service answers."""

    status: Literal["ok"] = "ok"
    version: str


class Readiness(Health):
    """The service can work; jobs_without_server: those for which no server lives that runs jobs."""

    jobs_without_server: int
