"""What the estimate says of one pipeline rank, under the names that a run or a trace measures.

No torch here: the cost model's own amounts, of the plan as torch runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cost_models.activation_memory import (
    layer_input_bytes,
    saved_tensors,
    tensor_bytes,
)
from cost_models.gathered import Gathered, Setting, gather
from cost_models.layers import Dims, dims
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.sources import Array
from cost_models.stage_memory import gathered_bytes, stage_memory
from cost_models.stages import KINDS, VirtualStages, stage_layers, virtual_layers
from planner.request import PlanRequest
from planner.search import cost_model
from planner.validate.traced import Amounts


@dataclass(frozen=True)
class Expected:
    """The estimate of one pipeline rank.

    saved: per stage that the rank holds, bytes that one micro-batch keeps, by name of the row.
    """

    amounts: Amounts
    in_flight: float
    saved: tuple[dict[str, float], ...]


def expected(request: PlanRequest, rank: int) -> Expected:
    """What the estimate says of a pipeline rank of the request's plan, in bytes."""
    plan = request.plan
    assert plan is not None
    s = cost_model(request).setting
    g = gather(s, Plans.from_rows([plan]), True)
    memory = stage_memory(s, g)
    parts = {name: float(values[rank, 0]) for name, values in memory.parts.items()}
    in_flight = float(memory.in_flight[rank, 0])
    stages = layout(request)
    activations = parts["activations"] + _ends(g, plan, rank, in_flight)
    held = {
        "parameter_bytes": parts["weights"],
        "gathered_bytes": _one(gathered_bytes(s, g, rank)),
        "gradient_bytes": parts["gradients"],
        "optimizer_bytes": parts["optimizer"],
        "activation_bytes": activations,
    }
    peak = float(memory.allocated_bytes[rank, 0])
    amounts = {**held, "working_bytes": peak - sum(held.values()), "peak_bytes": peak}
    d = dims(s.model, s.training, Plans.from_rows([plan]))
    own = [i for i, owner in enumerate(stages.owner) if owner == rank]
    return Expected(
        Amounts(**{name: round(value) for name, value in amounts.items()}),
        in_flight,
        tuple(dict(_saved(s, g, d, stages, i)) for i in own),
    )


def layout(request: PlanRequest) -> VirtualStages:
    """Which stages there are, which pipeline rank holds each, and their layers."""
    model, plan = request.model, request.plan
    assert plan is not None
    layers = stage_layers(
        model.num_layers,
        plan.pp,
        plan.first_stage_layers,
        plan.last_stage_layers,
        plan.stage_layers,
    )
    return virtual_layers(
        model.layer_kinds,
        model.mtp_num_layers,
        SCHEDULES[plan.schedule].placement if plan.pp > 1 else "loop",
        plan.vpp,
        layers,
        bool(plan.stage_layers),
        plan.recompute_num_layers,
        plan.recompute == "full" and plan.recompute_method == "uniform",
    )


def _ends(g: Gathered, plan: ParallelPlan, rank: int, in_flight: float) -> float:
    """Bytes saved by the embedding and by head and loss.

    A loss is followed by its backward pass at once, unless a schedule runs all forwards first.
    """
    losses = _one(g.micro_batches) if SCHEDULES[plan.schedule].keeps_all else 1.0
    first, last = (_one(row[rank]) > 0 for row in (g.table.first, g.table.last))
    kept = in_flight * _one(g.bytes.embedding_saved) if first else 0.0
    return kept + (losses * _one(g.bytes.head_saved) if last else 0.0)


def _saved(
    s: Setting, g: Gathered, d: Dims, stages: VirtualStages, index: int
) -> Iterator[tuple[str, float]]:
    """Rows of one stage: bytes of all its layers, for one micro-batch."""
    model = s.model
    total: defaultdict[str, float] = defaultdict(float)
    for kind in s.kinds:
        place = KINDS.index(kind)
        redone = stages.recomputed[place][index]
        layers = stages.layers[place][index] - redone
        for tensor in saved_tensors(model, kind, d):
            total[tensor.name] += layers * _one(tensor_bytes(tensor, d))
        total["layer input"] += redone * _one(layer_input_bytes(model, d))
    if stages.first[index]:
        total["embedding dropout mask"] += _one(g.bytes.embedding_saved)
    if stages.last[index]:
        each = model.hidden_size * d.activation_bytes
        total["last norm input"] += _one(d.sharded_tokens) * each
        total["last norm output"] += (
            _one(d.sharded_tokens + d.gathered_input * (d.tokens - d.sharded_tokens)) * each
        )
        norms = total["last norm input"] + total["last norm output"]
        total["logits"] += _one(g.bytes.head_saved) - norms
    yield from ((name, value) for name, value in total.items() if value)


def _one(value: Array) -> float:
    return float(np.max(value))
