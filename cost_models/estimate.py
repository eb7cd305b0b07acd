"""The only composer: (model, cluster, training, plans, profile) -> time and memory of each plan.

Costs per layer and per process group are computed once per distinct key and gathered
(gathered.py); what is left per plan is arithmetic on arrays (stage_memory.py, step_time.py).
The worst stage decides memory and time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.arrays import sum_of
from cost_models.fitted import Fitted, fitted
from cost_models.gathered import FloatArray, Gathered, Setting, gather
from cost_models.kernel_times import KernelTime, Machine
from cost_models.layers import layers_of
from cost_models.network import Fabric
from cost_models.parts import TIME_PARTS
from cost_models.plans import ParallelPlan, Plans
from cost_models.profiles import EfficiencyProfile, profile_for
from cost_models.schedules.simulate import Links, Times
from cost_models.sources import Array
from cost_models.spec import DTYPE_BYTES, ClusterSpec, ModelSpec, TrainingSpec
from cost_models.stage_memory import StageMemory
from cost_models.stages import plan_stages
from cost_models.step_time import (
    BlockTimes,
    data_parallel,
    imbalance_s,
    message_s,
    step_time,
    straggler_s,
)
from cost_models.traffic import GroupTraffic, traffic


@dataclass(frozen=True)
class Estimates:
    """Time and memory of plans; arrays of shape (plans,), per stage (slots, plans).

    kernels: of each kind of layer, arrays by the layer keys of `gathered`.  corrected: what the
    times were multiplied by for one site; None: they are this model's.
    """

    iteration_time_s: FloatArray
    time_parts_s: dict[str, FloatArray]
    peak_bytes: FloatArray
    needed_bytes: FloatArray
    memory: StageMemory
    num_micro_batches: FloatArray
    gathered: Gathered
    kernels: tuple[tuple[KernelTime, ...], ...]
    corrected: FloatArray | None = None


class CostModel:
    """A model on a cluster with a batch, priced with one efficiency profile."""

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        training: TrainingSpec,
        profile: EfficiencyProfile | None = None,
        constants: Fitted | None = None,
    ) -> None:
        self.fitted = constants or fitted()
        if len(cluster.groups) != 1:
            raise ValueError("a mixed cluster has no single machine to price")
        nodes = cluster.groups[0]
        chosen = profile or profile_for(nodes.accelerator)
        link = chosen.collective_link_bytes_per_s or nodes.network[0].bandwidth_bytes_per_s
        fabric = Fabric(nodes.network, chosen, link)
        self.setting = Setting(
            model, cluster, nodes, training, chosen, fabric,
            Machine(
                nodes.accelerator, chosen, fabric, training.precision,
                float(DTYPE_BYTES[training.gradient_dtype]), training.fp8_recipe,
                self.fitted, nodes.accelerators_per_node,
            ),
            layers_of(model).kinds,
        )  # fmt: skip

    def evaluate(self, plans: Plans, all_stages: bool = False) -> Estimates:
        """Every time part of each plan, and the memory of its stages (plans must be legal).

        all_stages=False leaves out the memory of stages that another one bounds in every part.
        """
        if len(plans) == 1:
            # Numbers instead of arrays of one: a third faster.
            plans = plans.with_columns(**{n: c.reshape(()) for n, c in plans.columns()})
        gathered = gather(self.setting, plans)
        memory = StageMemory(self.setting, gathered, all_stages)
        dp = data_parallel(self.setting, gathered)
        times = BlockTimes(self.setting, gathered, dp)
        parts = step_time(self.setting, gathered, dp, times)
        waiting = imbalance_s(self.setting, gathered, times)
        parts["stragglers"] = straggler_s(self.setting, plans, parts) + waiting
        total = np.asarray(sum_of(parts[name] for name in TIME_PARTS))
        return Estimates(
            total, parts, memory.peak_bytes, memory.needed_bytes, memory, gathered.micro_batches,
            gathered, times.kernels,
        )  # fmt: skip

    def stage_times(self, plan: ParallelPlan) -> tuple[Times, Links]:
        """What the simulator needs of one plan: seconds per rank and chunk, and its messages.

        Shapes (pp, vpp).  A message holds its sender as long as the plan cannot overlap it.
        """
        s = self.setting
        row = Plans.from_rows([plan])
        g = gather(s, row)
        dp = data_parallel(s, g)
        times = BlockTimes(s, g, dp)
        virtual = plan_stages(s.model, plan)

        def one(value: Array) -> float:
            return float(np.max(value))

        shape = (plan.pp, plan.vpp)
        forward, backward, weight = (np.zeros(shape) for _ in range(3))
        seen = np.zeros(plan.pp, dtype=np.int64)
        for i, rank in enumerate(virtual.owner.tolist()):
            chunk = int(seen[rank])
            seen[rank] += 1
            total = virtual.first[i] * one(times.whole_ends_s[0])
            total += virtual.last[i] * one(times.whole_ends_s[1]) * (1 + s.model.mtp_num_layers)
            ahead = gradient = 0.0
            for end, there in ((times.embedding, virtual.first[i]), (times.head, virtual.last[i])):
                ahead += there * one(end["forward_s"] + end["forward_comm_s"])
                gradient += there * one(end["weight_gradient_s"])
            for k, block in enumerate(times.layers):
                count, redone = virtual.layers[k][i], virtual.recomputed[k][i]
                ahead += count * one(block["forward_s"] + block["forward_comm_s"])
                gradient += count * one(block["weight_gradient_s"])
                total += count * one(times.whole_s[k]) + redone * one(times.again_s[k])
            forward[rank, chunk] = ahead
            weight[rank, chunk] = gradient
            backward[rank, chunk] = max(total - ahead - gradient, 0.0)
        hidden = plan.overlap_p2p and plan.vpp > 1
        message = one(message_s(g, dp)) if plan.pp > 1 else 0.0
        return Times(forward, backward, weight), Links(0.0, message, blocking=not hidden)

    def traffic(self, plan: ParallelPlan) -> tuple[GroupTraffic, ...]:
        """What each kind of group of a legal plan puts on the links of each tier."""
        return tuple(traffic(self.setting, plan))

    def layer_s(self, plan: ParallelPlan) -> float:
        """Seconds of one micro-batch through one layer, forward and backward, with recompute."""
        s = self.setting
        g = gather(s, Plans.from_rows([plan]))
        times = BlockTimes(s, g, data_parallel(s, g))
        again = times.again_s[0] if plan.recompute == "full" else 0.0
        return float(np.max(times.whole_s[0] + again))

    def gathered(self, plans: Plans) -> Gathered:
        """The distinct keys of some plans and what they hold."""
        return gather(self.setting, plans)

    def needed_bytes(self, plans: Plans) -> FloatArray:
        """The least memory that the worst stage runs with, without the times."""
        return self.needed_bytes_of(self.gathered(plans))

    def needed_bytes_of(self, gathered: Gathered) -> FloatArray:
        """The same of gathered plans."""
        return StageMemory(self.setting, gathered, False).needed_bytes
