"""The estimate of one pipeline rank, under the names that runs and traces measure.

These are the cost model's amounts for the plan as torch runs it; torch itself is not imported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from cost_models.activation_memory import layer_input_bytes, saved_tensors, tensor_bytes
from cost_models.blocks.records import Record
from cost_models.keyed_plans import CostContext, KeyedPlans, gather
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.sources import Array
from cost_models.stage_memory import StageMemory
from cost_models.stage_states import gathered_bytes
from cost_models.stages import VirtualStages, plan_stages
from planner.documents.request import PlanRequest
from planner.running.validate.dryrun.trace_result import Amounts
from planner.search.exhaustive import cost_model


@dataclass(frozen=True)
class Expected:
    """The estimate of one pipeline rank.

    saved: for each stage of the rank, the bytes that one micro-batch saves, by name of the row.
    message_bytes: of one message to a neighbour, in each direction.
    """

    amounts: Amounts
    in_flight: float
    saved: tuple[dict[str, float], ...]
    message_bytes: int


def expected(request: PlanRequest, rank: int) -> Expected:
    """The estimate of a pipeline rank of the request's plan, in bytes."""
    plan = request.plan
    assert plan is not None
    s = cost_model(request).context
    g = gather(s, Plans.from_rows([plan]))
    memory = StageMemory(s, g, all_stages=True)
    slot = int(g.table.slot_of[rank, 0])
    parts = {name: float(values[rank, 0]) for name, values in memory.parts.items()}
    in_flight = float(memory.in_flight[rank, 0])
    stages = layout(request)
    activations = parts["activations"] + _ends(g, plan, slot, in_flight)
    states = {
        "parameter_bytes": parts["weights"],
        "gathered_bytes": _one(gathered_bytes(s, g, slot)),
        "gradient_bytes": parts["gradients"],
        "optimizer_bytes": parts["optimizer"],
        "activation_bytes": activations,
    }
    peak = float(memory.allocated_bytes[rank, 0])
    amounts = {**states, "working_bytes": peak - sum(states.values()), "peak_bytes": peak}
    chunks = [i for i, owner in enumerate(stages.owner) if owner == rank]
    return Expected(
        Amounts(**{name: round(value) for name, value in amounts.items()}),
        in_flight,
        tuple(dict(_saved(s, g, stages, i)) for i in chunks),
        round(_one(g.bytes.message)),
    )


def layout(request: PlanRequest) -> VirtualStages:
    """The virtual stages of the plan: their pipeline ranks and their layers."""
    assert request.plan is not None
    return plan_stages(request.model, request.plan)


def _ends(g: KeyedPlans, plan: ParallelPlan, slot: int, in_flight: float) -> float:
    """Bytes saved by the embedding and by head and loss.

    The backward pass follows a loss at once, unless the schedule runs all forward passes first.
    """
    losses = _one(g.micro_batches) if SCHEDULES[plan.schedule].keeps_all else 1.0
    first, last = (_one(row[slot]) > 0 for row in (g.table.first, g.table.last))
    embedding = in_flight * _one(g.bytes.embedding_saved) if first else 0.0
    return embedding + (losses * _one(g.bytes.head_saved) if last else 0.0)


def _saved(
    s: CostContext, g: KeyedPlans, stages: VirtualStages, index: int
) -> Iterator[tuple[str, float]]:
    """The rows of one stage: bytes of all its layers, for one micro-batch."""
    d = g.micro.d
    total: defaultdict[str, float] = defaultdict(float)

    def add(records: Iterable[Record], times: float, whose: str = "") -> None:
        for tensor in saved_tensors(records):
            total[f"{whose}{tensor.name}"] += times * _one(tensor_bytes(tensor, d))

    for records, size, redone in zip(g.micro.layers, stages.layers, stages.recomputed, strict=True):
        add(records, size[index] - redone[index])
        total["layer input"] += redone[index] * _one(layer_input_bytes(s.model, d))
    add(g.micro.embedding, float(stages.first[index]))
    for encoder in g.micro.encoders:
        add(encoder.records, float(stages.first[index]), "encoder ")
    add(g.micro.head, float(stages.last[index]))
    yield from ((name, value) for name, value in total.items() if value)


def _one(value: Array) -> float:
    return float(np.max(value))
