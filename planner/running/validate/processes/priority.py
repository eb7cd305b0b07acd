"""Lower scheduling priority and fewer cores for runs on the machine of a service (Linux).

With sched_autogroup each session is a scheduling group, and all groups have equal weight: the
scheduling class of a process counts only within its session.  So the class is inherited by all
processes of a run, and each session of the run also lowers the weight of its group.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")


def lower_priority(nice: int) -> None:
    """Lower the priority of this process and its children to `nice`; 0: unchanged.

    Niceness 19 gives a session weight 15 instead of 1,024.  If there are several cores, one is left
    free, so that short calls of the service need not wait for a run to be preempted.
    """
    if nice and hasattr(os, "SCHED_IDLE"):
        cores = os.sched_getaffinity(0)
        if len(cores) > 1:
            os.sched_setaffinity(0, cores - {min(cores)})
        os.nice(nice)
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        lower_session_priority()


def lower_session_priority() -> None:
    """Lower the priority of this process's session if it belongs to a run that gives way."""
    if hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE:
        with suppress(OSError):  # a kernel without sched_autogroup
            _AUTOGROUP.write_text(str(os.nice(0)))
