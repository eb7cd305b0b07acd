"""Dominated plans: another plan is at least as good, so the search leaves them out unpriced.

Axes are collapsed only by these dominance rules, each tested against brute force:
  schedule: gpipe costs the same time as 1f1b and never holds less, so it is left out beside it;
  zero_stage: where there is nothing to shard over (dp x cp = 1, no spare expert ranks) the
    stages are one plan, priced as stage 1, or the smallest allowed;
  switches: what is compiled, fused or overlapped never holds more and is never slower (by 0.1 %
    where a fused loss leaves less to hide communication behind; by 2 % in zero-bubble schedules
    of one or two micro-batches, which take far more than the best plan), so each plan is priced
    with the best switches that the rules accept (planner/search/best_switches.py);
  fields without effect (cp_kind at cp 1, rank_order at pp 1, ...): one of their values stands for
    all;
  recompute_num_layers: time never falls and memory never grows with it, so of full recompute
    only the fewest layers that fit and all layers are priced, and the fewest only where the plan
    does not fit without recompute.  Not so with offloaded activations (recompute shortens the
    transfer) or the uniform method (longer checkpoints need more): then every count is priced.
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import Plans, encoded
from planner.constraints import BoolArray
from planner.search.axes import Axes
from planner.search.option_axes import OptionAxes

# Fields that a search may open and that have an effect only with certain degrees.
COLLAPSED = (
    "cp_kind", "dynamic_cp", "rank_order", "moe_dispatcher", "overlap_tp", "overlap_ep", "dp_shard",
)  # fmt: skip


class Dominance:
    """The rules on ZeRO stages and on fields without effect, for one request's axes."""

    def __init__(self, axes: Axes, options: OptionAxes) -> None:
        self._axes, self._options = axes, options

    def dominated(self, plans: Plans) -> BoolArray:
        """Plans that are dominated whatever their layout."""
        if self._axes.full:
            return np.zeros(len(plans), dtype=np.bool_)
        return self._redundant_zero(plans) | self._repeats(plans)

    def at_rest(self, plans: Plans) -> Plans:
        """Plans whose settled switches have their first value where they have no effect."""
        columns = {
            field: np.where(
                condition, encoded(field, self._axes.values[field][0]), getattr(plans, field)
            )
            for field, condition in self._without_effect(plans).items()
            if field in self._options.switches.columns
        }
        return plans.with_columns(**columns) if columns else plans

    def _redundant_zero(self, plans: Plans) -> BoolArray:
        """ZeRO stages beyond the first allowed one >= 1 where nothing can be sharded."""
        stages = [int(z) for z in self._axes.values["zero_stage"]]
        kept_stage = 1 if 1 in stages else min(stages)
        unsharded = plans.dp * plans.cp == 1
        if self._axes.request.model.moe is not None:
            unsharded &= plans.tp == plans.etp * plans.ep
        return np.asarray(unsharded & (plans.zero_stage != kept_stage))

    def _repeats(self, plans: Plans) -> BoolArray:
        """Plans that differ from another one only in a field without effect."""
        idle = np.zeros(len(plans), dtype=np.bool_)
        for field, condition in self._without_effect(plans).items():
            if field not in self._options.switches.columns:
                first = encoded(field, self._axes.values[field][0])
                idle |= condition & (getattr(plans, field) != first)
        return idle

    def _without_effect(self, plans: Plans) -> dict[str, BoolArray]:
        """The plans in which a field has no effect, for each field with several values."""
        without = {field: ~plans.reads(field) for field in COLLAPSED}
        without["dynamic_cp"] |= not self._axes.request.training.packs
        # 0 means a shard group of all ranks.
        without["dp_shard"] |= plans.dp_shard >= plans.dp * plans.cp
        return {field: at for field, at in without.items() if len(self._axes.values[field]) > 1}
