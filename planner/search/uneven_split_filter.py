"""Skips process groups whose best uneven layer split cannot beat the best plan so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cost_models.plans import FloatArray, IntArray, Plans
from planner.constraints import BoolArray

# An uneven split may also save recompute: its time may be this share of the time that follows from
# the busiest rank's smaller work alone.
SPARED = 0.85


class UnevenSplitFilter:
    """The least step time of plans with even splits, by number of accelerators and (tp, cp, pp).

    sizes: numbers of accelerators, ascending.  share: by pipeline size, the work between
    micro-batches in the best uneven split, divided by that in the best even split.
    """

    def __init__(self, groups: Plans, sizes: Sequence[int], share: Callable[[int], float]) -> None:
        self._groups, self._size = _degrees(groups), place_among(sizes, groups)
        self._sizes = sizes
        shares = {pp: share(pp) for pp in np.unique(groups.pp).tolist()}
        self._share = np.array([shares[pp] for pp in groups.pp.tolist()])
        self._known = np.unique(self._groups)
        self._least_s = np.full((len(sizes), len(self._known)), np.inf)

    def seen(self, plans: Plans, seconds: FloatArray) -> None:
        """Record the step times of plans that fit."""
        index = np.searchsorted(self._known, np.broadcast_to(_degrees(plans), seconds.shape))
        np.minimum.at(self._least_s, (place_among(self._sizes, plans), index), seconds)

    def promising(self) -> BoolArray:
        """Whether the best uneven split of each group may be as fast as the best plan of its size.

        True also for degrees with which no plan has fitted yet.
        """
        seconds = self._least_s[self._size, np.searchsorted(self._known, self._groups)]
        reach = np.where(np.isfinite(seconds), seconds, 0.0) * self._share * SPARED
        return np.asarray(reach <= self._least_s.min(axis=1, initial=np.inf)[self._size])


def place_among(sizes: Sequence[int], plans: Plans) -> IntArray:
    """The place of the number of accelerators of each plan among ascending sizes."""
    return np.searchsorted(sizes, plans.tp * plans.cp * plans.pp * plans.dp)


def _degrees(plans: Plans) -> IntArray:
    """One number for tp, cp and pp together."""
    base = 1 << 20
    return (plans.tp * base + plans.cp) * base + plans.pp
