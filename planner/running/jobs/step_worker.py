"""The program that runs one step of a job, and ends with its server's lease at the latest.

Standard input: one line with the task, then lines that each extend the lease to a time of this
machine's monotonic clock.  When the lease expires or the input ends, everything is stopped, so a
server that hangs or has lost its database runs nothing when another one takes over its jobs.
Standard output: lines of JSON, `progress`, `part` and at the end `result` or `failed`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from planner.evidence.uncertainty.asker import HERE, CallerIdentity, as_caller
from planner.running.jobs.settings import JobSettings

LEASE_EXPIRED = 75  # exit code: the step itself has not failed
STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})  # they end a step, not its job
GRACE_S = 3.0  # from SIGTERM to SIGKILL
_TICK_S = 0.1


class Lease:
    """Ends this process when the lease expires; lines of standard input extend the lease."""

    def __init__(self, beats: IO[str], until: float) -> None:
        self.beats, self.until = beats, until
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _listen(self) -> None:
        for line in self.beats:
            self.until = max(self.until, float(line))
        self.until = 0.0

    def _watch(self) -> None:
        while time.monotonic() < self.until:
            time.sleep(_TICK_S)
            if time.monotonic() >= self.until:  # on busy cores an extension may not be read yet
                time.sleep(_TICK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        # The kernel then ends the children of this process: see torchrun_agent.py.
        os._exit(LEASE_EXPIRED)


def task_line(
    step: str,
    request: dict[str, Any],
    arguments: dict[str, Any],
    folder: Path,
    settings: JobSettings,
    until: float,
    asker: CallerIdentity = HERE,
) -> str:
    """The first line of a step worker's input."""
    hidden = asker.hidden
    task = {
        "step": step, "request": request, "arguments": arguments, "folder": str(folder),
        "settings": asdict(settings), "until": until,
        "asker": {"name": asker.name, "hidden": None if hidden is None else sorted(hidden)},
    }  # fmt: skip
    return json.dumps(task) + "\n"


def main() -> int:
    """Run the task in the first line of standard input."""
    for number in STOPS:
        signal.signal(number, lambda *_: os._exit(LEASE_EXPIRED))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    # Libraries print to standard output, so redirect it to standard error; answers use a duplicate.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.stdin.readline())
    Lease(sys.stdin, task["until"])
    from planner.huggingface import building
    from planner.running.validate.processes.priority import lower_priority
    from planner.running.validate.processes.process import Stopped, stoppable

    lower_priority(task["settings"]["run_nice"])
    try:
        name, hidden = task["asker"]["name"], task["asker"]["hidden"]
        asker = CallerIdentity(name, None if hidden is None else frozenset(hidden))
        with stoppable(), building(allowed=False), as_caller(asker):
            outcome = _outcome(task, answers)
    except Stopped:
        return LEASE_EXPIRED
    _send(answers, outcome)
    return 0


def _outcome(spec: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    from planner.answers.plans.plan_answers import IllegalPlan
    from planner.documents.problems import (
        RequestError,
        failure_document,
        problem_document,
        problems_of,
    )
    from planner.running.jobs.disk_space import FULL, cannot_write
    from planner.running.jobs.long_steps import STEPS, Task
    from planner.running.validate.dryrun.trace_process import TraceFailed
    from planner.running.validate.processes.process import RunFailed, Stopped

    def report_progress(text: str, done: int, total: int) -> None:
        _send(answers, {"progress": {"text": text, "done": done, "total": total}})

    def keep_part(part: dict[str, Any]) -> None:
        _send(answers, {"part": part})

    settings = JobSettings(**spec["settings"])
    folder = Path(spec["folder"])
    task = Task(spec["request"], spec["arguments"], folder, settings, report_progress, keep_part)
    try:
        return {"result": STEPS[spec["step"]](task)}
    except RunFailed as error:
        if error.code == "killed" and signal.SIGTERM.name in str(error):
            raise Stopped(signal.SIGTERM) from None  # SIGTERM went to every process of the service
        return {"failed": error.document()}
    except TraceFailed as error:
        return {"failed": failure_document("trace", "The trace failed", str(error))}
    except (RequestError, IllegalPlan) as error:
        return {"failed": problem_document(problems_of(error) or ())}
    except OSError as error:
        if error.errno not in FULL:
            raise
        return {"failed": cannot_write(error)}


def _send(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
