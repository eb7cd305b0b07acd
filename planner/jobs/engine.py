"""The jobs of one server: DBOS for what is queued and which steps are done, a lease for who lives.

DBOS knows its executors by name and recovers what a name was running only when told that it is
dead.  Here every life of a server has a name that is never used again, and a lease under it
(planner.store.servers).  Whoever lives gives back to the queue what names without a lease have.
A life whose lease runs out ends: its processes have ended before (runner.py), what it would write
is refused (planner.store.jobs, and DBOS's own token of each execution), and the server begins
another life.  So of one job there are never two live runs.
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
from typing import Any

from dbos import DBOS, Serializer, SetWorkflowID
from sqlalchemy.exc import SQLAlchemyError

from planner.data_folder import data_folder
from planner.jobs.kinds import REAL
from planner.jobs.run import FOLDER, Life, Run
from planner.jobs.settings import JobSettings
from planner.problems import internal_document
from planner.store import Store, Unavailable
from planner.store.jobs import OVER

# Of the steps and their order (kinds.py): jobs that an incompatible version began are not gone on
# with, so a change there needs another number here.
STEPS_VERSION = "2"
_RENEWALS = 5  # of a lease in its time
_POLL_S = 0.5  # of DBOS's queues
_TIDY_S = 60.0
_PATIENCE_S = 15.0  # with runs that are to end
_log = logging.getLogger(__name__)
# So that DBOS's own lines go where all others go, and in their form.
logging.getLogger("dbos").addHandler(logging.NullHandler())


class Engine:
    """Runs the jobs of a store until it is stopped; one in a process, since DBOS is one."""

    def __init__(self, store: Store, url: str | None, settings: JobSettings) -> None:
        self.store, self.settings = store, settings
        self.url = url or f"sqlite:///{data_folder('jobs.sqlite')}"
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._live, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin to run jobs, in threads."""
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether it takes jobs up: it has a lease, and a queue that runs."""
        return self._thread.is_alive() and _life is not None and _life.lives

    def poke(self) -> None:
        """There is a new job."""
        self._awake.set()

    def stop(self) -> None:
        """Give back what runs, and end; no process is left."""
        self._stopping.set()
        self._awake.set()
        self._thread.join(2 * _PATIENCE_S)  # DBOS itself waits for a database without end

    def _live(self) -> None:
        while not self._stopping.is_set():
            name = f"{socket.gethostname()[:30]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            life = Life(name, self.store, self.settings)
            try:
                self._one_life(life)
            except (Unavailable, SQLAlchemyError) as error:
                _log.warning("jobs wait for the database: %s", type(error).__name__)
                self._stopping.wait(1.0)
            except Exception:
                _log.exception("a fault in the running of jobs")
                self._stopping.wait(1.0)

    def _one_life(self, life: Life) -> None:
        global _life
        self.store.servers.join(life.name, self.settings.job_lease_s)
        try:
            _life = life
            _launch(self.url, life.name, self.settings)
            while not self._stopping.is_set() and self._tick(life):
                self._awake.wait(self.settings.job_lease_s / _RENEWALS)
                self._awake.clear()
        finally:
            life.end(_PATIENCE_S)
            DBOS.destroy()
            with suppress(Unavailable):
                self.store.servers.leave(life.name)

    def _tick(self, life: Life) -> bool:
        """Renew the lease, and see what there is to do; False where the lease is lost."""
        began, lease_s = time.monotonic(), self.settings.job_lease_s
        try:
            if not self.store.servers.renew(life.name, lease_s):
                return False
            # Processes need some of it to end.
            life.prolong(began + 0.8 * lease_s)
            _take_over(self.store)
            self._send()
            if began > life.tidy_at:
                life.tidy_at = began + _TIDY_S
                self._tidy()
        except Unavailable as error:
            _log.warning("the database does not answer: %s", error)
        return life.lives

    def _send(self) -> None:
        """Give DBOS what waits; what it has already it takes once."""
        for job in self.store.jobs.unsent():
            with SetWorkflowID(job.id):
                DBOS.enqueue_workflow(_QUEUES[job.kind in REAL], run_job, job.id)
            self.store.jobs.sent(job.id)

    def _tidy(self) -> None:
        """Forget old jobs, and files of jobs that are over."""
        kept_s = self.settings.job_retention_days * 86_400
        self.store.jobs.forget(time.time() - kept_s)
        done = DBOS.list_workflows(
            status=["SUCCESS", "ERROR", "CANCELLED"], limit=1000, load_input=False,
            load_output=False,
        )  # fmt: skip
        for one in done:
            self._bury(one.workflow_id)
        DBOS.delete_workflows([one.workflow_id for one in done])
        for folder in data_folder(FOLDER).glob("??_*"):
            job = self.store.jobs.get(folder.name)
            if job is None or job.state in OVER:
                shutil.rmtree(folder, ignore_errors=True)

    def _bury(self, id: str) -> None:
        """Have a job end that DBOS is done with, and that a fault of ours has left open."""
        if claim := self.store.jobs.begin(id):
            _log.error("job %s was left open", id)
            self.store.jobs.finish(claim, "failed", error=internal_document())


_QUEUES = ("light", "real")
_life: Life  # the one that DBOS was launched for


@DBOS.workflow(name="job", max_recovery_attempts=None)
def run_job(id: str) -> None:
    """One job, from its first step that is not done yet to its end."""
    Run.of(_life, id)


def _take_over(store: Store) -> None:
    """Give back to the queue what servers had that live no more."""
    # In this order: whoever has begun something by now held a lease before.
    begun = DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
    alive = store.servers.alive()
    if dead := {str(one.executor_id) for one in begun} - alive:
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


class _Json(Serializer):
    """What DBOS keeps, as JSON: nothing that is read back can run."""

    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=str)

    def deserialize(cls, serialized_data: str) -> Any:
        return json.loads(serialized_data)
