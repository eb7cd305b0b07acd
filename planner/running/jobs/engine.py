"""The job engine of one server: DBOS keeps the queue and finished steps, a lease admits the server.

DBOS identifies executors by name, and recovers an executor's workflows only when told that the
executor is dead.  Here every executor has a name that is never reused, and a lease under that name
(planner.running.store.servers).  Each live server returns the workflows of executors without a
lease to the queue.  An executor whose lease expires stops: its processes have already ended
(step_worker.py), its writes are refused (planner.running.store.jobs, and DBOS's own token of each
execution), and the server starts another executor.  So no job ever has two live runs.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from dbos import DBOS, Serializer, SetWorkflowID
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from planner.data_folder import data_folder
from planner.documents.problems import internal_document
from planner.documents.service import OVER
from planner.running.jobs import other_versions
from planner.running.jobs.executor import FOLDER, Executor, JobRun
from planner.running.jobs.other_versions import STEPS_VERSION
from planner.running.jobs.settings import JobSettings
from planner.running.jobs.workflows import RUNS_ALONE
from planner.running.store import Store, Unavailable
from planner.running.store.database import QUEUE_FILE, same_file

_RENEWALS_PER_LEASE = 5
_POLL_S = 0.5  # interval at which DBOS polls its queues
_CLEAN_UP_EVERY_S = 60.0
_START_S = 60.0  # limit for the first start
_STOP_TIMEOUT_S = 15.0  # limit for the runs to end when the executor stops
_CUT_SHORT_S = 2.0  # that limit where the database does not answer
_log = logging.getLogger(__name__)
# A null handler, so that DBOS adds none and its records reach our logger, in our format.
logging.getLogger("dbos").addHandler(logging.NullHandler())


class Engine:
    """Runs the jobs of a store until it is stopped; one per process, since DBOS is a singleton."""

    def __init__(self, store: Store, url: str | None, settings: JobSettings) -> None:
        self.store, self.settings = store, settings
        self.url = url or f"sqlite:///{data_folder(QUEUE_FILE)}"
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._began_s, self._starting = time.monotonic(), True

    def start(self) -> None:
        """Start to run jobs, in threads."""
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether the engine holds a lease and its queue runs, or it is still starting."""
        if self._starting:
            return time.monotonic() < self._began_s + _START_S
        return self._thread.is_alive() and _executor is not None and _executor.holds_lease

    def wake(self) -> None:
        """Look for new jobs now instead of at the next renewal of the lease."""
        self._awake.set()

    def stop(self, database_answers: bool = True) -> None:
        """Return running jobs to the queue and stop; no process is left behind.

        Without its database this waits for the end of processes alone: jobs cannot be returned, so
        other servers take them over once the lease has expired.
        """
        self._stopping.set()
        self._awake.set()
        # DBOS would wait for a lost database for ever.
        self._thread.join(2 * _STOP_TIMEOUT_S if database_answers else _CUT_SHORT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            name = f"{socket.gethostname()[:30]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            executor = Executor(other_versions.named(name), self.store, self.settings)
            try:
                self._run_under_lease(executor)
            except (Unavailable, SQLAlchemyError) as error:
                reason = error if isinstance(error, Unavailable) else type(error).__name__
                _log.warning("jobs wait for the database: %s", reason)
                self._stopping.wait(1.0)
            except Exception:
                _log.exception("the job engine failed")
                self._stopping.wait(1.0)

    def _run_under_lease(self, executor: Executor) -> None:
        global _executor
        self.store.database.check()  # before DBOS makes tables in one that was emptied
        self.store.servers.join(executor.name, self.settings.job_lease_s)
        try:
            _executor = executor
            _launch(self.url, executor.name, self.settings)
            with self.store.database.exclusive():
                _reconcile(self.store)
            self._starting = False
            file = _File.of(self.url)
            while not self._stopping.is_set() and file.is_there and self._tick(executor):
                self._awake.wait(self.settings.job_lease_s / _RENEWALS_PER_LEASE)
                self._awake.clear()
        finally:
            self._starting = False
            executor.end(_STOP_TIMEOUT_S)
            DBOS.destroy()
            with suppress(Unavailable):
                self.store.servers.leave(executor.name)

    def _tick(self, executor: Executor) -> bool:
        """Renew the lease and do what is due; False if the lease is lost."""
        began, lease_s = time.monotonic(), self.settings.job_lease_s
        try:
            if not self.store.servers.renew(executor.name, lease_s):
                return False
            # The last fifth of the lease is left for the processes to end.
            executor.extend(began + 0.8 * lease_s)
            _recover_from_dead_servers(self.store, lease_s)
            other_versions.requeue(self.store, lease_s)
            self._enqueue()
            if began > executor.clean_up_at:
                executor.clean_up_at = began + _CLEAN_UP_EVERY_S
                self._clean_up()
        except Unavailable as error:
            _log.warning("the database does not answer: %s", error)
        return executor.holds_lease

    def _enqueue(self) -> None:
        """Enqueue waiting jobs with DBOS, which ignores ids that it already has."""
        if not self.store.jobs.unsent():
            return
        with self.store.database.exclusive():  # else another server may just take it from DBOS
            for job in self.store.jobs.unsent():
                with SetWorkflowID(job.id):
                    DBOS.enqueue_workflow(_QUEUES[job.kind in RUNS_ALONE], run_job, job.id)
                self.store.jobs.sent(job.id)

    def _clean_up(self) -> None:
        """Delete old jobs, and the files of jobs that have ended."""
        self.store.jobs.forget(self.settings.job_retention_days * 86_400)
        done = DBOS.list_workflows(
            status=["SUCCESS", "ERROR", "CANCELLED"], limit=1000, load_input=False,
            load_output=False,
        )  # fmt: skip
        for workflow in done:
            self._fail_orphan(workflow.workflow_id)
        DBOS.delete_workflows([w.workflow_id for w in done])
        for folder in data_folder(FOLDER).glob("??_*"):
            job = self.store.jobs.get(folder.name)
            if job is None or job.state in OVER:
                shutil.rmtree(folder, ignore_errors=True)

    def _fail_orphan(self, id: str) -> None:
        """Fail a job that, by a bug, is still open although DBOS has finished its workflow."""
        if claim := self.store.jobs.begin(id):
            _log.error("job %s has no workflow any more and is failed", id)
            self.store.jobs.finish(claim, "failed", error=internal_document())


_QUEUES = ("light", "real")
_executor: Executor | None = None  # the one that DBOS was launched for


@DBOS.workflow(name="job", max_recovery_attempts=None)
def run_job(id: str) -> None:
    """Run one job from its first unfinished step to its end."""
    assert _executor is not None
    JobRun.of(_executor, id)


def _reconcile(store: Store) -> None:
    """Requeue jobs that DBOS does not know because its database was lost or restored."""
    # The order matters: a job is marked as sent only after DBOS has it.
    sent = store.jobs.unfinished()
    if not sent:
        return
    known = DBOS.list_workflows(workflow_ids=sent, load_input=False, load_output=False)
    for id in set(sent) - {w.workflow_id for w in known}:
        _log.warning("job %s is requeued: its finished steps are lost", id)
        store.jobs.requeue(id)


def _recover_from_dead_servers(store: Store, lease_s: float) -> None:
    """Return the workflows of executors without a lease to the queue."""
    # The order matters: an executor takes its lease before it begins anything.
    begun = DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
    alive = store.servers.alive(lease_s)
    if dead := {str(w.executor_id) for w in begun} - alive:
        DBOS._recover_pending_workflows(sorted(dead))


def _launch(url: str, name: str, settings: JobSettings) -> None:
    DBOS(
        config={
            "name": "planner",
            "system_database_url": url,
            "executor_id": name,
            "application_version": STEPS_VERSION,
            "serializer": _Json(),
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    DBOS.launch()
    for queue in _QUEUES:
        DBOS.register_queue(
            queue,
            worker_concurrency=settings.max_runs,
            polling_interval_sec=_POLL_S,
            on_conflict="always_update",
        )


class _File(NamedTuple):
    """The SQLite file of DBOS, which may be deleted while it is open; node 0: no file."""

    path: Path
    node: int

    @classmethod
    def of(cls, url: str) -> Self:
        """The file of a URL, with its present inode."""
        parsed = make_url(url)
        is_file = parsed.get_backend_name() == "sqlite"
        path = Path(parsed.database or "")
        return cls(path, path.stat().st_ino if is_file else 0)

    @property
    def is_there(self) -> bool:
        """Whether the file still exists with the same inode."""
        return not self.node or same_file(self.path, self.node)


class _Json(Serializer):
    """Writes DBOS's records as JSON and not, as it does by default, pickled."""

    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=str)

    def deserialize(cls, serialized_data: str) -> Any:
        return json.loads(serialized_data)
