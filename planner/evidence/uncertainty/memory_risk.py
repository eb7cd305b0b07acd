"""The chance that a plan runs out of memory, from the errors of measured memory peaks.

ln(measured / predicted peak) is distributed as among the published runs: a mean of the runtime, a
deviation of the source, and noise whose size differs by source (heavy tails).  The catalog has its
predictive distribution for an unseen source, by runtime
(`python -m tools.accuracy.fit_posterior --write`, tools/accuracy/fit_memory_posterior.py).  A
site's own peaks move and narrow it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cost_models.plans import ParallelPlan, Plans, code
from cost_models.runtimes import RUNTIMES

Array = NDArray[np.float64]

_USUAL_RUNS = 2.0  # how many of a site's peaks the usual noise counts for

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
    of_sources, of_noise: deviations of ln, of what a source's peaks share and of each.  learned:
    what a site's own peaks have added, as a sentence.
    """

    chances: Array
    above_ln: dict[str, Array]
    rows: dict[str, int]
    sources: int
    of_sources: float
    of_noise: float
    learned: str = ""

    def given(self, site: str, measured: Sequence[tuple[str, float]]) -> Peaks:
        """This distribution at a site that measured peaks.

        measured: the runtime and ln(measured / predicted peak) of each.  What they share is
        estimated by their median, which one odd run does not move, and believed as far as their
        number outweighs their scatter (normal errors; the usual noise counts as _USUAL_RUNS runs).
        """
        if not measured:
            return self
        errors = np.array([ln - self._middle(runtime) for runtime, ln in measured])
        common, n = float(np.median(errors)), len(measured)
        scatter = float(np.square(errors - common).sum())
        noise = (_USUAL_RUNS * self.of_noise**2 + scatter) / (_USUAL_RUNS + n - 1)
        shared = self.of_sources**2
        believed = shared / (shared + noise / n)
        wider = ((shared * (1.0 - believed) + noise) / (shared + self.of_noise**2)) ** 0.5
        above = {
            name: (middle := self._middle(name)) + believed * common + wider * (ln - middle)
            for name, ln in self.above_ln.items()
        }
        number = "1 peak" if n == 1 else f"{n:,} peaks"
        learned = (
            f"{number} of site {site} put them {100.0 * np.expm1(believed * common):+.0f} % from "
            "what is predicted"
        )
        return replace(self, above_ln=above, learned=learned)

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
            + f"; {self.learned}"
            * bool(self.learned)
        )

    def _middle(self, runtime: str) -> float:
        """ln(measured / predicted) that is exceeded as often as not."""
        return float(np.interp(0.5, self.chances, self._above(runtime)))

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


def room(capacity_bytes: float, risk: float, known: Peaks | None = None) -> Room:
    """The limits of predicted peaks, so that no plan runs out with a larger chance than `risk`.

    known: the errors of peaks at a site; else those published.  The limits never exceed the
    capacity, which is the limit at a risk of 1.
    """
    known = known or peaks()
    limit = known.most_bytes if risk < 1.0 else lambda _, capacity, __: capacity
    limits = [limit(name, capacity_bytes, risk) for name in RUNTIMES]
    return Room(np.minimum(limits, float(capacity_bytes)))


@cache
def peaks() -> Peaks:
    """The errors of peak memory in the published runs."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    above = {name: np.array(values) for name, values in document["above_ln"].items()}
    deviations = document["of_sources"], document["of_noise"]
    chances = np.array(document["chances"])
    return Peaks(chances, above, document["rows"], document["sources"], *deviations)
