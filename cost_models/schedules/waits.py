"""A lower bound on the bubbles of pipelines, from their schedule alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.plans import VOCABULARIES, FloatArray, Plans, is_one_of
from cost_models.schedules import SCHEDULES
from cost_models.schedules.interleaved import INTERLEAVED, looped_extra_s
from cost_models.schedules.one_f_one_b import ONE_F_ONE_B
from cost_models.sources import formula

_LOOPED = (INTERLEAVED.extra_s, ONE_F_ONE_B.extra_s)
_SCHEDULES = tuple(
    name
    for name in VOCABULARIES["schedule"]
    if name in SCHEDULES and SCHEDULES[name].extra_s in _LOOPED
)


def waits_as_a_loop(plans: Plans) -> NDArray[np.bool_]:
    """Plans whose micro-batches loop over the ranks, so that these wait for each other."""
    return np.asarray(is_one_of(plans.schedule, "schedule", *_SCHEDULES) > 0)


@formula("1", "derived")
def least_wait_share(plans: Plans, global_batch_size: int) -> FloatArray:
    """How long the busiest rank waits at least, over the work of a mean rank in a step.

    Where micro-batches loop over the ranks a step takes least with equal stages; elsewhere 0, which
    is always true.
    """
    micro_batches = plans.micro_batches(global_batch_size)
    equal = looped_extra_s(1.0, plans.pp - 1.0, plans.vpp, micro_batches)
    return np.where(waits_as_a_loop(plans), equal / micro_batches, 0.0)
