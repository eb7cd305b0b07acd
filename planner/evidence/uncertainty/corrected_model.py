"""A cost model whose times are corrected by the runs of a site."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import CostModel, Estimates
from cost_models.plans import VOCABULARIES, Plans
from cost_models.profiles import EfficiencyProfile, profile_for
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.evidence.uncertainty.error_features import groups_of, shares_of
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
        found = super().evaluate(plans, all_stages)
        if not self.site.runs:
            return found
        factor = np.exp(self._ln(plans, found))
        parts = {name: value * factor for name, value in found.time_parts_s.items()}
        seconds = found.iteration_time_s * factor
        return replace(found, iteration_time_s=seconds, time_parts_s=parts, corrected=factor)

    def _ln(self, plans: Plans, estimates: Estimates) -> NDArray[np.float64]:
        """ln(time at the site / time estimated without it) of plans; shape (plans,)."""
        accelerator = self.context.nodes.accelerator
        family = profile_for(accelerator).family
        shares = shares_of(self.context.model, self.context.training, plans, estimates.time_parts_s)
        runtimes = np.broadcast_to(plans.runtime, estimates.iteration_time_s.shape)
        ln = np.zeros(estimates.iteration_time_s.shape)
        for code in np.unique(runtimes).tolist():
            runtime = VOCABULARIES["runtime"][code]
            groups = groups_of(
                family,
                accelerator.id,
                runtime,
                self.site.source,
                self.context.model.hidden_size,
                self.context.model.num_layers,
            )
            mean, _ = self.site.correction.off(groups)
            ln = np.where(runtimes == code, shares @ mean, ln)
        return ln
