"""The folder of what this user's planner keeps: calibrated profiles, results of validations."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

VARIABLE = "PLANNER_DATA_DIR"


def data_folder(part: str) -> Path:
    """The folder of one kind of thing; it may not exist yet.

    $PLANNER_DATA_DIR, or else parallel-planner in the XDG data folder.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named) / part
    usual = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(usual) / "parallel-planner" / part


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
