"""A cost model whose times are corrected by the runs of a site."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import CostModel, Estimates
from cost_models.plans import Plans
from cost_models.profiles import EfficiencyProfile
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.evidence.uncertainty.error_features import error_features, shares_of
from planner.evidence.uncertainty.first_sight import linear
from planner.evidence.uncertainty.site import Site


class SiteCostModel(CostModel):
    """Multiplies every time of a plan by the correction that the site's runs imply for it."""

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        training: TrainingSpec,
        profile: EfficiencyProfile | None,
        site: Site,
    ) -> None:
        super().__init__(model, cluster, training, profile)
        self.site = site

    def evaluate(self, plans: Plans, all_stages: bool = False) -> Estimates:
        """The estimates of the cost model, with the site's times."""
        estimates = super().evaluate(plans, all_stages)
        if not self.site.runs:
            return estimates
        factor = np.exp(self._ln(plans, estimates))
        parts = {name: value * factor for name, value in estimates.time_parts_s.items()}
        seconds = estimates.iteration_time_s * factor
        return replace(estimates, iteration_time_s=seconds, time_parts_s=parts, corrected=factor)

    def _ln(self, plans: Plans, estimates: Estimates) -> NDArray[np.float64]:
        """ln(time at the site / time estimated without it) of plans; shape (plans,)."""
        context = self.context
        seconds, parts = estimates.iteration_time_s, estimates.time_parts_s
        shares = shares_of(context.model, context.training, plans, parts)
        cluster, hidden_size = context.cluster, context.model.hidden_size
        rows = linear(shares, seconds, cluster.accelerators, hidden_size)
        ln = np.zeros(seconds.shape)
        codes, offloads = (
            np.broadcast_to(values, seconds.shape)
            for values in (plans.runtime, plans.offload_optimizer | plans.offload_activations)
        )
        for code, offload in {*zip(codes.tolist(), offloads.tolist(), strict=True)}:
            group = (codes == code) & (offloads == offload)
            first = int(np.argmax(group))
            of_first = {
                name: float(np.broadcast_to(values, seconds.shape)[first])
                for name, values in parts.items()
            }
            features = error_features(
                context.model, cluster, context.training, plans.row(first), of_first,
                self.site.source, context.profile,
            )  # fmt: skip
            errors, rest = self.site.belief.correction(features)
            ln = np.where(group, rows @ errors + rest, ln)
        return ln
