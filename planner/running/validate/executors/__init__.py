"""Validation runs on this machine or a cluster: rendered as files, submitted, and followed.

An executor is one file and one line here, and has the name of the launcher whose files it uses
(planner/frameworks/launchers).  It renders a folder: `train.py` and `job.json` for the worker (see
planner.running.validate.run_files), `launch.sh`, which starts torchrun, and the files for its
cluster.  If the cluster's client is installed, it submits that folder and returns a handle, plain
JSON with which any process can poll, cancel and collect the run.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field, ValidationError

from cost_models.catalog.names import UnknownName, resolve
from cost_models.fields import Spec
from cost_models.package_files import filled, text
from planner.documents.plan_report import Note
from planner.documents.problems import RequestError, refuse
from planner.documents.request import PlanRequest
from planner.documents.saving import write_files
from planner.frameworks import bash_writer
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import CannotLaunch, job_name
from planner.frameworks.rules import accelerators_per_node, nodes

State = Literal["waiting", "running", "succeeded", "failed", "cancelled", "unknown"]
ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})

MAIN = "launch.sh"
HANDLE, REQUEST = "handle.json", "request.json"
_MAX_RUN_S = 7 * 86_400.0
_SHUTDOWN_S = 60  # torchrun gives its ranks 30 s to end
_JOIN_S = 600  # how long the first node waits for the last
_POLLS_S = (1.0, 30.0)  # first and longest interval between polls; each is 1.5 times the last
_MAX_MISSES = 5  # consecutive polls that may fail


class RemoteRun(Spec):
    """One validation run to start.

    request: its model and cluster; every node starts one rank per accelerator; files: the worker's
    input files, by name; image: a container image with this package and torch (Kubernetes).
    """

    request: PlanRequest
    files: dict[str, str]
    time_limit_s: Annotated[float, Field(gt=0, le=_MAX_RUN_S)] = 1800.0
    image: Annotated[str, Field(max_length=500, pattern=r"^[\w.:/@+-]*$")] = ""

    @property
    def ranks(self) -> int:
        return nodes(self.request.cluster) * accelerators_per_node(self.request.cluster)


class Handle(Spec):
    """A submitted run, or an array of them.

    folder: where its files were written; id: the cluster's id; runs: the folder of each run
    relative to `folder`; ranks: per run; by_hand: commands that the user still has to run.
    """

    launcher: str
    folder: str
    id: Annotated[str, Field(pattern=r"^\w[\w. -]*$")]  # an argument of client programs
    runs: tuple[str, ...] = (".",)
    ranks: Annotated[int, Field(ge=1)]
    by_hand: str = ""


class Status(Spec):
    """The state of a run, with details from the cluster."""

    state: State
    detail: str = ""


class Executor(Protocol):
    """One way to start ranks.  All methods raise RequestError if the cluster's client fails."""

    def render(self, launches: Sequence[RemoteRun]) -> Bundle:
        """The files that start these runs.  Raises CannotLaunch if it supports only one."""
        ...

    def submit(self, folder: Path, launches: Sequence[RemoteRun]) -> Handle:
        """Start the runs whose files were written into a folder that every node sees."""
        ...

    def poll(self, handle: Handle) -> tuple[Status, ...]:
        """The state of each run."""
        ...

    def cancel(self, handle: Handle) -> None:
        """End the runs and remove them from the cluster; may be called again."""
        ...

    def collect(self, handle: Handle) -> tuple[Path, ...]:
        """The folder of each run, with its logs and the results that its ranks have left."""
        return folders(handle)


def get(name: str) -> Executor:
    """The executor of a launcher.  Raises RequestError with the nearest names."""
    from planner.running.validate.executors.kubernetes import Kubernetes
    from planner.running.validate.executors.local import Local
    from planner.running.validate.executors.slurm import Slurm
    from planner.running.validate.executors.torchrun import Torchrun

    executors: Mapping[str, Executor] = {
        "local": Local(),
        "torchrun": Torchrun(),
        "slurm": Slurm(),
        "jobset": Kubernetes("jobset"),
        "trainjob": Kubernetes("trainjob"),
    }
    try:
        return executors[resolve(name, {n: n for n in executors}, "launcher")]
    except UnknownName as error:
        raise refuse("/launcher", "unknown_name", str(error)) from None


def bundle(launch: RemoteRun, name: str, note: str = "") -> Bundle:
    """The common files of all executors: a script for every node that starts torchrun.

    note: what the user still does with them.
    """
    cluster = launch.request.cluster
    about = f"A validation run of {launch.request.model.name}: {launch.ranks} ranks "
    about += f"on {nodes(cluster)} nodes."
    values = {
        "about": bash_writer.comment(about), "rendezvous": bash_writer.rendezvous(nodes(cluster)),
        "bundle": bash_writer.BUNDLE, "name": name, "join": _JOIN_S, "end": _SHUTDOWN_S,
        "processes": accelerators_per_node(cluster), "limit": f"{launch.time_limit_s:.0f}",
    }  # fmt: skip
    script = filled(text(__name__, "launch.sh.txt"), values)
    return Bundle(
        framework="planner validate", versions="torch 2.13", main=MAIN,
        files={MAIN: script, REQUEST: launch.request.model_dump_json() + "\n", **launch.files},
        flags=(), notes=(Note(code="launcher", text=note),) if note else (),
    )  # fmt: skip


def run_name(launch: RemoteRun) -> str:
    """A unique name of letters, digits and dashes, from planner.frameworks.launchers.job_name."""
    return f"{job_name(launch.request)[:30].strip('-')}-{secrets.token_hex(4)}"


def only(launches: Sequence[RemoteRun], launcher: str) -> RemoteRun:
    """The only run.  Raises CannotLaunch if there are several."""
    if len(launches) != 1:
        raise CannotLaunch(f"{launcher} starts one run at a time; slurm takes several as an array")
    return launches[0]


def start(name: str, launches: Sequence[RemoteRun], folder: Path) -> Handle:
    """Write the files of these runs into a folder, submit them, and write the handle there too.

    Raises RequestError if the launcher or its cluster refuses.
    """
    executor = get(name)
    write_files(render(name, launches).files, folder)
    handle = executor.submit(folder.resolve(), launches)
    write_files({HANDLE: handle.model_dump_json(indent=1) + "\n"}, folder)
    return handle


def render(name: str, launches: Sequence[RemoteRun]) -> Bundle:
    """The files of these runs, to read or to submit by hand.  Raises RequestError."""
    try:
        return get(name).render(launches)
    except CannotLaunch as error:
        raise refuse("/launcher", "cannot_launch", str(error)) from None


def started(folder: Path) -> Handle:
    """The handle that `start` wrote into a folder.  Raises RequestError if there is none."""
    try:
        return Handle.model_validate_json((folder / HANDLE).read_bytes())
    except (OSError, ValidationError):
        raise refuse("", "no_handle", f"{folder} has no {HANDLE} of a submitted run") from None


def requests(handle: Handle) -> tuple[PlanRequest, ...]:
    """The request of each run, from its files.  Raises RequestError if it cannot be read."""
    parsed = []
    for folder in folders(handle):
        try:
            parsed.append(PlanRequest.model_validate_json((folder / REQUEST).read_bytes()))
        except (OSError, ValidationError):
            raise refuse("", "no_handle", f"{folder} has no {REQUEST} of a run") from None
    return tuple(parsed)


def follow(
    handle: Handle, progress: Callable[[str], None] = lambda text: None
) -> tuple[Status, ...]:
    """Wait for the runs to end; returns their final states.

    progress: called with the current states at every poll.  An interrupt leaves the runs running.
    Raises RequestError if the cluster no longer answers.
    """
    pause, last = _POLLS_S
    misses = 0
    while True:
        try:
            states = get(handle.launcher).poll(handle)
            misses = 0
        except RequestError as error:
            misses += 1
            if misses > _MAX_MISSES:
                raise
            progress(str(error))
        else:
            if all(s.state in ENDED for s in states):
                return states
            progress(", ".join(f"{s.state} {s.detail}".rstrip() for s in states))
        time.sleep(pause)
        pause = min(1.5 * pause, last)


def folders(handle: Handle) -> tuple[Path, ...]:
    """The folder of each run."""
    return tuple(Path(handle.folder, run) for run in handle.runs)


def missing(folder: Path, ranks: int) -> list[int]:
    """The ranks of a run without a result file."""
    present = {
        int(match[1])
        for path in folder.glob("rank-*.json")
        if (match := re.fullmatch(r"rank-(\d{1,7})\.json", path.name))
    }
    return [rank for rank in range(ranks) if rank not in present]


def final_status(folder: Path, ranks: int) -> Status:
    """The final status of a run, from the result files of its ranks."""
    if not (lacking := missing(folder, ranks)):
        return Status(state="succeeded")
    numbers = ", ".join(map(str, lacking[:5])) + (", ..." if len(lacking) > 5 else "")
    return Status(state="failed", detail=f"ended without the results of ranks {numbers}")
