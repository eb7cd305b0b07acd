"""The answer of `planner learn`: runs read from logs, shown before a site keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from planner.documents.plan_report import Document
from planner.documents.problems import MAX_PROBLEMS, Problem, RequestError, refuse
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.site import LearnedRun, Site
from planner.evidence.uncertainty.site_pricing import price
from planner.inputs.logs import RunLog, read_logs
from planner.learning.sites.learned_run import LearningRequest, learned_run

# A run that is this many times slower or faster than estimated was probably on another cluster.
FAR = 2.0
MAX_LOGS = 100


class ReadRun(Document):
    """A run read from a log; known: whether the site has it already.

    low_s, high_s: the 10th and 90th percentile of its steps.  doubts: reasons to distrust it.
    """

    run: LearnedRun
    known: bool
    low_s: float | None
    high_s: float | None
    doubts: tuple[str, ...]


class RefusedRun(Document):
    """A row of a table that cannot be learned, and the reason."""

    name: str
    why: str


class LearnAnswer(Document):
    """The runs of the logs.  kept: whether the site has them now; site_runs: the site's runs."""

    site: str
    kept: bool
    runs: tuple[ReadRun, ...]
    refused: tuple[RefusedRun, ...]
    site_runs: int

    @property
    def new(self) -> tuple[LearnedRun, ...]:
        """The runs that the site does not have yet."""
        return tuple(row.run for row in self.runs if not row.known)


def read_runs(logs: Sequence[tuple[str, Iterable[str]]], request: LearningRequest) -> LearnAnswer:
    """Read the runs of logs and tables, given by name; nothing is kept.

    Raises RequestError where a log cannot be read, or no row of a table can be learned.
    """
    storage.check_name(request.site)
    if len(logs) > MAX_LOGS:
        raise refuse("/log", "length", f"at most {MAX_LOGS} logs at a time, got {len(logs)}")
    site = _site(request.site)
    known = {run.id for run in site.runs}
    runs: list[ReadRun] = []
    refused: list[tuple[RefusedRun, RequestError]] = []
    for name, lines in logs:
        for log, is_table in _runs_of_log(name, lines, request, len(logs) > 1):
            try:
                run = learned_run(log, request, site)
            except RequestError as error:
                if not is_table:
                    raise _named(error, log.name) if len(logs) > 1 else error from None
                reason = "; ".join(problem.detail for problem in _named(error, log.name).problems)
                refused.append((RefusedRun(name=log.name, why=reason), error))
                continue
            runs.append(_described(log, run, site, run.id in known))
            known.add(run.id)
    if not runs:
        errors = (_named(error, r.name) for r, error in refused[:MAX_PROBLEMS])
        raise RequestError(problem for error in errors for problem in error.problems)
    return LearnAnswer(
        site=request.site, kept=False, runs=tuple(runs), refused=tuple(r for r, _ in refused),
        site_runs=len(site.runs),
    )  # fmt: skip


def keep(answer: LearnAnswer) -> LearnAnswer:
    """Keep the runs that the site does not have yet.  Raises RequestError."""
    site, _ = storage.learn(answer.site, answer.new)
    return answer.model_copy(update={"kept": True, "site_runs": len(site.runs)})


def _site(name: str) -> Site:
    try:
        return storage.find_or_new(name)
    except ValueError as error:
        raise refuse("/site", "inconsistent", str(error)) from None


def _runs_of_log(
    name: str, lines: Iterable[str], request: LearningRequest, named: bool
) -> Iterator[tuple[RunLog, bool]]:
    """The runs of a log, and whether it is a table.  Raises RequestError."""
    try:
        runs = read_logs(lines, name, request.files)
    except RequestError as error:
        raise _named(error, name) if named else error from None
    table = any(run.code_base == "table" for run in runs)
    if table and request.files:
        raise refuse("/files", "unused", f"{name} is a table: its rows have no launch script")
    if not runs:
        raise refuse("/log", "no_rows", f"{name} has no rows")
    return ((run, table) for run in runs)


def _named(error: RequestError, name: str) -> RequestError:
    def named(problem: Problem) -> Problem:
        if problem.detail.startswith(name):
            return problem
        return problem.model_copy(update={"detail": f"{name}: {problem.detail}"})

    return RequestError(map(named, error.problems))


def _described(log: RunLog, run: LearnedRun, site: Site, known: bool) -> ReadRun:
    return ReadRun(
        run=run, known=known, low_s=log.step.low_s, high_s=log.step.high_s,
        doubts=tuple(_doubts(run, site)),
    )  # fmt: skip


def _doubts(run: LearnedRun, site: Site) -> Iterator[str]:
    ratio = run.step_s / run.estimated_s
    if not 1.0 / FAR < ratio < FAR:
        yield (
            f"takes {ratio:.2g} times the estimate: check the cluster, and that no other job ran "
            "on it; a run this far off counts less"
        )
    request = PlanRequest.model_validate(run.request)
    need = price(request, site).peak_bytes["in use"]
    have = request.cluster.groups[0].accelerator.memory_bytes
    if need > have:
        yield (
            f"is predicted not to fit ({need / 2**30:.1f} of {have / 2**30:.1f} GiB), yet it ran"
        )
