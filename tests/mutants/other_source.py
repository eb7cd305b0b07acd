"""Tests in a process that finds other source in the place of a file, which stays as it is."""

from __future__ import annotations

import contextlib
import importlib.machinery
import io
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_OURS = ("api", "cost_models", "planner", "tests")
_MOST_BYTES = 4 * 2**30  # of a process that no longer ends


def preload(arguments: Sequence[str]) -> None:
    """Import what pytest does with these arguments, and forget of it what is this project's own."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        if pytest.main([*arguments, "--collect-only"]):
            raise SystemExit(said.getvalue())
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.split(".")[0] in _OURS or Path(file).is_relative_to(ROOT / "tests"):
            del sys.modules[name]


def exit_code(path: str, source: str, runs: Sequence[Sequence[str]], limit_s: float) -> int:
    """The first code other than 0 with which pytest ends, run after run, each with its arguments.

    Negative: of the signal that ended the process.  "Nothing was collected" counts as 0.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.setitimer(signal.ITIMER_REAL, limit_s)  # nobody handles it: the process ends
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    loader = importlib.machinery.SourceFileLoader
    get_code, read_text, place = loader.get_code, Path.read_text, str(ROOT / path)

    def other(self: importlib.machinery.SourceFileLoader, name: str) -> object:
        return compile(source, place, "exec") if self.path == place else get_code(self, name)

    def other_text(self: Path, *words: Any, **named: Any) -> str:
        """Of tables and templates, which no loader sees."""
        return source if str(self) == place else read_text(self, *words, **named)

    loader.get_code = other  # type: ignore[method-assign,assignment]
    Path.read_text = other_text  # type: ignore[method-assign]
    try:
        # One after the other, so that a test collected late costs nothing if an early one fails.
        codes = (int(pytest.main([*arguments])) for arguments in runs)
        passing = (0, int(pytest.ExitCode.NO_TESTS_COLLECTED))
        os._exit(next((code for code in codes if code not in passing), 0))
    except BaseException:
        os._exit(int(pytest.ExitCode.INTERNAL_ERROR))
