"""Rules on the layout of layers on stages and chunks, and on the orders that schedules support."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np

from cost_models.arrays import maximum, per_row, where
from cost_models.keys import group
from cost_models.plans import VOCABULARIES, ParallelPlan, Plans, code
from cost_models.runtimes import traits
from cost_models.schedules import SCHEDULES
from cost_models.stage_layers import is_loop, middle_layers, virtual_stage_count
from planner.constraints.rule import BoolArray, Context, Rule, divides, micro_batches


def _layers(c: Context, p: Plans) -> BoolArray:
    _, even = middle_layers(c.model.num_layers, p)
    single = (p.first_stage_layers == 0) & (p.last_stage_layers == 0)
    legal = where(p.pp == 1, single, even)
    if p.stage_layers_table:
        sums, least = p.of_stage_layers(sum), p.of_stage_layers(min, 1)
        # A virtual stage may hold the embedding, multi-token prediction or the head alone.
        explicit = (p.of_stage_layers(len) == virtual_stage_count(p)) & (p.pp > 1)
        filled = (least >= 1) | (explicit & (least >= 0))
        legal = where(p.stage_layers > 0, (sums == c.model.num_layers) & filled, legal)
    return np.asarray(legal, dtype=np.bool_)


def _layers_text(c: Context, p: ParallelPlan) -> str:
    layers = c.model.num_layers
    if p.stage_layers:
        return f"stage_layers must be >= 1 and sum to {layers}, got {sum(p.stage_layers)}"
    if p.pp == 1:
        return "first_stage_layers and last_stage_layers need pp > 1"
    if p.first_stage_layers or p.last_stage_layers:
        return (
            f"{layers} layers less {p.first_stage_layers} first and {p.last_stage_layers} last do "
            f"not divide over the other stages of {p.pp}"
        )
    return (
        f"{layers} layers do not divide over {p.pp} stages; give first_stage_layers or "
        "last_stage_layers"
    )


def _vpp(c: Context, p: Plans) -> BoolArray:
    """Chunks hold whole layers, and the ends keep at least one in their first and last chunk."""
    even = (p.first_stage_layers == 0) & (p.last_stage_layers == 0) & (p.stage_layers == 0)
    virtual = virtual_stage_count(p)
    folded = np.asarray(even & divides(virtual, c.model.num_layers) & (p.pp > 1))
    middle, _ = middle_layers(c.model.num_layers, p)
    per_chunk = middle // maximum(p.vpp, 1)
    rest = c.model.num_layers - p.first_stage_layers - p.last_stage_layers
    others = where(p.pp == 2, rest, middle)
    both = (p.first_stage_layers == 0) & (p.last_stage_layers == 0)
    others = where(both, middle, others)
    first = where(p.first_stage_layers > 0, p.first_stage_layers, others) - middle
    last = where(p.last_stage_layers > 0, p.last_stage_layers, others) - middle
    legal = divides(p.vpp, middle) & (per_chunk + first >= 1) & (per_chunk + last >= 1)
    legal &= p.pp > 1
    loop = is_loop(p.schedule)
    if p.stage_layers_table:
        explicit = (p.of_stage_layers(len) == virtual) & (p.pp > 1)
        common = p.of_stage_layers(lambda layers: gcd(*layers))
        legal = where(p.stage_layers > 0, explicit | divides(p.vpp, common), legal)
        folded |= explicit
    return np.asarray(where(loop, (p.vpp == 1) | legal, folded))


def _vpp_text(c: Context, p: ParallelPlan) -> str:
    if p.pp == 1:
        return f"{p.schedule} with vpp {p.vpp} needs pp > 1"
    if SCHEDULES[p.schedule].placement != "loop":
        count = int(virtual_stage_count(Plans.from_rows([p]))[0])
        return (
            f"{p.schedule} splits {c.model.num_layers} layers evenly over {count} virtual stages, "
            "unless stage_layers names those of each"
        )
    return f"the layers of a stage ({c.model.num_layers} over pp {p.pp}) do not split in {p.vpp}"


def _schedule(c: Context, p: Plans) -> BoolArray:
    """The numbers of micro-batches that the schedule supports, and conditions of its runtime."""
    count = micro_batches(c, p)
    groups = group(p.schedule, p.pp, p.vpp, count)
    firsts = groups.first
    size = max(len(p), count.size)
    rows = zip(
        *(per_row(a, size)[firsts].tolist() for a in (p.schedule, p.pp, p.vpp, count)), strict=True
    )
    allowed = np.array([not _schedule_refusal(*row) for row in rows], dtype=np.bool_)
    interleaved = p.schedule == code("schedule", "interleaved-1f1b")
    runtime = traits(p.runtime)
    rounds = interleaved & (np.asarray(runtime.whole_interleaved_rounds) > 0)
    plain = p.schedule == code("schedule", "1f1b")
    needs_pp = plain & (np.asarray(runtime.needs_pp_micro_batches) > 0)
    return np.asarray(
        groups.spread(allowed) & (~rounds | (count % p.pp == 0)) & (~needs_pp | (count >= p.pp))
    )


@lru_cache(maxsize=1 << 14)
def _schedule_refusal(schedule: int, stages: int, chunks: int, count: int) -> str:
    """Why a schedule cannot order its micro-batches; "" if it can, or without a pipeline."""
    if count < 1:
        return f"no micro-batch is left: {count}"
    if stages == 1:
        return ""
    return SCHEDULES[VOCABULARIES["schedule"][schedule]].allowed(stages, chunks, count)


def _schedule_text(c: Context, p: ParallelPlan) -> str:
    count = p.micro_batches(c.training.global_batch_size)
    refusal = _schedule_refusal(code("schedule", p.schedule), p.pp, p.vpp, count)
    if refusal:
        return refusal
    if p.schedule == "interleaved-1f1b":
        return f"Megatron interleaves a multiple of pp {p.pp} micro-batches, got {count}"
    return f"torch's 1F1B needs at least pp {p.pp} micro-batches, got {count}"


LAYERS = Rule("layers_not_divisible", _layers, _layers_text, "layout")
VPP = Rule("vpp_layout", _vpp, _vpp_text, "layout")
SCHEDULE = Rule("schedule_micro_batches", _schedule, _schedule_text)
