"""Estimates at a site: with the correction of its runs, and without it for a measured run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

from cost_models.estimate import CostModel
from cost_models.plans import Plans
from cost_models.profiles import EfficiencyProfile
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import profiles
from planner.evidence.uncertainty.corrected_model import SiteCostModel
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures, error_features
from planner.evidence.uncertainty.site import LearnedRun, Site
from planner.version import __version__


@dataclass(frozen=True)
class Price:
    """Time of a request's plan, its error features, and its peak memory by what is measured."""

    seconds: float
    features: ErrorFeatures
    peak_bytes: dict[str, float]
    calibrated_at: str | None

    def estimated(self, quantity: str | None) -> dict[str, Any]:
        """The fields of a learned run that follow from it; quantity: of its memory report."""
        return {
            "version": __version__,
            "calibrated_at": self.calibrated_at,
            "estimated_s": self.seconds,
            "estimated_peak_bytes": self.peak_bytes.get(quantity or ""),
            "shares": dict(zip(FACTORS, self.features.shares, strict=True)),
            "groups": self.features.groups[:4],
            "experts": self.features.experts,
        }


# What logs report of memory -> what the cost model calls it.
QUANTITIES = {"max allocated": "allocated", "max reserved": "reserved", "in use": "driver"}


def cost_model(
    request: PlanRequest, site: Site | None, profile: EfficiencyProfile | None = None
) -> CostModel:
    """The cost model of a request, at a site if one is given."""
    if profile is None and request.profile:
        profile = profiles.find(request.profile)
    elif profile is None and site is not None:
        profile = site.profile_of(request.cluster.groups[0].accelerator.id)
    inputs = request.model, request.cluster, request.training, profile
    return _cached_model(*inputs) if site is None else SiteCostModel(*inputs, site=site)


@lru_cache(maxsize=256)
def _cached_model(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    profile: EfficiencyProfile | None,
) -> CostModel:
    """A cached cost model, which remembers what it computed for single plans."""
    return CostModel(model, cluster, training, profile)


def price(request: PlanRequest, site: Site) -> Price:
    """The estimate of a request's plan at a site, without its runs.  Raises ValueError."""
    plan = request.named_plan
    estimates = cost_model(request, site.unlearned).evaluate(Plans.from_rows([plan]))
    seconds = float(estimates.iteration_time_s[0])
    if not isfinite(seconds) or seconds <= 0:
        raise ValueError("the plan is beyond what the cost model can price")
    parts = {name: float(value[0]) for name, value in estimates.time_parts_s.items()}
    features = error_features(
        request.model, request.cluster, request.training, plan, parts, site.source,
        site.profile_of(request.cluster.groups[0].accelerator.id),
    )  # fmt: skip
    peaks = {name: float(estimates.memory.peak_of(q)[0]) for name, q in QUANTITIES.items()}
    return Price(seconds, features, peaks, site.calibrated_at)


def run_of_plan(request: PlanRequest, site: Site, measured: dict[str, Any]) -> LearnedRun:
    """The run of a request's plan; measured: all that is not estimated.  Raises ValueError."""
    estimated = price(request, site).estimated(measured.get("memory_quantity"))
    return LearnedRun(request=request.document(), **measured, **estimated)


def current(run: LearnedRun, site: Site) -> LearnedRun:
    """The run with this version's price at the site; if that fails, the price it was kept with."""
    if run.version == __version__ and run.calibrated_at == site.calibrated_at:
        return run
    try:
        priced = price(PlanRequest.model_validate(run.request), site)
    except ValueError:
        return run
    return run.model_copy(update=priced.estimated(run.memory_quantity))
