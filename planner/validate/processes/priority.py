"""Lower scheduling priority and fewer cores for runs beside a service on the same machine (Linux).

With sched_autogroup each session is a scheduling group of its own, with the same weight as any
other: the class of a process counts within its session only.  So the class goes to all that a run
starts, and each of its sessions lowers itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")


def give_way(nice: int) -> None:
    """Lower the priority of this process and of all that it starts to `nice`; 0: unchanged.

    19 is a weight of 15 for a session, where 1,024 is usual.  One of several cores is left free
    altogether, so that a short call there waits for no run to be preempted.
    """
    if nice and hasattr(os, "SCHED_IDLE"):
        cores = os.sched_getaffinity(0)
        if len(cores) > 1:
            os.sched_setaffinity(0, cores - {min(cores)})
        os.nice(nice)
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        go_on_giving_way()


def go_on_giving_way() -> None:
    """Lower the priority of another session of the same run."""
    if hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE:
        with suppress(OSError):  # a kernel without
            _AUTOGROUP.write_text(str(os.nice(0)))
