"""A run that gives way leaves the cores to others, in whatever session its processes are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SPIN = """
import time
from planner.running.validate.processes import priority
priority.lower_session_priority()
end = time.monotonic() + 2
while time.monotonic() < end:
    pass
print(time.process_time())
"""
RUN = f"""
import subprocess, sys
from planner.running.validate.processes.priority import lower_priority
lower_priority(19)
ranks = [
    subprocess.Popen([sys.executable, "-c", {SPIN!r}], start_new_session=True)
    for _ in range(8)
]
for rank in ranks:
    rank.wait()
"""


CORES = """
import os, subprocess, sys
from planner.running.validate.processes.priority import lower_priority
lower_priority(int(sys.argv[1]))
count = "import os; print(len(os.sched_getaffinity(0)))"
subprocess.run([sys.executable, "-c", count], start_new_session=True)
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux")
@pytest.mark.parametrize("nice", [0, 19])
def test_a_core_is_left_free(nice: int) -> None:
    def cores_left(*own: str) -> int:
        command = [*own, sys.executable, "-c", CORES, str(nice)]
        # In a session of its own: it lowers its whole session, else these tests and their services.
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, start_new_session=True
        )
        return int(done.stdout)

    usable = os.sched_getaffinity(0)
    assert cores_left() == max(1, len(usable) - (nice > 0))
    assert cores_left("taskset", "--cpu-list", str(min(usable))) == 1


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="Linux with autogroups")
@pytest.mark.exhaustive
def test_eight_ranks_leave_a_core_to_others() -> None:
    one = {0}  # of the cores, so that all of them want the same
    program = [sys.executable, "-c"]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, one & before or before)
    try:
        run = subprocess.Popen(
            [*program, RUN], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        other = subprocess.Popen(
            [*program, SPIN], stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        theirs, ours = (float(part.communicate()[0].split()[0]) for part in (run, other))
    finally:
        os.sched_setaffinity(0, before)
    assert ours > 4 * theirs
