"""The chance that a plan runs out of memory, from the errors of measured memory peaks.

ln(measured / predicted peak) is distributed as among the published runs: a mean of the runtime, a
deviation of the source, and noise whose size differs by source (heavy tails).  The catalog has its
predictive distribution for an unseen source, by runtime
(`python -m tools.accuracy.fit_posterior --write`, tools/accuracy/fit_memory_posterior.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cost_models.plans import ParallelPlan, Plans, code
from cost_models.runtimes import RUNTIMES
from planner.documents.request import PlanRequest

Array = NDArray[np.float64]

FILE = Path(__file__).parents[3] / "cost_models" / "catalog" / "memory_posterior.json"
ANY = "any"  # a runtime of which no peak was published


def measured_as(runtime: str) -> str:
    """The runtime whose peaks count for this one's."""
    known = RUNTIMES.get(runtime)
    return (known.peaks_of if known else "") or runtime


@dataclass(frozen=True)
class Peaks:
    """The distribution of measured over predicted peaks, and the evidence for it.

    chances: ascending.  above_ln: by runtime, the ln(measured / predicted) that is exceeded with
    each of these chances, descending.  rows: by runtime, the number of published peaks.
    """

    chances: Array
    above_ln: dict[str, Array]
    rows: dict[str, int]
    sources: int

    def chance(self, runtime: str, peak_bytes: float, capacity_bytes: float) -> float:
        """The chance that a plan with this predicted peak needs more memory than there is.

        The first and the last of `chances` bound the answer: no run is evidence beyond them.
        """
        room = np.log(capacity_bytes / peak_bytes)
        return float(np.interp(-room, -self._above(runtime), self.chances))

    def most_bytes(self, runtime: str, capacity_bytes: float, chance: float) -> float:
        """The predicted peak at which a plan runs out of memory with this chance."""
        room = np.interp(chance, self.chances, self._above(runtime))
        return capacity_bytes * float(np.exp(-room))

    def basis(self, runtime: str) -> str:
        """The evidence for a chance, as a sentence."""
        measured = measured_as(runtime)
        beyond = 100.0 * np.expm1(np.interp(0.05, self.chances, self._above(runtime)))
        return (
            f"from {sum(self.rows.values())} published peaks of {self.sources} sources, "
            f"{self.rows.get(measured) or 'none'} of them by {measured}: 1 in 20 is expected more "
            f"than {beyond:.0f} % above the predicted one"
        )

    def _above(self, runtime: str) -> Array:
        return self.above_ln.get(measured_as(runtime), self.above_ln[ANY])


@dataclass(frozen=True)
class Room:
    """The largest predicted peak that a search keeps, in the order of the runtimes' codes."""

    bytes_by_runtime: Array

    def of(self, plans: Plans) -> Array:
        """The limit of each plan; a single number if all have the same runtime."""
        return np.asarray(self.bytes_by_runtime[plans.runtime])

    def of_plan(self, plan: ParallelPlan) -> float:
        """The limit of one plan."""
        return float(self.bytes_by_runtime[code("runtime", plan.runtime)])


def room(capacity_bytes: float, risk: float) -> Room:
    """The limits of predicted peaks, so that no plan runs out with a larger chance than `risk`.

    They never exceed the capacity, which is the limit at a risk of 1.
    """
    limits = [peaks().most_bytes(name, capacity_bytes, risk) for name in RUNTIMES]
    return Room(np.minimum(limits, float(capacity_bytes)))


def room_of(request: PlanRequest) -> Room:
    """The limits for the plans of a request, on the accelerators of its first group."""
    return room(request.cluster.groups[0].accelerator.memory_bytes, request.search.memory_risk)


@cache
def peaks() -> Peaks:
    """The errors of peak memory in the published runs."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    above = {name: np.array(values) for name, values in document["above_ln"].items()}
    return Peaks(np.array(document["chances"]), above, document["rows"], document["sources"])
