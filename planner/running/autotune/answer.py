"""The answer to `planner tune`: candidates, what was measured, what to run next or why not."""

from __future__ import annotations

from typing import Literal

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Answer, Document, Note


class Candidate(Document):
    """A plan that may be the fastest.

    estimated_s: the site's answer; expected_s: once the runs of this question are counted, low_s
    and high_s the 80 % interval of that.  gain: expected share of the best measured time that a
    run of it saves.  measured_s: mean over its runs; None where it was not run.
    """

    id: str
    plan: ParallelPlan
    estimated_s: float
    expected_s: float
    low_s: float
    high_s: float
    chance_best: float
    gain: float
    measured_s: float | None
    runs: int


class NextRun(Document):
    """The candidate to run next: why, for how many iterations, and what that may cost.

    files: where its launch files were written.
    """

    id: str
    why: str
    iterations: int
    time_limit_s: float
    gpu_hours: float
    files: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


class Ending(Document):
    """Why there is no next run."""

    code: Literal["rule", "runs", "gpu_hours", "all_measured"]
    text: str


class TuneAnswer(Answer):
    """Candidates, the most promising first; best: the id of the best measured one.

    runs, gpu_hours: measured of this model, cluster and training, and the least they took;
    other_runs: of the site's other questions.  chance_faster: that a candidate which was not run
    is more than 1 % faster than the best measured one.
    """

    site: str
    framework: str
    candidates: tuple[Candidate, ...]
    runs: int
    other_runs: int
    gpu_hours: float
    best: str | None
    chance_faster: float
    next: NextRun | None
    ending: Ending | None


def short_id(name: str) -> str:
    """The part of a plan's id that a person types."""
    return name.removeprefix("pl_")[:6]
