"""Entry of a rank's process: ends with its agent, has low priority, dumps stacks on request."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress

from planner.parent_process import die_with_parent
from planner.running.validate.processes.priority import lower_session_priority


def run_rank(work: Callable[[int], None]) -> int:
    """Do the work of this process's rank; the exit code is an OSError's errno (a full disk).

    The process ends with its agent, has the priority of its run, and prints its stack on SIGUSR1.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
        lower_session_priority()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    try:
        work(int(os.environ["RANK"]))
    except OSError as error:
        with suppress(OSError):  # standard error is a file on the same disk
            traceback.print_exc()
        os._exit(error.errno or 1)  # a normal exit would fail to flush, and change the exit code
    return 0
