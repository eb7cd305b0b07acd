"""The tables of jobs: every change of a job's row is a method here.

A job is queued until a server begins it.  Beginning it returns a `Claim`; every write of the run
goes through its claim, and is refused (`Superseded`) once another server has begun the same job,
or it was deleted.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from planner.documents.plan_report import Document
from planner.documents.service import OVER, Kind, Progress, State
from planner.running.store.database import Database
from planner.running.store.keys import claim as claim_key
from planner.running.store.tables import JOB_EVENTS, JOBS

MAX_EVENTS = 2000  # kept per job, the newest


class QueueFull(RuntimeError):
    """The queue is full."""


class NotCancellable(ValueError):
    """The job has ended, so it cannot be cancelled."""


class StillRunning(ValueError):
    """The job has not ended, so it cannot be deleted."""


class Superseded(BaseException):
    """The job is no longer this run's: another server has it, or it was deleted."""


class Job(Document):
    """A job; times in seconds since 1970.  error: a problem document.  owner: the caller's name."""

    id: str
    kind: Kind
    title: str
    state: State
    phase: str
    progress: Progress
    attempts: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    request: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    owner: str | None = None


class JobEvent(Document):
    """An event of a job; numbers rise by one, and `done` is the last."""

    number: int
    event: Literal["progress", "log", "done"]
    data: dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """The right to write to a job's row, from the moment that one server begins the job.

    attempts: how often it was begun since its last finished step, this time included.
    """

    job_id: str
    token: str
    attempts: int


class Jobs:
    """The table of jobs and the table of their events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        kind: Kind,
        request: Any,
        *,
        title: str = "",
        most_waiting: int,
        caller: str = "",
        owner: str | None = None,
        key: str | None = None,
        fingerprint: str = "",
    ) -> tuple[Job, bool]:
        """Queue a job; returns it, and whether it is new.

        caller: a digest of the caller; owner: the caller's name.  key: the caller's idempotency
        key; a key that was used before returns the job of that time.
        Raises QueueFull, planner.running.store.keys.Mismatch.
        """
        name = f"{kind[:2]}_{uuid.uuid4().hex}"
        with self._database.writing() as connection:
            if key is not None:
                claimed = claim_key(self._database, connection, caller, key, fingerprint, name)
                if existing := _job_row(connection, claimed):
                    return existing, False
                name = claimed  # the new id, or that of a deleted job
            waiting = sa.select(sa.func.count()).where(JOBS.c.state == "queued")
            if (connection.scalar(waiting) or 0) >= most_waiting:
                raise QueueFull(f"the queue is full: {most_waiting} jobs are waiting")
            row = {
                "id": name, "kind": kind, "title": title, "state": "queued",
                "phase": "waiting", "done": 0, "total": 0, "text": "", "attempts": 0,
                "request": json.dumps(request), "sent": False, "created_at": self._database.now(),
                "owner": owner or None,
            }  # fmt: skip
            connection.execute(sa.insert(JOBS).values(row))
            _note_progress(self._database, connection, name)
            job = _job_row(connection, name)
            assert job is not None
            return job, True

    def get(self, id: str) -> Job | None:
        """The job with this id."""
        with self._database.reading() as connection:
            return _job_row(connection, id)

    def page(
        self,
        limit: int,
        *,
        kind: Kind | None = None,
        state: State | None = None,
        after: str | None = None,
    ) -> list[Job]:
        """Jobs, the newest first; after: the id of the last one of the page before."""
        query = sa.select(JOBS).order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc()).limit(limit)
        if kind is not None:
            query = query.where(JOBS.c.kind == kind)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        if after is not None:
            at = sa.select(JOBS.c.created_at).where(JOBS.c.id == after).scalar_subquery()
            same = sa.and_(JOBS.c.created_at == at, JOBS.c.id < after)
            query = query.where(sa.or_(JOBS.c.created_at < at, same))
        with self._database.reading() as connection:
            return [_job(row) for row in connection.execute(query)]

    def events(self, id: str, after: int = 0, limit: int = MAX_EVENTS) -> list[JobEvent]:
        """The events of a job after the one with this number."""
        query = (
            sa.select(JOB_EVENTS)
            .where(JOB_EVENTS.c.job_id == id, JOB_EVENTS.c.number > after)
            .order_by(JOB_EVENTS.c.number)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [
                JobEvent(number=row.number, event=row.event, data=json.loads(row.data))
                for row in connection.execute(query)
            ]

    def cancel(self, id: str) -> Job | None:
        """Cancel a job; a queued one ends at once.  Raises NotCancellable."""
        with self._database.writing() as connection:
            job = _job_row(connection, id, lock=True)
            if job is None:
                return None
            if job.state in OVER:
                raise NotCancellable(f"the job has {job.state}")
            if job.state == "queued":
                self._end(connection, job, "cancelled")
            else:
                _set(connection, id, state="cancelling")
                _note_progress(self._database, connection, id)
            return _job_row(connection, id)

    def delete(self, id: str) -> bool:
        """Delete an ended job and its events; whether there was one.  Raises StillRunning."""
        with self._database.writing() as connection:
            job = _job_row(connection, id, lock=True)
            if job is not None and job.state not in OVER:
                raise StillRunning(f"the job is {job.state}: cancel it first")
            connection.execute(sa.delete(JOBS).where(JOBS.c.id == id))
            return job is not None

    def forget(self, kept_s: float) -> None:
        """Delete all jobs that ended longer ago than this."""
        before = self._database.deletes_before(kept_s)
        with self._database.writing() as connection:
            connection.execute(sa.delete(JOBS).where(JOBS.c.finished_at < before))

    def unsent(self) -> list[Job]:
        """Queued jobs that DBOS does not have yet, the oldest first."""
        query = sa.select(JOBS).where(JOBS.c.state == "queued", ~JOBS.c.sent)
        with self._database.reading() as connection:
            return [_job(row) for row in connection.execute(query.order_by(JOBS.c.created_at))]

    def sent(self, id: str) -> None:
        """Mark a job as enqueued with DBOS."""
        with self._database.writing() as connection:
            _set(connection, id, sent=True)

    def counts(self) -> tuple[dict[str, int], float]:
        """The number of jobs in each state, and the seconds that the oldest one has waited."""
        query = sa.select(JOBS.c.state, sa.func.count(), sa.func.min(JOBS.c.created_at))
        with self._database.reading() as connection:
            rows = connection.execute(query.group_by(JOBS.c.state)).all()
        now = self._database.now()
        waited = [now - first for state, _, first in rows if state == "queued"]
        return {state: count for state, count, _ in rows}, max([0.0, *waited])

    def unfinished(self) -> list[str]:
        """Ids of the jobs that DBOS was given and that have not ended."""
        query = sa.select(JOBS.c.id).where(JOBS.c.state.not_in(OVER), JOBS.c.sent)
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    def requeue(self, id: str, note: str = "") -> None:
        """Queue a job again from its first step; note: a line of its log that says why."""
        with self._database.writing() as connection:
            job = _job_row(connection, id, lock=True)
            if job is None or job.state in OVER:
                return
            if job.state == "cancelling":
                self._end(connection, job, "cancelled")
                return
            _set(connection, id, state="queued", phase="waiting", token=None, sent=False)
            _note_progress(self._database, connection, id)
            if note:
                _note(self._database, connection, id, [("log", {"text": note})])

    def begin(self, id: str) -> Claim | None:
        """Claim a job to run it; None if it has ended.  Earlier claims become invalid."""
        with self._database.writing() as connection:
            job = _job_row(connection, id, lock=True)
            if job is None or job.state in OVER:
                return None
            claim = Claim(id, uuid.uuid4().hex, job.attempts + 1)
            cancelling = job.state == "cancelling"
            _set(
                connection, id, token=claim.token, state="cancelling" if cancelling else "running",
                attempts=claim.attempts,
                started_at=job.started_at or max(self._database.now(), job.created_at),
            )  # fmt: skip
            _note_progress(self._database, connection, id)
        return claim

    def report(
        self, claim: Claim, phase: str, progress: Progress | None = None, logs: Sequence[str] = ()
    ) -> State:
        """Write a job's phase, progress and log lines; its state, which may be `cancelling`.

        progress: None: unchanged.  Only changes make events.  Raises Superseded.
        """
        with self._database.writing() as connection:
            job = _claimed_job(connection, claim)
            progress = progress or job.progress
            events = [("log", {"text": text}) for text in logs]
            if (phase, progress) != (job.phase, job.progress):
                _set(connection, claim.job_id, phase=phase, **progress.model_dump())
                events.append(_progress_event(connection, claim.job_id))
            if events:
                _note(self._database, connection, claim.job_id, events)
        return job.state

    def state(self, claim: Claim) -> State:
        """The state of a job that is run.  Raises Superseded."""
        with self._database.reading() as connection:
            return _claimed_job(connection, claim, lock=False).state

    def finished_step(self, claim: Claim) -> None:
        """Count attempts anew: a step is done that is not done again.  Raises Superseded."""
        with self._database.writing() as connection:
            _claimed_job(connection, claim)
            _set(connection, claim.job_id, attempts=1)

    def finish(
        self,
        claim: Claim,
        state: State,
        *,
        result: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
    ) -> None:
        """End a job.  Raises Superseded."""
        with self._database.writing() as connection:
            self._end(connection, _claimed_job(connection, claim), state, result, error)

    def release(self, claim: Claim) -> None:
        """Give a job back, to be begun again: this attempt does not count.  Raises Superseded."""
        with self._database.writing() as connection:
            job = _claimed_job(connection, claim)
            state = "queued" if job.state == "running" else job.state
            _set(
                connection, claim.job_id, state=state, phase="waiting", token=None,
                attempts=job.attempts - 1,
            )  # fmt: skip
            _note_progress(self._database, connection, claim.job_id)

    def _end(
        self,
        connection: sa.Connection,
        job: Job,
        state: State,
        result: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
    ) -> None:
        _set(
            connection, job.id, state=state, phase=state, token=None,
            finished_at=max(self._database.now(), job.started_at or job.created_at),
            result=None if result is None else json.dumps(result),
            error=None if error is None else json.dumps(error),
        )  # fmt: skip
        data = _progress_event(connection, job.id)[1] | ({} if error is None else {"error": error})
        _note(self._database, connection, job.id, [("done", data)])


def _job_row(
    connection: sa.Connection, id: str, *conditions: sa.ColumnElement[bool], lock: bool = False
) -> Job | None:
    query = sa.select(JOBS).where(JOBS.c.id == id, *conditions)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else _job(row)


def _claimed_job(connection: sa.Connection, claim: Claim, lock: bool = True) -> Job:
    job = _job_row(connection, claim.job_id, JOBS.c.token == claim.token, lock=lock)
    if job is None:
        raise Superseded(claim.job_id)
    return job


def _set(connection: sa.Connection, id: str, **values: Any) -> None:
    connection.execute(sa.update(JOBS).where(JOBS.c.id == id).values(values))


def _progress_event(connection: sa.Connection, id: str) -> tuple[str, dict[str, Any]]:
    """A progress event of how the job stands."""
    job = _job_row(connection, id)
    assert job is not None
    return "progress", {
        "state": job.state, "phase": job.phase, "attempts": job.attempts,
        **job.progress.model_dump(),
    }  # fmt: skip


def _note_progress(database: Database, connection: sa.Connection, id: str) -> None:
    _note(database, connection, id, [_progress_event(connection, id)])


def _note(
    database: Database,
    connection: sa.Connection,
    id: str,
    events: Iterable[tuple[str, dict[str, Any]]],
) -> None:
    """Add events to a job whose row this transaction has locked."""
    of = JOB_EVENTS.c.job_id == id
    number = connection.scalar(sa.select(sa.func.max(JOB_EVENTS.c.number)).where(of)) or 0
    rows = [
        {"job_id": id, "number": n, "event": event, "data": json.dumps(data), "at": database.now()}
        for n, (event, data) in enumerate(events, start=number + 1)
    ]
    connection.execute(sa.insert(JOB_EVENTS), rows)
    old = JOB_EVENTS.c.number <= number + len(rows) - MAX_EVENTS
    connection.execute(sa.delete(JOB_EVENTS).where(of, old))


def _job(row: sa.Row[Any]) -> Job:
    return Job.of(
        row,
        progress=Progress.of(row),
        request=json.loads(row.request),
        result=json.loads(row.result or "null"),
        error=json.loads(row.error or "null"),
    )
