"""Skips (tp, cp, pp) groups whose best uneven layer split cannot beat the best plan so far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cost_models.plans import FloatArray, IntArray, Plans
from planner.constraints import BoolArray

# An uneven split may also save recompute: its time may be this share of the time that follows from
# the busiest rank's smaller work alone.
SPARED = 0.85


class UnevenSplitFilter:
    """The least step time of plans with even splits, by (tp, cp, pp).

    share: by pipeline size, the busiest rank's work in the best uneven split, divided by that in
    the best even split.
    """

    def __init__(self, groups: Plans, share: Callable[[int], float]) -> None:
        self._groups = _degrees(groups)
        shares = {pp: share(pp) for pp in np.unique(groups.pp).tolist()}
        self._share = np.array([shares[pp] for pp in groups.pp.tolist()])
        self._known = np.unique(self._groups)
        self._least_s = np.full(len(self._known), np.inf)

    def seen(self, plans: Plans, seconds: FloatArray) -> None:
        """Record the step times of plans that fit."""
        place = np.searchsorted(self._known, np.broadcast_to(_degrees(plans), seconds.shape))
        np.minimum.at(self._least_s, place, seconds)

    def promising(self) -> BoolArray:
        """By group: whether its best uneven split may be as fast as the best plan so far.

        True also for degrees with which no plan has fitted yet.
        """
        seconds = self._least_s[np.searchsorted(self._known, self._groups)]
        reach = np.where(np.isfinite(seconds), seconds, 0.0) * self._share * SPARED
        return np.asarray(reach <= self._least_s.min(initial=np.inf))


def _degrees(plans: Plans) -> IntArray:
    """One number for tp, cp and pp together."""
    most = 1 << 20
    return (plans.tp * most + plans.cp) * most + plans.pp
