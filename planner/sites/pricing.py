"""What is estimated of a measured run, without any site."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from cost_models.estimate import CostModel
from cost_models.plans import Plans
from planner import profiles
from planner.posterior import FACTORS, Leaning, leaning
from planner.request import PlanRequest
from planner.sites.site import LearnedRun
from planner.version import __version__


@dataclass(frozen=True)
class Price:
    """Time of a request's plan, what that leans on, and its peak memory by what is measured."""

    seconds: float
    leaning: Leaning
    peak_bytes: dict[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """Of the time, by factor."""
        return dict(zip(FACTORS, self.leaning.shares, strict=True))


# What logs report of memory -> what the cost model calls it.
QUANTITIES = {"max allocated": "allocated", "max reserved": "reserved", "in use": "driver"}


def price(request: PlanRequest, source: str) -> Price:
    """Of a request's plan in the hands of a source.  Raises ValueError."""
    chosen = profiles.find(request.profile) if request.profile else None
    plan = request.named_plan
    model = CostModel(request.model, request.cluster, request.training, chosen)
    found = model.evaluate(Plans.from_rows([plan]))
    seconds = float(found.iteration_time_s[0])
    if not isfinite(seconds) or seconds <= 0:
        raise ValueError("the plan is beyond what the cost model can price")
    parts = {name: float(value[0]) for name, value in found.time_parts_s.items()}
    leans = leaning(request.model, request.cluster, request.training, plan, parts, source)
    peaks = {name: float(found.memory.peak_of(own)[0]) for name, own in QUANTITIES.items()}
    return Price(seconds, leans, peaks)


def current(run: LearnedRun) -> LearnedRun:
    """The run as this version of the planner prices it, or where it cannot, as one before did."""
    if run.version == __version__:
        return run
    try:
        found = price(PlanRequest.model_validate(run.request), run.groups[3])
    except ValueError:
        return run
    return run.model_copy(
        update={
            "version": __version__,
            "estimated_s": found.seconds,
            "estimated_peak_bytes": found.peak_bytes.get(run.memory_quantity or ""),
            "shares": found.shares,
            "groups": found.leaning.groups,
        }
    )
