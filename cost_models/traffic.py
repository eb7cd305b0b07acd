"""The traffic of a plan's process groups on the links of each network tier, per iteration.

This module has no formulas: it evaluates the time of a step once more with kernels that take no
time and for one kind of group alone, so that nothing is hidden and nothing else is counted.  If a
transfer then returns its bytes instead of its seconds, the "time" of the step is the traffic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from cost_models.data_parallel import EMBEDDING
from cost_models.keyed_plans import CostContext, FloatArray, KeyedPlans, gather
from cost_models.keys import Memo
from cost_models.matrix_optimizers import MatrixOptimizer
from cost_models.network import Fabric, crossings, link_bytes
from cost_models.placement import AXES, Axis, members
from cost_models.plans import ParallelPlan, Plans
from cost_models.sources import Array
from cost_models.step_time import BlockTimes, data_parallel, message_s, messages, stage_s
from cost_models.synchronisation import StepCollectives

NAMES = (*AXES, EMBEDDING)
Measure = Callable[[Fabric, str, Array, Axis, float | None], Array]


@dataclass(frozen=True)
class GroupTraffic:
    """One kind of process group per iteration: arrays over stages, and over (tiers, stages).

    seconds: of its transfers one after the other, as priced, before any hides; link_bytes: what the
    busiest of the accelerators' links of a tier sends; mean_bytes: what they send on average;
    line_s: link_bytes at the full rate of that link, oversubscribed as it is.
    """

    name: str
    seconds: FloatArray
    link_bytes: FloatArray
    mean_bytes: FloatArray
    line_s: FloatArray


class _Probe(Fabric):
    """A fabric on which transfers of one group return `measure`, and those of others 0."""

    def __init__(self, of: Fabric, name: str, measure: Measure) -> None:
        vars(self).update(vars(of))
        self._name, self._measure = name, measure

    def transfer(
        self, op: str, payload_bytes: Array, axis: Axis, all_to_all_fraction: float | None = None
    ) -> Array:
        if axis.name != self._name or np.all(axis.size == 1):
            return 0.0
        return self._measure(self, op, payload_bytes, axis, all_to_all_fraction)


def traffic(s: CostContext, plan: ParallelPlan) -> Iterator[GroupTraffic]:
    """Each kind of group of a legal plan that sends anything, in the order of Placement.

    A pipeline's messages are those of a stage between two others.
    """
    row = Plans.from_rows([plan])
    gathered = gather(s, row)
    for name in NAMES:

        def per_stage(measure: Measure, name: str = name) -> FloatArray:
            return _stages_s(_context_of_group(s, name, measure), gathered)

        seconds = per_stage(Fabric.transfer)
        if not seconds.any():
            continue
        tiers = range(len(s.fabric.tiers))
        yield GroupTraffic(
            name,
            seconds,
            *(
                np.array([per_stage(measure(tier)) for tier in tiers])
                for measure in (_bytes, _mean_bytes, _line_s)
            ),
        )


def _bytes(tier: int) -> Measure:
    return lambda fabric, op, payload, axis, _: link_bytes(fabric, op, payload, axis)[tier]


def _mean_bytes(tier: int) -> Measure:
    """Bytes per member of a chain: one of each domain sends over its border, the others inside."""

    def measure(fabric: Fabric, op: str, payload: Array, axis: Axis, _: float | None) -> Array:
        busiest = link_bytes(fabric, op, payload, axis)[tier]
        if op != "send":
            return busiest
        inner = members(axis, fabric.tiers[max(tier - 1, 0)].domain_accelerators)
        return busiest / inner if tier else busiest * (inner - 1.0) / inner

    return measure


def _line_s(tier: int) -> Measure:
    def measure(fabric: Fabric, op: str, payload: Array, axis: Axis, _: float | None) -> Array:
        links = [hop.link_bytes_per_s for hop in crossings(fabric, axis)]
        rate = [fabric.tiers[0].bandwidth_bytes_per_s, *links][tier]
        return link_bytes(fabric, op, payload, axis)[tier] / rate

    return measure


def _context_of_group(s: CostContext, name: str, measure: Measure) -> CostContext:
    """The context with the transfers of one kind of group only."""
    accelerator = s.nodes.accelerator.model_copy(update={"memory_bytes_per_s": math.inf})
    fabric = _Probe(s.fabric, name, measure)
    profile = replace(s.profile, measured=None)
    machine = replace(
        s.machine, accelerator=accelerator, profile=profile, fabric=fabric, instant=True,
        fitted=replace(s.machine.fitted, contention=0.0, host_launch_s=0.0),
    )  # fmt: skip
    nodes = s.nodes.model_copy(update={"accelerator": accelerator})
    # What is kept of the context holds at its own rates alone.
    return replace(s, nodes=nodes, profile=profile, fabric=fabric, machine=machine, memo=Memo())


def _stages_s(s: CostContext, g: KeyedPlans) -> FloatArray:
    """Seconds of a step for each stage: its micro-batches, its messages, and what comes once."""
    dp = data_parallel(s, g)
    times, step = BlockTimes(s, g, dp), StepCollectives(s, g, dp)
    sent = messages(g) * message_s(g, dp) * (g.plans.pp > 1)
    tied = g.state.spread(dp.tied_reduce_s)
    matrices = MatrixOptimizer(s, g)
    slots = []
    for slot, trained in enumerate(g.trained_stage_parameters):
        end = np.maximum(g.table.first[slot], g.table.last[slot]) > 0
        collectives_s = sum(step.of(trained, g.stage_parameters[slot]))
        once = collectives_s + sum(matrices.gather_s(slot)) + tied * g.stages.spread(end)
        total = g.micro_batches * stage_s(s, g, times, slot) + sent + once
        slots.append(float(np.max(total)))
    return np.array(slots)[g.table.slot_of[:, 0]]
