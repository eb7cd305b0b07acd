"""A client of the service: the planner's questions, asked over HTTP.

    >>> from planner.client import Client
    >>> service = Client("http://localhost:8000")

Every operation of the service is a method (planner.client.operations) that takes the same document
and returns the same class as the planner's own function; `dir(service)` lists them:

    answer = service.plan({"model": "llama-3.1-8b", "cluster": "2x8xh100-sxm", "training": {...}})
    job = service.finished(service.start_sweeps({"base": {...}, "axes": {...}}))

A request that is wrong raises the planner's own RequestError, a service that does not answer
ServiceError (planner.documents.problems).
"""

from __future__ import annotations

import time

from pydantic import BaseModel

from planner.client import refusals
from planner.client.calls import key_of_environment
from planner.client.operations import Operations
from planner.documents.problems import ServiceError
from planner.documents.service import OVER, JobAnswer
from planner.progress import current, step

__all__ = ["Client"]
_PATIENCE_S = 60.0  # time that a job's follower waits while the service starts again
_PAUSE_S = 1.0


class _JobProgress(BaseModel):
    done: int
    total: int


class Client(Operations):
    """One service at an address such as http://localhost:8000, with the key that it wants."""

    @classmethod
    def of_environment(cls, url: str) -> Client:
        """With the key in $PLANNER_API_KEY, or in the file that $PLANNER_API_KEY_FILE names."""
        return cls(url, key_of_environment())

    def finished(self, job: JobAnswer) -> JobAnswer:
        """The job once it has succeeded; its progress is reported to planner.progress meanwhile.

        It is followed by its events, and again where a server ends and another goes on.  Raises
        ServiceError where it fails, is cancelled, or the service stays away for a minute.
        """
        follow = getattr(self, f"follow_{job.kind}")
        look = getattr(self, f"get_{job.kind}")
        seen: str | None = None
        heard = time.monotonic()
        while True:
            try:
                for event in follow(job.id, last_event_id=seen):
                    seen, heard = event.number or seen, time.monotonic()
                    if event.name == "progress":
                        progress = self.read_answer(_JobProgress, event.data)
                        step(progress.done, progress.total)
                        if current().enough():
                            raise KeyboardInterrupt  # the job goes on
                job = look(job.id)
                if job.state in OVER:
                    break
            except ServiceError as error:
                if not error.passing or time.monotonic() - heard > _PATIENCE_S:
                    raise
            time.sleep(_PAUSE_S)
        if job.state != "succeeded":
            raise refusals.failed_job(self.url, job.id, job.error)
        return job

    def cancelled(self, job: JobAnswer) -> JobAnswer:
        """The job at its end, which is now unless it has ended already; its result may be a part.

        Raises ServiceError where the service refuses, or stays away.
        """
        try:
            getattr(self, f"cancel_{job.kind}")(job.id)
        except ServiceError as error:
            if error.document["type"] != "/problems/not-cancellable":
                raise
        while (job := getattr(self, f"get_{job.kind}")(job.id)).state not in OVER:
            time.sleep(_PAUSE_S)
        return job
