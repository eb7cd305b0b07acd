"""A step of a job, in a process of its own that lives no longer than its server's lease.

Standard input: one line with the task, then lines that each prolong its life, until a moment of
this machine's monotonic clock.  Past it, or where the input ends, all is stopped: so a server that
hangs, or was cut off from its database, has nothing running when another one takes its jobs.
Standard output: lines of JSON, `progress` and in the end `result` or `failed`.
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

from planner.jobs.settings import JobSettings

LEASE_OVER = 75  # exit code: nothing is wrong with the step
GRACE_S = 3.0  # from the wish to stop to the end by force
_TICK_S = 0.1


class Lease:
    """The time until which this process may live."""

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
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(
            LEASE_OVER
        )  # and the kernel ends what this process started: see planner.validate.agent


def task_line(
    step: str,
    request: dict[str, Any],
    arguments: dict[str, Any],
    folder: Path,
    settings: JobSettings,
    until: float,
) -> str:
    """The first line of a runner's input."""
    task = {
        "step": step, "request": request, "arguments": arguments, "folder": str(folder),
        "settings": asdict(settings), "until": until,
    }  # fmt: skip
    return json.dumps(task) + "\n"


def main() -> int:
    """Do the task of the first line of the input."""
    # What a library prints goes where it cannot be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.readline())
    Lease(sys.stdin, asked["until"])
    from planner.validate.process import Stopped, stoppable

    try:
        with stoppable():
            outcome = _outcome(asked, answers)
    except Stopped:
        return LEASE_OVER
    _tell(answers, outcome)
    return 0


def _outcome(asked: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    from planner.jobs.work import STEPS, Task
    from planner.problems import RequestError, from_reasons, problem_document
    from planner.solve import IllegalPlan
    from planner.validate.process import RunFailed
    from planner.validate.tracing import TraceFailed

    def say(text: str, done: int, total: int) -> None:
        _tell(answers, {"progress": {"text": text, "done": done, "total": total}})

    settings = JobSettings(**asked["settings"])
    folder = Path(asked["folder"])
    task = Task(asked["request"], asked["arguments"], folder, settings, say)
    try:
        return {"result": STEPS[asked["step"]](task)}
    except RunFailed as error:
        return {"failed": error.document()}
    except TraceFailed as error:
        title = "The trace failed"
        failed = {"type": "/problems/trace", "title": title, "status": 500, "detail": str(error)}
        return {"failed": failed}
    except RequestError as error:
        return {"failed": problem_document(error.problems)}
    except IllegalPlan as error:
        return {"failed": problem_document(from_reasons(error.reasons))}


def _tell(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
