"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends (prctl(2)); Linux only.

    parent: its process id, where it may have ended already; None: the present one.
    """
    if sys.platform == "linux":
        parent = parent or os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call
            os.kill(os.getpid(), signal.SIGKILL)
