"""The budget of one request: what its caller states, within the limits of the service."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from planner.evidence.uncertainty.asker import HERE, CallerIdentity
from planner.progress import Step

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# A search stops at this share of the CPU seconds; the rest is for explaining its best plan.
SEARCH_SHARE = 0.5
ADVICE = (
    "bound what is searched: `search.limits` of pp, vpp, schedule or micro_batch_size, or "
    "`search.framework`; or state a larger budget within the service's"
)


@dataclass(frozen=True)
class Budget:
    """Limits on one request: CPU seconds, memory, the plans that a search prices, and seconds.

    wall_s: from the moment that a process begins it.
    build_models: whether transformers may build a model for it.  asker: decides the sites it sees.
    """

    cpu_s: float
    memory_bytes: int
    candidates: int
    wall_s: float = inf
    build_models: bool = False
    asker: CallerIdentity = HERE


@dataclass(frozen=True)
class Spent:
    """The limit at which a request was stopped: its name, its value, and what was used.

    A search that stops early to explain its answer has used less than it was allowed.
    """

    bound: str
    allowed: float
    used: float
    advice: str = ADVICE

    def document(self) -> dict[str, Any]:
        """The form in an answer."""
        return asdict(self)


class OverBudget(Exception):
    """The request was stopped at a limit; best: the best plan that its search had found."""

    def __init__(self, spent: Spent, best: dict[str, Any] | None = None) -> None:
        super().__init__(f"{spent.bound} of {spent.allowed:,g} is used up: {spent.advice}")
        self.spent, self.best = spent, best

    def __reduce__(self) -> tuple[Any, ...]:
        """How to make the error again in another process."""
        return type(self), (self.spent, self.best)


class TooLate(Exception):
    """The request was not answered in time; question: its name."""

    def __init__(self, question: str, wall_s: float) -> None:
        super().__init__(f"{question} was not answered within {wall_s:g} s, and was ended")


def process_use(pid: int) -> tuple[float, int]:
    """CPU seconds that a process and those it started have used, and their memory in bytes.

    Memory is what each has for itself.
    """
    used_s, memory_bytes = cpu_s(pid), own_memory_bytes(pid)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it has just ended
            child_s, child_bytes = process_use(int(child))
            used_s, memory_bytes = used_s + child_s, memory_bytes + child_bytes
    return used_s, memory_bytes


def own_memory_bytes(pid: int) -> int:
    """Memory that a process has for itself, without those it started."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def own_cpu_s(pid: int) -> float:
    """CPU seconds that a process alone has used, by its clock (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, with those of its children that have ended.

    Theirs are as proc_pid_stat(5) has them.
    """
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return own_cpu_s(pid) + sum(map(int, after_name[13:15])) * _TICK_S


@dataclass(frozen=True)
class Bounds:
    """The budget of work in a process that has used `before_s` CPU seconds before."""

    budget: Budget
    before_s: float

    def spent(self, cpu_s: float, memory_bytes: int) -> Spent | None:
        """The limit that this use exceeds; None if it exceeds none."""
        if (used_s := cpu_s - self.before_s) > self.budget.cpu_s:
            return Spent("cpu_s", self.budget.cpu_s, used_s)
        if memory_bytes > self.budget.memory_bytes:
            return Spent("memory_mib", self.budget.memory_bytes >> 20, memory_bytes / 2**20)
        return None


class SearchMonitor:
    """Tells a search to stop early, by what its process has used since this monitor was made."""

    def __init__(self, budget: Budget, show: Callable[[Step], None]) -> None:
        self.budget, self._show = budget, show
        self._began_s, self._plans = cpu_s(os.getpid()), 0
        self.spent: Spent | None = None

    def show(self, step: Step) -> None:
        """Pass a progress step on, and count its plans."""
        self._plans = step.done
        self._show(step)

    def enough(self) -> bool:
        """Whether a limit is almost reached; `spent` then says which."""
        budget = self.budget
        if (used_s := cpu_s(os.getpid()) - self._began_s) > SEARCH_SHARE * budget.cpu_s:
            self.spent = Spent("cpu_s", budget.cpu_s, used_s)
        elif self._plans >= budget.candidates:
            self.spent = Spent("candidates", budget.candidates, self._plans)
        return self.spent is not None
