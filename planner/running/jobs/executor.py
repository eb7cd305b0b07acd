"""The runs of jobs by one executor: a server under one lease."""

from __future__ import annotations

import fcntl
import logging
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, TypeVar

from dbos import DBOS
from opentelemetry import trace

from planner.data_folder import data_folder
from planner.documents.problems import (
    RequestError,
    failure_document,
    internal_document,
    problem_document,
)
from planner.documents.service import Progress
from planner.evidence.uncertainty.asker import HERE, CallerIdentity, as_caller
from planner.running.jobs import disk_space
from planner.running.jobs.settings import JobSettings
from planner.running.jobs.step_process import StepProcess
from planner.running.jobs.step_worker import LEASE_EXPIRED, task_line
from planner.running.jobs.workflows import RUNS_ALONE, WORKFLOWS, Cancelled
from planner.running.store import Store, Unavailable
from planner.running.store.jobs import Claim, Job, Superseded

FOLDER = "jobs"  # in the data folder: the files of runs, one folder per job
_TICK_S = 0.2
_REPORT_S = 0.5  # interval of progress reports to the database
_LOG_BYTES = 2**20  # limit on the kept log of one step
_MAX_RESTARTS = 10  # of one step by one executor, after its lease or a signal ended the process
_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("planner")
T = TypeVar("T")


class LeaseLost(BaseException):
    """The executor's lease has expired: the job is queued again, or another executor has it."""


class Failed(Exception):
    """The job failed, with the problem document that says why."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document["detail"])
        self.document = document


class Executor:
    """A server under one lease, and its runs."""

    def __init__(self, name: str, store: Store, settings: JobSettings) -> None:
        self.name, self.store, self.settings = name, store, settings
        self.clean_up_at = 0.0
        self.lease_until = time.monotonic() + 0.8 * settings.job_lease_s
        self._over = threading.Event()
        self._runs: set[JobRun] = set()
        self._lock = threading.Condition()

    @property
    def holds_lease(self) -> bool:
        """Whether the lease is certain to be still valid."""
        return not self._over.is_set() and time.monotonic() < self.lease_until

    def check(self) -> None:
        """Raise LeaseLost if the lease may have expired."""
        if not self.holds_lease:
            raise LeaseLost

    def extend(self, until: float) -> None:
        """Extend the lease to this time, also for the processes of the runs.

        A lease that has expired stays so, since runs may have seen that and ended.
        """
        if not self.holds_lease:
            self._over.set()
            return
        self.lease_until = until
        with self._lock:
            for step_process in [run.step_process for run in self._runs]:
                if step_process is not None:
                    step_process.extend(until)

    def end(self, timeout_s: float) -> None:
        """Have all runs release their jobs, and wait for them, at most timeout_s."""
        self._over.set()
        with self._lock:
            self._lock.wait_for(lambda: not self._runs, timeout_s)

    @contextmanager
    def tracking(self, run: JobRun) -> Iterator[None]:
        """Register a run with this executor while it lasts."""
        self.check()
        with self._lock:
            self._runs.add(run)
        try:
            yield
        finally:
            with self._lock:
                self._runs.discard(run)
                self._lock.notify_all()

    def retried(self, call: Callable[[], T]) -> T:
        """The result of a store call, retried while the store is down.  Raises LeaseLost."""
        while True:
            self.check()
            try:
                return call()
            except Unavailable as error:
                _log.warning("a job waits for the database: %s", error)
                self._over.wait(_REPORT_S)


class JobRun:
    """The steps of a job (planner.running.jobs.workflows.Steps), run by DBOS and reported to the
    store.
    """

    def __init__(self, executor: Executor, job: Job, claim: Claim) -> None:
        self.executor, self.job, self.claim = executor, job, claim
        self.jobs = executor.store.jobs
        self.settings = executor.settings
        self.folder = data_folder(FOLDER) / job.id
        self.step_process: StepProcess | None = None
        self.parts: dict[str, Any] = {}

    @classmethod
    def of(cls, executor: Executor, id: str) -> None:
        """Start or resume a job and run it to its end.  Raises LeaseLost, Superseded."""
        claim = executor.retried(lambda: executor.store.jobs.begin(id))
        job = executor.retried(lambda: executor.store.jobs.get(id))
        if claim is None or job is None:  # the job has ended or was deleted
            return
        _log.info("job %s begins: %s, attempt %d", id, job.kind, claim.attempts)
        run = cls(executor, job, claim)
        with executor.tracking(run):
            run._run()

    def _run(self) -> None:
        end: dict[str, Any]
        try:
            self._check_cancelled()
            self._check_attempts()
            self._sync_library()
            end = {"state": "succeeded", "result": WORKFLOWS[self.job.kind](self.job.request, self)}
        except Cancelled as cancelled:
            end = {"state": "cancelled", "result": cancelled.result}
        except Failed as error:
            end = {"state": "failed", "error": error.document}
        except (LeaseLost, Superseded):
            with suppress(Unavailable, Superseded):
                self.jobs.release(self.claim)
            raise
        except Exception:
            _log.exception("job %s failed by a bug", self.job.id)
            end = {"state": "failed", "error": internal_document()}
        self._sync_library()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.executor.retried(lambda: self.jobs.finish(self.claim, **end))
        _log.info("job %s ended: %s", self.job.id, end["state"])

    def _sync_library(self) -> None:
        """Synchronise profiles and sites with the other servers."""
        self.executor.retried(self.executor.store.shared_files.sync)

    def run_here(self, phase: str, work: Callable[[], Any]) -> Any:
        """The result of a short step, run in this process."""

        def outcome() -> dict[str, Any]:
            with as_caller(self._asker()):
                return _outcome(work)

        return self._step(phase, outcome)

    def _asker(self) -> CallerIdentity:
        """The job's owner, who may read of sites what is shared with that name."""
        if not (owner := self.job.owner):
            return HERE
        sites = self.executor.store.sites
        return CallerIdentity(owner, self.executor.retried(lambda: sites.hidden_from(owner)))

    def run_apart(
        self, phase: str, step: str, at: tuple[int, int] = (0, 0), **arguments: Any
    ) -> Any:
        """The result of a long step, run in its own process; alone on the machine if needed."""
        return self._step(phase, lambda: self._process(phase, step, at, arguments))

    def _step(self, phase: str, work: Callable[[], dict[str, Any]]) -> Any:
        """The result of a step, run now or stored by an earlier run."""
        done_now = False

        def run_and_report() -> dict[str, Any]:
            nonlocal done_now
            began = time.monotonic()
            self._report(phase, Progress(), f"{phase}: begun on {socket.gethostname()}")
            with _tracer.start_as_current_span(f"{self.job.kind} {phase}") as span:
                span.set_attribute("planner.job", self.job.id)
                outcome = self._with_space(phase, work)
            state = "failed" if "failed" in outcome else "done"
            self._report(phase, None, f"{phase}: {state} in {time.monotonic() - began:.1f} s")
            done_now = True
            return outcome

        self.executor.check()
        outcome = DBOS.run_step({"name": phase}, run_and_report)
        if done_now:
            self.executor.retried(lambda: self.jobs.finished_step(self.claim))
        if "failed" in outcome:
            raise Failed(outcome["failed"])
        return outcome["result"]

    def _with_space(self, phase: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a step says of itself; one that finds no space begins again once there is some.

        One that fills the disk by itself fails after as many beginnings as a job may have.
        """
        outcome, no_space = disk_space.tried(work)
        for _ in range(self.settings.max_job_attempts - 1):
            if not no_space:
                break
            log = [f"{phase}: {outcome['failed']['detail']}: waits for space"]
            while not disk_space.has_space(self.folder.parent):
                self.executor.check()
                self._report(phase, Progress(text="waits for space on the disk"), *log)
                log.clear()
                time.sleep(_REPORT_S)
            self._report(phase, Progress(), *log, f"{phase}: begun again")
            outcome, no_space = disk_space.tried(work)
        return outcome

    def _process(
        self, phase: str, step: str, at: tuple[int, int], arguments: dict[str, Any], tries: int = 0
    ) -> dict[str, Any]:
        settings, lock = self.settings, self._machine_lock(phase)
        task = task_line(
            step,
            self.job.request,
            arguments,
            self.folder,
            settings,
            self.executor.lease_until,
            self._asker(),
        )
        progress, log, log_bytes = Progress(done=at[0], total=at[1]), list[str](), 0
        began, looked = time.monotonic(), 0.0
        self.step_process = StepProcess(task, self.folder, lock)
        try:
            while True:
                message = self.step_process.next(_TICK_S) or {}
                if "result" in message or "failed" in message:
                    with suppress(Unavailable):
                        self._write_progress(phase, progress, log)
                    return message
                if "ended" in message:
                    self.executor.check()
                    if tries < self._restarts(message["ended"]):
                        break
                    return {"failed": _crashed(message["ended"])}
                if "log" in message and log_bytes < _LOG_BYTES:
                    log_bytes += len(message["log"])
                    log.append(message["log"])
                self.parts |= message.get("part", {})
                if "progress" in message:
                    progress = _job_progress(message["progress"], at)
                now = time.monotonic()
                if now - began > 2 * settings.max_run_s:
                    return {"failed": _too_long(2 * settings.max_run_s)}
                self.executor.check()
                if now - looked > _REPORT_S:
                    looked = now
                    with suppress(Unavailable):
                        self._write_progress(phase, progress, log)
                        log.clear()
        finally:
            self.step_process.stop()
            self.step_process = None
        return self._process(phase, step, at, arguments, tries + 1)

    def _restarts(self, code: int) -> int:
        """How many times a step that ended with this code is begun again here."""
        if code == LEASE_EXPIRED:  # extended too late, or a signal to the server ended it as well
            return _MAX_RESTARTS
        # Who kills so is mostly the kernel, for memory that something else took.
        attempts_left = self.settings.max_job_attempts - self.claim.attempts
        return attempts_left if code == -signal.SIGKILL else 0

    def _machine_lock(self, phase: str) -> IO[bytes] | None:
        """A held lock that admits a run to this machine, shared by all servers of the data folder.

        None for a kind of job that need not run alone.
        """
        if self.job.kind not in RUNS_ALONE:
            return None
        data_folder(FOLDER).mkdir(parents=True, exist_ok=True)
        while True:
            for i in range(self.settings.max_runs):
                file = (data_folder(FOLDER) / f"place-{i}").open("ab")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.close()
                else:
                    return file
            self._wait_for_machine(phase)

    def _wait_for_machine(self, phase: str) -> None:
        self.executor.check()
        self._report(phase, Progress(text="waits for another run on this machine"))
        time.sleep(_REPORT_S)

    def _report(self, phase: str, progress: Progress | None, *log: str) -> None:
        self.executor.retried(lambda: self._write_progress(phase, progress, log))

    def _write_progress(self, phase: str, progress: Progress | None, log: Sequence[str]) -> None:
        """Report the job's progress.  Raises Cancelled, Unavailable, Superseded."""
        if self.jobs.report(self.claim, phase, progress, log) == "cancelling":
            raise Cancelled

    def _check_cancelled(self) -> None:
        if self.executor.retried(lambda: self.jobs.state(self.claim)) == "cancelling":
            raise Cancelled

    def _check_attempts(self) -> None:
        limit = self.settings.max_job_attempts
        if self.claim.attempts > limit:
            detail = f"its server ended {limit} times in the phase {self.job.phase!r}"
            raise Failed(failure_document("cut-off", "The job was cut off", detail))


def _outcome(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"result": work()}
    except RequestError as error:
        return {"failed": problem_document(error.problems)}


def _job_progress(part: dict[str, Any], at: tuple[int, int]) -> Progress:
    """The progress of the whole job, from the progress message of one of its steps."""
    done, total = at
    return Progress(done=done + part["done"], total=total or part["total"], text=part["text"])


def _crashed(code: int) -> dict[str, Any]:
    ending = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return failure_document("run/crashed", "The run failed", f"the process of the step {ending}")


def _too_long(seconds: float) -> dict[str, Any]:
    detail = f"the step was not done after {seconds:g} s, and was ended"
    return failure_document("run/too-long", "The run failed", detail)
