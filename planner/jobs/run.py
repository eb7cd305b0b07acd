"""One run of one job by one life of a server."""

from __future__ import annotations

import fcntl
import logging
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, TypeVar

from dbos import DBOS

from planner.data_folder import data_folder
from planner.jobs.kinds import KINDS, REAL
from planner.jobs.process import Runner
from planner.jobs.runner import LEASE_OVER, task_line
from planner.jobs.settings import JobSettings
from planner.problems import RequestError, internal_document, problem_document
from planner.store import Store, Unavailable
from planner.store.jobs import Claim, Job, Progress, Superseded

FOLDER = "jobs"  # in the data folder: files of runs, a folder for each job
_TICK_S = 0.2
_REPORT_S = 0.5  # between two looks at the database
_LOG_BYTES = 2**20  # of one step
_log = logging.getLogger(__name__)
T = TypeVar("T")


class HandOver(BaseException):
    """This life is over: the job is another one's, or waits for one."""


class Cancelled(BaseException):
    """Somebody wants the job to stop."""


class Failed(Exception):
    """A job that ends with a reason, as a problem document."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document["detail"])
        self.document = document


class Life:
    """A server under one lease, and what it runs."""

    def __init__(self, name: str, store: Store, settings: JobSettings) -> None:
        self.name, self.store, self.settings = name, store, settings
        self.tidy_at = 0.0
        self.safe_until = time.monotonic() + 0.8 * settings.job_lease_s
        self._over = threading.Event()
        self._runs: set[Run] = set()
        self._lock = threading.Condition()

    @property
    def lives(self) -> bool:
        """Whether the lease is certain to hold."""
        return not self._over.is_set() and time.monotonic() < self.safe_until

    def check(self) -> None:
        """Raise HandOver where this life is over."""
        if not self.lives:
            raise HandOver

    def prolong(self, until: float) -> None:
        """The lease holds until then, also for the processes."""
        self.safe_until = until
        with self._lock:
            for runner in [run.runner for run in self._runs]:
                if runner is not None:
                    runner.prolong(until)

    def end(self, patience_s: float) -> None:
        """Have all runs hand over, and wait until they have."""
        self._over.set()
        with self._lock:
            self._lock.wait_for(lambda: not self._runs, patience_s)

    @contextmanager
    def having(self, run: Run) -> Iterator[None]:
        """Count a run among those of this life."""
        self.check()
        with self._lock:
            self._runs.add(run)
        try:
            yield
        finally:
            with self._lock:
                self._runs.discard(run)
                self._lock.notify_all()

    def patiently(self, call: Callable[[], T]) -> T:
        """What the store says, also where it does not answer for a while.  Raises HandOver."""
        while True:
            self.check()
            try:
                return call()
            except Unavailable as error:
                _log.warning("a job waits for the database: %s", error)
                self._over.wait(_REPORT_S)


class Run:
    """The steps of a job (planner.jobs.kinds.Steps), done by DBOS and told to the store."""

    def __init__(self, life: Life, job: Job, claim: Claim) -> None:
        self.life, self.job, self.claim = life, job, claim
        self.jobs = life.store.jobs
        self.settings = life.settings
        self.folder = data_folder(FOLDER) / job.id
        self.runner: Runner | None = None

    @classmethod
    def of(cls, life: Life, id: str) -> None:
        """Begin a job, and see it to its end.  Raises HandOver, Superseded."""
        claim = life.patiently(lambda: life.store.jobs.begin(id))
        job = life.patiently(lambda: life.store.jobs.get(id))
        if claim is None or job is None:  # it is over
            return
        run = cls(life, job, claim)
        with life.having(run):
            run._whole()

    def _whole(self) -> None:
        end: dict[str, Any]
        try:
            self._look()
            self._bounded()
            end = {"state": "succeeded", "result": KINDS[self.job.kind](self.job.request, self)}
        except Cancelled:
            end = {"state": "cancelled"}
        except Failed as error:
            end = {"state": "failed", "error": error.document}
        except (HandOver, Superseded):
            with suppress(Unavailable, Superseded):
                self.jobs.release(self.claim)
            raise
        except Exception:
            _log.exception("a fault in job %s", self.job.id)
            end = {"state": "failed", "error": internal_document()}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.life.patiently(lambda: self.jobs.finish(self.claim, **end))

    def here(self, phase: str, work: Callable[[], Any]) -> Any:
        """The result of a short step in this process."""
        return self._step(phase, lambda: _outcome(work))

    def away(self, phase: str, step: str, at: tuple[int, int] = (0, 0), **arguments: Any) -> Any:
        """The result of a long step in a process of its own, which is alone if it must be."""
        return self._step(phase, lambda: self._process(phase, step, at, arguments))

    def _step(self, phase: str, work: Callable[[], dict[str, Any]]) -> Any:
        """What a step returned: now, or when it was done."""
        done_now = False

        def told() -> dict[str, Any]:
            nonlocal done_now
            began = time.monotonic()
            self._report(phase, Progress(), f"{phase}: begun on {socket.gethostname()}")
            try:
                outcome = work()
            except OSError as error:
                detail = f"could not write: {error.strerror}"
                outcome = {"failed": _problem("cannot-write", "The step has no room", detail)}
            word = "failed" if "failed" in outcome else "done"
            self._report(phase, None, f"{phase}: {word} in {time.monotonic() - began:.1f} s")
            done_now = True
            return outcome

        self.life.check()
        outcome = DBOS.run_step({"name": phase}, told)
        if done_now:
            self.life.patiently(lambda: self.jobs.finished_step(self.claim))
        if "failed" in outcome:
            raise Failed(outcome["failed"])
        return outcome["result"]

    def _process(
        self, phase: str, step: str, at: tuple[int, int], arguments: dict[str, Any]
    ) -> dict[str, Any]:
        settings, place = self.settings, self._place(phase)
        task = task_line(
            step, self.job.request, arguments, self.folder, settings, self.life.safe_until
        )
        progress, log, log_bytes = Progress(done=at[0], total=at[1]), list[str](), 0
        began, looked = time.monotonic(), 0.0
        self.runner = Runner(task, self.folder, place)
        try:
            while True:
                told = self.runner.next(_TICK_S) or {}
                if "result" in told or "failed" in told:
                    with suppress(Unavailable):
                        self._tell(phase, progress, log)
                    return told
                if "ended" in told:
                    self.life.check()
                    if told["ended"] == LEASE_OVER:  # of its own, which was prolonged too late
                        break
                    return {"failed": _ended(told["ended"])}
                if "log" in told and log_bytes < _LOG_BYTES:
                    log_bytes += len(told["log"])
                    log.append(told["log"])
                if "progress" in told:
                    progress = _counted(told["progress"], at)
                now = time.monotonic()
                if now - began > 2 * settings.max_run_s:
                    return {"failed": _too_long(2 * settings.max_run_s)}
                self.life.check()
                if now - looked > _REPORT_S:
                    looked = now
                    with suppress(Unavailable):
                        self._tell(phase, progress, log)
                        log.clear()
        finally:
            self.runner.stop()
            self.runner = None
        return self._process(phase, step, at, arguments)

    def _place(self, phase: str) -> IO[bytes] | None:
        """A place for a real run on this machine, of all servers that share the folder: its lock.

        None where the job needs none.
        """
        if self.job.kind not in REAL:
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
            self._wait(phase)

    def _wait(self, phase: str) -> None:
        self.life.check()
        self._report(phase, Progress(text="waits for another run on this machine"))
        time.sleep(_REPORT_S)

    def _report(self, phase: str, progress: Progress | None, *log: str) -> None:
        self.life.patiently(lambda: self._tell(phase, progress, log))

    def _tell(self, phase: str, progress: Progress | None, log: Sequence[str]) -> None:
        """Say where the job is.  Raises Cancelled where it is to stop, Unavailable, Superseded."""
        if self.jobs.report(self.claim, phase, progress, log) == "cancelling":
            raise Cancelled

    def _look(self) -> None:
        if self.life.patiently(lambda: self.jobs.state(self.claim)) == "cancelling":
            raise Cancelled

    def _bounded(self) -> None:
        most = self.settings.max_job_attempts
        if self.claim.attempts > most:
            detail = f"its server ended {most} times in the phase {self.job.phase!r}"
            raise Failed(_problem("cut-off", "The job was cut off", detail))


def _outcome(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"result": work()}
    except RequestError as error:
        return {"failed": problem_document(error.problems)}


def _counted(told: dict[str, Any], at: tuple[int, int]) -> Progress:
    """The progress of the job, of what a step of it says."""
    done, total = at
    return Progress(done=done + told["done"], total=total or told["total"], text=told["text"])


def _ended(code: int) -> dict[str, Any]:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return _problem("run/crashed", "The run failed", f"the process of the step {how}")


def _too_long(seconds: float) -> dict[str, Any]:
    detail = f"the step was not done after {seconds:g} s, and was ended"
    return _problem("run/too-long", "The run failed", detail)


def _problem(slug: str, title: str, detail: str) -> dict[str, Any]:
    return {"type": f"/problems/{slug}", "title": title, "status": 500, "detail": detail}
