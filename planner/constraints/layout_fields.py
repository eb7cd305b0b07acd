"""The fields of a plan that give every virtual stage its number of layers."""

from __future__ import annotations

from typing import Any

from cost_models.schedules import SCHEDULES
from cost_models.stage_layers import virtual_stage_layers

Ends = tuple[int, int, tuple[int, ...]]


def layout_fields(schedule: str, pp: int, vpp: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The simplest fields for given layers of virtual stages: even, ends, by stage, one by one."""
    placement = SCHEDULES[schedule].placement if pp > 1 else "loop"
    by_stage = tuple(sum(sizes[stage::pp]) for stage in range(pp))
    first, last = by_stage[0], by_stage[-1]
    plainer: list[Ends] = [(0, 0, ())]
    if placement == "loop" and pp > 1:
        plainer += [(first, 0, ()), (0, last, ()), (first, last, ()), (0, 0, by_stage)]
    for ends in plainer:
        even = virtual_stage_layers(sum(sizes), placement, pp, vpp, *ends)
        if even == sizes and (not any(ends[:2]) or min(sizes) > 0):
            fields = dict(zip(("first_stage_layers", "last_stage_layers"), ends, strict=False))
            fields = {name: layers for name, layers in fields.items() if layers}
            return {**fields, "stage_layers": ends[2]} if ends[2] else fields
    return {"stage_layers": sizes}
