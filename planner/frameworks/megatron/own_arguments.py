"""Defaults of a checkout's own arguments.py, where they are not those of today's Megatron-LM."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.frameworks.arguments import Arguments
from planner.frameworks.read_results import Setting

FILE = "arguments.py"
_IMPL = "--transformer-impl"
_MARK = "--num-attention-heads"
_DEFAULT = re.compile(rf"""add_argument\(\s*["']{_IMPL}["'][^)]*?default\s*=\s*["'](\w+)["']""")


def add_defaults(args: Arguments, files: Mapping[str, str]) -> None:
    """Say the options that its parser sets where a launch does not.

    Before Transformer Engine, and after it as a default for a while, layers were Megatron's own.
    """
    text = next((files[name] for name in files if name.rsplit("/", 1)[-1] == FILE), "")
    if _MARK not in text or _IMPL in args.given:
        return
    found = _DEFAULT.search(text)
    if found is None or found[1] == "local":
        line = 0 if found is None else text.count("\n", 0, found.start()) + 1
        args.given[_IMPL] = Setting(name=_IMPL, value="local", file=FILE, line=line)
