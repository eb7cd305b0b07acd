"""A pipeline over groups of different nodes: what one plan takes, and how many layers go where.

Every stage stands on one group, so that tensor, context and data parallelism stay among equals; the
time of a step comes from the event simulator, with each rank's own times.  Outside of the pipeline
(reduction, optimizer) the slowest group decides; its figure is that of its heaviest stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from cost_models.cost_parts import TIME_PARTS
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.schedules.simulate import Links, Times, simulate
from cost_models.spec import ClusterSpec, ModelSpec, NodeGroup, TrainingSpec
from planner.evidence.uncertainty.memory_risk import room

FloatArray = NDArray[np.float64]
MOST_TRIED = 8  # stages of a pipeline whose every pair is tried with the simulator
OUTSIDE = tuple(name for name, part in TIME_PARTS.items() if part.once)


@dataclass(frozen=True)
class Result:
    """Seconds of a step; seconds of a micro-batch, bytes and capacity by stage; whether it fits."""

    iteration_time_s: float
    stage_s: FloatArray
    stage_bytes: FloatArray
    capacity_bytes: FloatArray
    fits: bool


class Groups:
    """Cost models of the groups of a cluster, each as if the whole pipeline stood on it."""

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        training: TrainingSpec,
        memory_risk: float = 1.0,
    ) -> None:
        self.model, self.cluster, self.training = model, cluster, training
        self._memory_risk = memory_risk
        self.models = [
            CostModel(model, _cluster_of_group(cluster, group), training)
            for group in cluster.groups
        ]

    @cached_property
    def capacity_bytes(self) -> FloatArray:
        return np.array([group.accelerator.memory_bytes for group in self.cluster.groups])

    def room_bytes(self, plan: ParallelPlan) -> FloatArray:
        """Bytes that a plan may use per accelerator of each group."""
        return np.array(
            [room(size, self._memory_risk).of_plan(plan) for size in self.capacity_bytes]
        )

    def have_room(self, plans: Plans) -> NDArray[np.bool_]:
        """Whether the groups together have room for a plan's stages, with as many layers on each.

        Layers can move from small accelerators to large ones, so that only the sum counts.
        """
        roomy = np.zeros(len(plans), dtype=np.bool_)
        for pp in np.unique(plans.pp):
            rows = np.flatnonzero(plans.pp == pp)
            left = np.zeros(len(rows))
            for model, group, size in zip(
                self.models, self.cluster.groups, self.capacity_bytes, strict=True
            ):
                memory = model.evaluate(plans.take(rows), all_stages=True).memory
                used = (memory.total_bytes - memory.spare_bytes).mean(axis=0)
                free = room(size, self._memory_risk).of(plans.take(rows))
                left += group.accelerators * (free - used)
            roomy[rows] = left >= 0
        return roomy

    def evaluate(self, plan: ParallelPlan, owner: Sequence[int]) -> Result:
        """One plan with its layers by stage; owner: the group of each stage."""
        owners = np.asarray(owner)
        used = sorted(set(owner))
        rows = {g: self.models[g].stage_times(plan) for g in used}
        picked = [
            np.stack([getattr(rows[g][0], name)[s] for s, g in enumerate(owner)])
            for name in ("forward_s", "input_gradient_s", "weight_gradient_s")
        ]
        times = Times(*picked)
        slowest = max(
            (rows[g][1] for g in used), key=lambda links: links.latency_s + links.transfer_s
        )
        links = Links(slowest.latency_s, slowest.transfer_s, slowest.blocking)
        count = plan.micro_batches(self.training.global_batch_size)
        schedule = SCHEDULES[plan.schedule]
        makespan = simulate(schedule, plan.pp, plan.vpp, count, times, links).makespan_s
        row = Plans.from_rows([plan])
        found = {g: self.models[g].evaluate(row, all_stages=True) for g in used}
        outside = max(
            sum(float(found[g].time_parts_s[name].max()) for name in OUTSIDE) for g in used
        )
        memory = [found[g].memory for g in owner]
        stage_bytes = np.array([own.total_bytes[s, 0] for s, own in enumerate(memory)])
        spare = np.array([own.spare_bytes[s, 0] for s, own in enumerate(memory)])
        fits = bool(np.all(stage_bytes - spare <= self.room_bytes(plan)[owners]))
        return Result(
            makespan + outside, times.work_s, stage_bytes, self.capacity_bytes[owners], fits
        )

    def rough_s(self, plan: ParallelPlan, owner: Sequence[int]) -> float:
        """A step of a plan with its layers, by the same closed form as `partition`."""
        rows = {g: self.models[g].stage_times(plan)[0].work_s for g in set(owner)}
        work = [float(rows[g][s]) for s, g in enumerate(owner)]
        count = plan.micro_batches(self.training.global_batch_size)
        return one_f_one_b_s(np.array(work), count)

    def partition(self, plan: ParallelPlan, owner: Sequence[int]) -> tuple[int, ...] | None:
        """Layers by stage that take the least time and fit, by the closed form of 1F1B.

        Stages fill one after another, from the one that ends first; then layers move between any
        two stages while that helps.  None if no partition fits.
        """
        linear = self._linear(plan, owner)
        count = plan.micro_batches(self.training.global_batch_size)
        layers = linear.filled(self.model.num_layers)
        if layers is None:
            return None
        best = linear.step_s(layers, count)
        while True:
            moved = min(
                ((linear.step_s(other, count), other) for other in linear.neighbours(layers)),
                default=(best, layers),
                key=lambda pair: pair[0],
            )
            if moved[0] >= best:
                return tuple(int(n) for n in layers)
            best, layers = moved

    def refined(self, plan: ParallelPlan, owner: Sequence[int]) -> tuple[ParallelPlan, Result]:
        """A plan with its layers moved one by one while the simulator finds that faster.

        The closed form does not see which stage waits for which.  A long pipeline tries only the
        fullest and the emptiest stage of each speed.
        """
        best = self.evaluate(plan, owner)
        linear = self._linear(plan, owner)
        every = plan.pp <= MOST_TRIED
        while True:
            tried = [
                (moved, self.evaluate(moved, owner))
                for layers in linear.neighbours(np.array(plan.stage_layers), every)
                for moved in [plan.model_copy(update={"stage_layers": tuple(layers.tolist())})]
            ]
            fitting = [pair for pair in tried if pair[1].fits]
            faster = min(fitting, key=lambda pair: pair[1].iteration_time_s, default=None)
            if faster is None or (
                best.fits and faster[1].iteration_time_s >= best.iteration_time_s
            ):
                return plan, best
            plan, best = faster

    def _linear(self, plan: ParallelPlan, owner: Sequence[int]) -> _Linear:
        """Time and memory of each stage as straight lines in its layers.

        From two even partitions, of all layers and of one more on each stage.
        """
        even = _even(self.model.num_layers, plan.pp)
        more = tuple(n + 1 for n in even)
        larger = self.model.model_copy(update={"num_layers": sum(more)})
        ends: list[tuple[FloatArray, FloatArray]] = []
        for g in range(len(self.models)):
            if g not in owner:
                ends.append((np.zeros(plan.pp), np.zeros(plan.pp)))
                continue
            alone = _cluster_of_group(self.cluster, self.cluster.groups[g])
            models = (self.models[g], CostModel(larger, alone, self.training))
            seconds, sizes = [], []
            for model, partition in zip(models, (even, more), strict=True):
                row = plan.model_copy(update={"stage_layers": partition})
                seconds.append(model.stage_times(row)[0].work_s)
                found = model.evaluate(Plans.from_rows([row]), all_stages=True)
                sizes.append(found.memory.total_bytes[:, 0])
            ends.append((np.stack(seconds), np.stack(sizes)))
        picked_s = np.array([ends[g][0][:, s] for s, g in enumerate(owner)])
        picked_bytes = np.array([ends[g][1][:, s] for s, g in enumerate(owner)])
        layers = np.array(even)
        slope_s = picked_s[:, 1] - picked_s[:, 0]
        slope_bytes = np.maximum(picked_bytes[:, 1] - picked_bytes[:, 0], 1.0)
        left = self.room_bytes(plan)[np.asarray(owner)] - picked_bytes[:, 0]
        most = np.floor(layers + left / slope_bytes)
        return _Linear(picked_s[:, 0] - slope_s * layers, slope_s, most.astype(np.int64))


def one_f_one_b_s(stage_s: FloatArray, micro_batches: int) -> float:
    """A step of 1F1B: one micro-batch through all stages, the others at the worst's pace."""
    return float(stage_s.sum() + (micro_batches - 1) * stage_s.max())


@dataclass(frozen=True)
class _Linear:
    """Seconds of a stage: fixed + slope x layers; and the most layers that fit it."""

    fixed_s: FloatArray
    slope_s: FloatArray
    most: NDArray[np.int64]

    def seconds(self, layers: NDArray[np.int64]) -> FloatArray:
        return self.fixed_s + self.slope_s * layers

    def step_s(self, layers: NDArray[np.int64], count: int) -> float:
        """A step of 1F1B."""
        return one_f_one_b_s(self.seconds(layers), count)

    def filled(self, total: int) -> NDArray[np.int64] | None:
        """One layer each, then the next where it ends first; None where they have no room."""
        layers = np.ones(len(self.most), dtype=np.int64)
        if np.any(self.most < 1) or total < len(layers):
            return None
        queue: list[tuple[float, int]] = []
        for s in range(len(layers)):
            heappush(queue, (float(self.fixed_s[s] + 2 * self.slope_s[s]), s))
        for _ in range(total - len(layers)):
            while queue and layers[queue[0][1]] >= self.most[queue[0][1]]:
                heappop(queue)
            if not queue:
                return None
            ends, s = heappop(queue)
            layers[s] += 1
            heappush(queue, (ends + float(self.slope_s[s]), s))
        return layers

    def neighbours(self, layers: NDArray[np.int64], every: bool = False) -> list[NDArray[np.int64]]:
        """One layer moved between two stages: every pair, or those that could matter.

        Of stages of one speed only the fullest gives and only the emptiest takes.
        """
        seconds = self.seconds(layers)
        speeds: dict[float, list[int]] = {}
        for s, slope in enumerate(self.slope_s.tolist()):
            speeds.setdefault(s if every else round(slope, 15), []).append(s)
        givers = [
            max((s for s in same if layers[s] > 1), key=lambda s: seconds[s], default=None)
            for same in speeds.values()
        ]
        takers = [
            min(
                (s for s in same if layers[s] < self.most[s]),
                key=lambda s: seconds[s],
                default=None,
            )
            for same in speeds.values()
        ]
        found = []
        for giver in givers:
            for taker in takers:
                if giver is None or taker is None or giver == taker:
                    continue
                other = layers.copy()
                other[giver] -= 1
                other[taker] += 1
                found.append(other)
        return found


def _cluster_of_group(cluster: ClusterSpec, group: NodeGroup) -> ClusterSpec:
    return cluster.model_copy(update={"groups": (group,)})


def _even(layers: int, stages: int) -> tuple[int, ...]:
    each, rest = divmod(layers, stages)
    return tuple(each + (s < rest) for s in range(stages))
