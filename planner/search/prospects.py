"""Whether layers dealt out may still make some degrees as fast as the best plan so far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cost_models.plans import FloatArray, IntArray, Plans
from planner.search.constraints import BoolArray

# How much more dealt layers may save than the busiest rank's work: what recompute they spare.
SPARED = 0.85


class Prospects:
    """The least seconds that plans with the usual splits took, by tp, cp and pp.

    share: by pipeline size, what the busiest rank has to do in dealt layers, of that in the best
    usual split.
    """

    def __init__(self, groups: Plans, share: Callable[[int], float]) -> None:
        self._groups = _degrees(groups)
        shares = {pp: share(pp) for pp in np.unique(groups.pp).tolist()}
        self._share = np.array([shares[pp] for pp in groups.pp.tolist()])
        self._known = np.unique(self._groups)
        self._least_s = np.full(len(self._known), np.inf)

    def seen(self, plans: Plans, seconds: FloatArray) -> None:
        """Take note of what plans that fit took."""
        place = np.searchsorted(self._known, np.broadcast_to(_degrees(plans), seconds.shape))
        np.minimum.at(self._least_s, place, seconds)

    def hopeful(self) -> BoolArray:
        """By group: its time, less about what the busiest rank saves, reaches the best so far.

        Of degrees with which no plan has fitted nothing is known.
        """
        seconds = self._least_s[np.searchsorted(self._known, self._groups)]
        reach = np.where(np.isfinite(seconds), seconds, 0.0) * self._share * SPARED
        return np.asarray(reach <= self._least_s.min(initial=np.inf))


def _degrees(plans: Plans) -> IntArray:
    """One number for tp, cp and pp together."""
    most = 1 << 20
    return (plans.tp * most + plans.cp) * most + plans.pp
