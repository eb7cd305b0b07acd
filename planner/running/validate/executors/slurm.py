"""Slurm: sbatch, squeue, scancel and, if the cluster keeps accounting, sacct.

Several runs become one job array, in which each task has its own folder.  sbatch reads site options
(account, partition, ...) from its environment variables: SBATCH_ACCOUNT, SBATCH_PARTITION, ...
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from planner.frameworks.base import Bundle
from planner.frameworks.launchers import CannotLaunch, slurm
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.running.validate import executors
from planner.running.validate.executors.cluster_client import ClientError, call

_MARGIN_S = 300  # extra time limit for the nodes to start and to end
# Slurm's job states (squeue(1), JOB STATE CODES); all others mean failure.
_STATES: dict[str, executors.State] = {
    "PENDING": "waiting", "CONFIGURING": "waiting", "REQUEUED": "waiting",
    "REQUEUE_HOLD": "waiting", "REQUEUE_FED": "waiting", "RESV_DEL_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    "RUNNING": "running", "COMPLETING": "running", "STAGE_OUT": "running", "SIGNALING": "running",
    "RESIZING": "running", "SUSPENDED": "running", "STOPPED": "running",
    "COMPLETED": "succeeded", "CANCELLED": "cancelled", "REVOKED": "cancelled",
}  # fmt: skip


class Slurm(executors.Executor):
    """Runs as a batch job, or as a job array."""

    def render(self, launches: Sequence[executors.RemoteRun]) -> Bundle:
        """The batch script.  Raises CannotLaunch for runs that differ in nodes or ranks."""
        first, *others = launches
        shape = (nodes(first.request.cluster), accelerators_per_node(first.request.cluster))
        for other in others:
            cluster = other.request.cluster
            if (nodes(cluster), accelerators_per_node(cluster)) != shape:
                raise CannotLaunch("the runs of an array must have the same nodes and ranks")
        name = executors.run_name(first)
        note = f"write all into one folder that every node sees, and there: sbatch {slurm.FILE}"
        parts = [executors.bundle(launch, name, note) for launch in launches]
        main = slurm.script(
            parts[0], first.request, name, len(parts) if others else 0,
            max(launch.time_limit_s for launch in launches) + _MARGIN_S,
        )  # fmt: skip
        files = {slurm.FILE: main}
        for run, part in zip(_runs(launches), parts, strict=True):
            files |= {str(Path(run, file)): text for file, text in part.files.items()}
        return parts[0].model_copy(update={"main": slurm.FILE, "files": files})

    def submit(self, folder: Path, launches: Sequence[executors.RemoteRun]) -> executors.Handle:
        """Submit the job; its nodes run the same Python interpreter as this process."""
        answer = call(["sbatch", "--parsable", slurm.FILE], folder, {"PYTHON": sys.executable})
        if not (match := re.fullmatch(r"(\d+)(;\S+)?", answer.strip())):
            raise ClientError("client_refused", "sbatch did not answer with the number of a job")
        return executors.Handle(
            launcher="slurm", folder=str(folder), id=match[1], runs=_runs(launches),
            ranks=launches[0].ranks,
        )  # fmt: skip

    def poll(self, handle: executors.Handle) -> tuple[executors.Status, ...]:
        """The states from squeue, else from sacct, else from the results of the ranks."""
        known = _queued(handle)
        jobs = [_job(handle, task) for task in range(len(handle.runs))]
        if not known.keys() >= set(jobs):
            known = _accounted(handle) | known
        statuses = []
        for job, folder in zip(jobs, executors.folders(handle), strict=True):
            status = known.get(job)
            if status is None or status.state == "succeeded":
                status = executors.final_status(folder, handle.ranks)
            statuses.append(status)
        return tuple(statuses)

    def cancel(self, handle: executors.Handle) -> None:
        """Cancel the job and all its tasks."""
        call(["scancel", handle.id])


def _runs(launches: Sequence[executors.RemoteRun]) -> tuple[str, ...]:
    return (".",) if len(launches) == 1 else tuple(map(str, range(len(launches))))


def _job(handle: executors.Handle, task: int) -> str:
    return handle.id if handle.runs == (".",) else f"{handle.id}_{task}"


def _queued(handle: executors.Handle) -> dict[str, executors.Status]:
    """The states from squeue; it forgets a job some minutes after its end."""
    try:
        answer = call(
            ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r",
             f"--jobs={handle.id}"]
        )  # fmt: skip
    except ClientError as error:
        if "Invalid job id" in error.stderr:
            return {}
        raise
    return _statuses(answer)


def _accounted(handle: executors.Handle) -> dict[str, executors.Status]:
    """The states from sacct; none if the cluster keeps no accounting."""
    try:
        return _statuses(
            call(
                ["sacct", "--noheader", "--allocations", "--parsable2",
                 "--format=JobID,State,ExitCode", f"--jobs={handle.id}"]
            )
        )  # fmt: skip
    except ClientError:
        return {}


def _statuses(answer: str) -> dict[str, executors.Status]:
    """The states in lines of job|state|reason."""
    statuses = {}
    for line in answer.splitlines():
        job, state, detail = [*line.strip().split("|"), "", ""][:3]
        name = state.split(" ")[0]  # "CANCELLED by 1000"
        why = f" ({detail})" if detail not in ("", "None") else ""
        statuses[job] = executors.Status(
            state=_STATES.get(name, "failed"), detail=name.lower() + why
        )
    return statuses
