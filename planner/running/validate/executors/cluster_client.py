"""Calls of a cluster's client programs: without a shell, with timeouts and clear errors."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from planner.documents.problems import RequestError, problem, shown

TIMEOUT_S = 60.0
_STDERR_LINES = 5  # last lines of a program's standard error that a message repeats


class ClientError(RequestError):
    """The client is missing, failed or timed out; stderr: what it printed there."""

    def __init__(self, code: str, detail: str, text: str = "") -> None:
        super().__init__([problem("/launcher", code, detail)])
        self.stderr = text


def installed(program: str) -> bool:
    """Whether a program is on PATH."""
    return shutil.which(program) is not None


def call(
    command: Sequence[str], folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> str:
    """The standard output of a program; variables: added to its environment.

    It has its own process group, which is killed on a timeout or when this process is interrupted.
    Raises ClientError: client_missing, client_refused, client_silent.
    """
    program = command[0]
    if not installed(program):
        raise ClientError("client_missing", f"{program} is not on this machine's PATH")
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **(variables or {})}, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            answer, errors = process.communicate(timeout=TIMEOUT_S)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                detail = f"{program} {command[1]} did not answer within {TIMEOUT_S:g} s"
                raise ClientError("client_silent", detail) from None
            raise
    if process.returncode:
        lines = [str(shown(line)) for line in errors.splitlines() if line.strip()][-_STDERR_LINES:]
        detail = f"{program} ended with code {process.returncode}: {' / '.join(lines)}"
        raise ClientError("client_refused", detail, errors)
    return answer
