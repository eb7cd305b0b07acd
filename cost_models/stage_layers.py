"""The number of layers of each stage, chunk and rank of a pipeline.

Chunk c of rank r is virtual stage c p + r.  A middle stage splits its layers evenly over its
chunks; the difference of the first stage is in its first chunk (with the embedding), that of the
last stage in its last chunk (with the head).  A plan may name the layers of every virtual stage
instead; then the first and the last may have none, only the embedding or the head.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import islice
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import maximum, where
from cost_models.layers import layers_of
from cost_models.plans import VOCABULARIES, IntArray, ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Placement
from cost_models.sources import formula
from cost_models.spec import ModelSpec

FloatArray = NDArray[np.float64]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
# By schedule code: how its virtual stages lie on the ranks.
PLACEMENT_CODES = np.array(
    [
        PLACEMENTS.index(SCHEDULES[name].placement)
        for name in VOCABULARIES["schedule"]
        if name in SCHEDULES
    ]
)


@formula("1", "megatron-core")
def stage_layers(
    num_layers: int, pp: int, first: int, last: int, explicit: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Layers per stage; first/last 0: as the middle ones.  Legal input is assumed.

    explicit: of stages, not of virtual ones.
    """
    if explicit:
        return explicit
    if pp == 1:
        return (num_layers,)
    ends = (first > 0) + (last > 0)
    middle = (num_layers - first - last) // (pp - ends) if pp > ends else 0
    return (first or middle, *(middle,) * (pp - 2), last or middle)


@formula("1", "megatron-core")
def middle_layers(num_layers: int, plans: Plans) -> tuple[IntArray, NDArray[np.bool_]]:
    """(layers of a middle stage, whether the layers come out whole), for plans of any kind.

    Two stages have no middle one: the larger of them stands for it.
    """
    first, last = plans.first_stage_layers, plans.last_stage_layers
    rest = num_layers - first - last
    count = plans.pp - (first > 0) - (last > 0)
    at_least_one = maximum(count, 1)
    share = rest // at_least_one
    divides = where(count > 0, (rest % at_least_one == 0) & (share >= 1), rest == 0)
    ends = maximum(where(first > 0, first, share), where(last > 0, last, share))
    return where(plans.pp == 2, ends, share), divides & (rest >= 0)


@formula("1", "megatron-core")
def chunk_layers(layers: tuple[int, ...], vpp: int, explicit: bool = False) -> NDArray[np.int64]:
    """Layers per chunk and stage, shape (vpp, pp); explicit stages split evenly.

    What does not divide goes to the earliest chunks, one layer each.
    """
    counts = np.array(layers, dtype=np.int64)
    if explicit or vpp == 1:
        return counts[None, :] // vpp + (np.arange(vpp)[:, None] < counts[None, :] % vpp)
    even = int(counts[1:-1].max() if len(counts) > 2 else counts.max()) // vpp
    chunks = np.full((vpp, len(counts)), even, dtype=np.int64)
    chunks[0, 0] += counts[0] - even * vpp
    chunks[-1, -1] += counts[-1] - even * vpp
    return chunks


@lru_cache(maxsize=1 << 10)
@formula("1", "derived")
def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Layers per stage, as even as possible; middle stages get one more first, the ends last."""
    low, extra = divmod(layers, stages)
    outward = sorted(range(stages), key=lambda stage: abs(2 * stage - (stages - 1)))
    more = set(outward[:extra])
    return tuple(low + (stage in more) for stage in range(stages))


def is_loop(schedule: IntArray) -> NDArray[np.bool_]:
    """Whether schedules (by code) place chunk after chunk over all ranks."""
    return np.asarray(PLACEMENT_CODES[schedule] == PLACEMENTS.index("loop"))


@formula("1", "derived")
def virtual_stage_count(plans: Plans) -> IntArray:
    """Stages a micro-batch passes: pp x vpp, or pp where two directions each hold a copy."""
    two_way = PLACEMENT_CODES[plans.schedule] == PLACEMENTS.index("two-way")
    count: IntArray = plans.pp * where(two_way, 1, plans.vpp)
    return count


def virtual_stage_layers(
    num_layers: int,
    placement: Placement,
    pp: int,
    vpp: int,
    first: int,
    last: int,
    explicit: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Layers of each virtual stage, in forward order.  Legal input is assumed.

    Explicit layers of every virtual stage are what they are.  Else a loop follows the convention
    above, and waves and the two directions of DualPipe split evenly: what does not divide goes to
    the middle, away from the embedding and the head.
    """
    count = pp if placement == "two-way" else pp * vpp
    if len(explicit) == count:
        return explicit
    if placement != "loop":
        return spread(num_layers, count)
    layers = stage_layers(num_layers, pp, first, last, explicit)
    return tuple(chunk_layers(layers, vpp, bool(explicit)).ravel().tolist())


def forward_layers(num_layers: int, plan: ParallelPlan) -> tuple[int, ...]:
    """Layers of each virtual stage of a plan, in forward order."""
    placement = SCHEDULES[plan.schedule].placement if plan.pp > 1 else "loop"
    return virtual_stage_layers(
        num_layers, placement, plan.pp, plan.vpp, plan.first_stage_layers, plan.last_stage_layers,
        plan.stage_layers,
    )  # fmt: skip


def virtual_stages(
    placement: Placement, pp: int, layers: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
    """(layers, rank, share of the micro-batches) of each virtual stage, in forward order.

    layers: see virtual_stage_layers.  In two directions every stage stands on two ranks, and each
    serves half of the micro-batches.
    """
    sizes, ranks = np.array(layers, dtype=np.int64), np.arange(pp)
    if placement == "two-way":
        owner = np.stack([ranks, ranks[::-1]], axis=1).ravel()
        return np.repeat(sizes, 2), owner, np.full(2 * pp, 0.5)
    chunks = range(len(sizes) // pp)
    back = placement == "wave"
    owner = np.concatenate([ranks[::-1] if back and c % 2 else ranks for c in chunks])
    return sizes, owner, np.ones(len(sizes))


def rank_layers(num_layers: int, plan: ParallelPlan) -> tuple[int, ...]:
    """Layers that each pipeline rank of a plan holds; of two directions, those of one."""
    placement = SCHEDULES[plan.schedule].placement if plan.pp > 1 else "loop"
    sizes, owner, share = virtual_stages(placement, plan.pp, forward_layers(num_layers, plan))
    return tuple(int(n) for n in np.bincount(owner, weights=sizes * share, minlength=plan.pp))


def rank_titles(model: ModelSpec, plan: ParallelPlan) -> tuple[dict[str, int], ...]:
    """Layers of each kind, by its title, on each pipeline rank; of two directions, those of one."""
    placement = SCHEDULES[plan.schedule].placement if plan.pp > 1 else "loop"
    sizes, owner, _ = virtual_stages(placement, plan.pp, forward_layers(model.num_layers, plan))
    step = 2 if placement == "two-way" else 1
    layers = layers_of(model)
    titles = iter(layers.titles)
    by_rank = [Counter[str]() for _ in range(plan.pp)]
    for rank, size in zip(owner[::step].tolist(), sizes[::step].tolist(), strict=True):
        by_rank[rank].update(islice(titles, size))
    return tuple({title: row[title] for title in layers.by_title if row[title]} for row in by_rank)
