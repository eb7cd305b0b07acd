"""Layers of each model chunk, and Megatron's layout string for them."""

from __future__ import annotations

import re

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from cost_models.stage_layers import forward_layers, stage_layers
from planner.documents.answer import Reason
from planner.frameworks.base import Unsupported

OPTION = "--pipeline-model-parallel-layout"
MAX_LAYOUT = 100_000


def chunks(model: ModelSpec, plan: ParallelPlan) -> tuple[int, ...]:
    """The number of layers of every chunk, in layer order.

    Raises Unsupported if layers would be lost or held twice, or if a chunk would be empty without
    stage_layers saying so.  The rules refuse such plans too; writers must not rely on that.
    """
    counts = forward_layers(model.num_layers, plan)
    per_stage = tuple(sum(counts[stage :: plan.pp]) for stage in range(plan.pp))
    named = len(plan.stage_layers) == len(counts)
    layers = per_stage
    if not named:
        ends = plan.first_stage_layers, plan.last_stage_layers
        layers = stage_layers(model.num_layers, plan.pp, *ends, plan.stage_layers)
    least = 0 if named and plan.pp > 1 else 1
    if min(counts) < least or sum(counts) != model.num_layers or per_stage != layers:
        text = (
            f"stages of {', '.join(map(str, layers))} layers in {plan.vpp} chunks each give chunks "
            f"of {', '.join(map(str, counts))}: {sum(counts)} of {model.num_layers} layers; "
            "no chunk may be empty"
        )
        code = "vpp_layout" if plan.vpp > 1 else "layers_not_divisible"
        raise Unsupported("Megatron-LM", (Reason(code=code, text=text),))
    return counts


def layout(model: ModelSpec, plan: ParallelPlan) -> str:
    """The layout string: chunks in layer order, E embedding, t layer, m MTP, L loss."""
    parts = ["t" * count for count in chunks(model, plan)]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * model.mtp_num_layers + "L"
    return "|".join(parts)


def parsed(text: str) -> list[str]:
    """The chunks of a layout string, with multipliers expanded.

    Raises ValueError if Megatron-LM refuses it, or it has more layers than any model.
    """
    text = text.replace(",", "")
    for pattern in (r"\(([^()]+)\)\*(\d+)", r"([^()])\*(\d+)"):
        parts, position = [], 0
        for match in re.finditer(pattern, text):
            if len(match[2]) > 5 or len(match[1]) * int(match[2]) > MAX_LAYOUT:
                raise ValueError(f"{match[0]!r} is longer than any model")
            parts += [text[position : match.start()], match[1] * int(match[2])]
            position = match.end()
        text = "".join(parts) + text[position:]
        if len(text) > MAX_LAYOUT:
            raise ValueError("it is longer than any model")
    wrong = re.search(r"[^EtmL|]", text)
    if wrong:
        raise ValueError(f"unknown letter {wrong[0]!r}: E, t, m, L and | are known")
    return text.split("|")
