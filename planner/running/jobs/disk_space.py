"""Steps that find no space for their files: they begin again once there is some."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from planner.documents.problems import failure_document

# A disk that is full or can only be read: it may be written again later.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_FAILURES = ("/problems/cannot-write", "/problems/run/no-space")
_PROBE_BYTES = 1 << 20


def cannot_write(error: OSError) -> dict[str, Any]:
    """The problem document of a step whose files could not be written."""
    detail = f"could not write: {error.strerror}"
    return failure_document("cannot-write", "The step's files could not be written", detail)


def tried(work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """What a step says of itself, and whether it failed for want of space."""
    try:
        outcome = work()
    except OSError as error:
        return {"failed": cannot_write(error)}, error.errno in FULL
    return outcome, outcome.get("failed", {}).get("type") in _FAILURES


def has_space(folder: Path) -> bool:
    """Whether files can be written into a folder."""
    probe = folder / "space"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(_PROBE_BYTES))
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink()
    return True
