"""torchrun on this machine, under a watcher process that outlives the command that started it.

`python -m planner.running.validate.executors.local FOLDER RANKS SECONDS` is the watcher; see
planner.running.validate.processes.process for how it ends the ranks.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from planner.frameworks.base import Bundle
from planner.frameworks.launchers import CannotLaunch
from planner.frameworks.rules import nodes
from planner.running.validate import executors, run_files
from planner.running.validate.processes import process

_STATUS_FILE = "ended.json"  # the final status, written by the watcher
_LOG = "launcher.log"
_WATCHER_TIMEOUT_S = 30.0  # for the watcher to end its ranks and write the final status


class Local(executors.Executor):
    """Ranks on this machine, under the limits of planner.running.validate.processes.process."""

    def render(self, launches: Sequence[executors.RemoteRun]) -> Bundle:
        """The script that starts the same ranks by hand.  Raises CannotLaunch for several nodes."""
        launch = executors.only(launches, "local")
        if nodes(launch.request.cluster) > 1:
            raise CannotLaunch("this machine is one node; take torchrun, slurm, jobset or trainjob")
        return executors.bundle(
            launch, executors.run_name(launch), f"by hand: bash {executors.MAIN}"
        )

    def submit(self, folder: Path, launches: Sequence[executors.RemoteRun]) -> executors.Handle:
        """Start the watcher in its own session."""
        launch = executors.only(launches, "local")
        with (folder / _LOG).open("wb") as log:
            watcher = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder), str(launch.ranks),
                 str(launch.time_limit_s)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        handle = executors.Handle(
            launcher="local", folder=str(folder), id=f"{watcher.pid}.{_start_ticks(watcher.pid)}",
            ranks=launch.ranks,
        )  # fmt: skip
        watcher.returncode = 0  # so that Popen does not wait for it; polls look it up in /proc
        return handle

    def poll(self, handle: executors.Handle) -> tuple[executors.Status, ...]:
        """Running while the watcher is alive, then the status that it wrote."""
        (folder,) = executors.folders(handle)
        if _pid(handle):
            return (
                executors.Status(
                    state="running", detail=_activity_of_slowest(folder, handle.ranks)
                ),
            )
        try:
            return (executors.Status.model_validate_json((folder / _STATUS_FILE).read_bytes()),)
        except FileNotFoundError:
            return (executors.final_status(folder, handle.ranks),)

    def cancel(self, handle: executors.Handle) -> None:
        """End the watcher, and with it the ranks."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + _WATCHER_TIMEOUT_S
            while (pid := _pid(handle)) and time.monotonic() < until:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                time.sleep(0.2)


def _start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 if it has ended (proc(5))."""
    with suppress(OSError):
        os.waitpid(pid, os.WNOHANG)  # otherwise our own child stays a zombie
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _pid(handle: executors.Handle) -> int:
    """The watcher's process id; 0 if it has ended, even if another process has its id now."""
    if not (match := re.fullmatch(r"(\d{1,9})\.(\d{1,19})", handle.id)):
        return 0
    pid, born = int(match[1]), int(match[2])
    return pid if born and _start_ticks(pid) == born else 0


def _activity_of_slowest(folder: Path, ranks: int) -> str:
    """The current activity of the rank that is furthest behind."""
    heartbeats = [h for rank in range(ranks) if (h := run_files.heartbeat(folder, rank))]
    return min(heartbeats, key=lambda h: h.count).words if len(heartbeats) == ranks else "starting"


def main(folder: str, ranks: str, seconds: str) -> int:
    """Run the ranks, and write the final status into the folder."""
    home = Path(folder)
    try:
        with process.stoppable():
            process.launch(home, int(ranks), process.Limits(wall_s=float(seconds)))
        ended = executors.final_status(home, int(ranks))
    except process.RunFailed as error:
        ended = executors.Status(state="failed", detail=f"{error}\n{error.log}".strip())
    except process.Stopped as error:
        ended = executors.Status(state="cancelled", detail=f"by {error}")
    run_files.write(home / _STATUS_FILE, ended)
    return 0 if ended.state == "succeeded" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
