"""The only composer: (model, cluster, training, plans, profile) -> time and memory of each plan.

Costs per layer and per process group are computed once per distinct key and gathered per plan
(keyed_plans.py); the rest is arithmetic on arrays over plans (stage_memory.py, step_time.py).
The worst stage decides memory and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.arrays import per_row, sum_of
from cost_models.cost_parts import TIME_PARTS
from cost_models.data_parallel import DataParallelSeconds
from cost_models.fitted import Fitted, fitted
from cost_models.kernel_times import KernelTime, Machine
from cost_models.keyed_plans import CostContext, FloatArray, KeyedPlans, gather
from cost_models.keys import Memo
from cost_models.layers import layers_of
from cost_models.network import Fabric
from cost_models.optimizers import OPTIMIZERS
from cost_models.plans import ParallelPlan, Plans
from cost_models.profiles import EfficiencyProfile, profile_for
from cost_models.schedules.simulate import Links, Times
from cost_models.sources import Array
from cost_models.spec import DTYPE_BYTES, ClusterSpec, ModelSpec, TrainingSpec
from cost_models.stage_memory import StageMemory, least_needed_bytes
from cost_models.stage_states import paged_bytes
from cost_models.stages import mean_stages, plan_stages
from cost_models.step_time import (
    BlockTimes,
    data_parallel,
    imbalance_s,
    least_step_s,
    message_s,
    step_time,
    straggler_s,
)
from cost_models.synchronisation import paging_s
from cost_models.traffic import GroupTraffic, traffic

# Parts of a step that the simulator's chunks hold.
IN_CHUNKS = ("forward", "backward", "recompute", "tp_comm", "cp_comm", "ep_comm")


@dataclass(frozen=True)
class Estimates:
    """Time and memory of plans; arrays of shape (plans,), per stage (slots, plans).

    times, dp: the amounts that they are composed of, before any correction.  corrected: the factor
    by which a site's runs multiply the times; None without a site.
    """

    model: ModelSpec

    iteration_time_s: FloatArray
    time_parts_s: dict[str, FloatArray]
    peak_bytes: FloatArray
    needed_bytes: FloatArray
    memory: StageMemory
    num_micro_batches: FloatArray
    gathered: KeyedPlans
    times: BlockTimes
    dp: DataParallelSeconds
    corrected: FloatArray | None = None

    @property
    def kernels(self) -> tuple[tuple[KernelTime, ...], ...]:
        """The costs of each kind of layer: arrays over the layer keys of `keyed_plans`."""
        return self.times.kernels

    def outside_chunks_s(self, plan: ParallelPlan, times: Times, row: int = 0) -> float:
        """Seconds of a step that the simulator's chunks do not hold; times: those chunks.

        What happens once, and, since chunks have what another micro-batch hides of expert
        communication, what nothing hides of it while the pipeline fills and drains.
        """
        parts_s = {name: float(values[row]) for name, values in self.time_parts_s.items()}
        once_s = sum(parts_s[name] for name, part in TIME_PARTS.items() if part.once)
        if not plan.overlap_ep:
            return once_s
        inside_s = float(self.num_micro_batches[row] * times.work_s.max())
        return once_s + max(sum(parts_s[name] for name in IN_CHUNKS) - inside_s, 0.0)

    def stage_times(self, plan: ParallelPlan, row: int = 0) -> tuple[Times, Links]:
        """The simulator's input for one plan: seconds per rank and chunk, and of messages.

        Shapes (pp, vpp).  A message blocks its sender unless the plan overlaps it.
        row: the index of the plan among those estimated.
        """
        virtual = plan_stages(self.model, plan)
        corrected = 1.0 if self.corrected is None else float(self.corrected[row])

        def at(value: Array) -> float:
            if isinstance(value, np.ndarray) and value.ndim:
                value = value[row]
            return corrected * float(value)

        parts_s = self.times.virtual_stages_s(virtual, np.array([row]))
        # The chunks of a rank are its virtual stages in forward order.
        spots = np.argsort(virtual.owner, kind="stable")
        shape = (plan.pp, plan.vpp)
        forward, backward, weight = (corrected * each[spots].reshape(shape) for each in parts_s)
        hidden = plan.overlap_p2p and plan.vpp > 1
        message = at(message_s(self.gathered, self.dp)) if plan.pp > 1 else 0.0
        return Times(forward, backward, weight), Links(0.0, message, blocking=not hidden)


@lru_cache(maxsize=256)
def _memo(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    profile: EfficiencyProfile,
    constants: Fitted,
) -> Memo:
    """The amounts that cost models of one model on one cluster share, whatever the batch."""
    return Memo()


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
        self.context = CostContext(
            model, cluster, nodes, training, chosen, fabric,
            Machine(
                nodes.accelerator, chosen, fabric, training.precision,
                float(DTYPE_BYTES[training.gradient_dtype]), training.fp8_recipe,
                self.fitted, nodes.accelerators_per_node,
            ),
            layers_of(model).kinds,
            _memo(model, cluster, training.without_batch(), chosen, self.fitted),
        )  # fmt: skip

    def evaluate(self, plans: Plans, all_stages: bool = False) -> Estimates:
        """Every time part of each plan, and the memory of its stages (plans must be legal).

        all_stages=False omits the memory of stages that another stage bounds in every part.
        """
        if len(plans) == 1:
            plans = plans.as_numbers()  # a third faster than arrays of one
        gathered = gather(self.context, plans)
        memory = StageMemory(self.context, gathered, all_stages)
        dp = data_parallel(self.context, gathered)
        times = BlockTimes(self.context, gathered, dp)
        parts = step_time(self.context, gathered, dp, times)
        if OPTIMIZERS[self.context.training.optimizer].paged:
            parts["offload"] = parts["offload"] + self._paging_s(gathered, memory)
        waiting = imbalance_s(self.context, gathered, times)
        parts["stragglers"] = straggler_s(self.context, plans, parts) + waiting
        total = np.asarray(sum_of(parts[name] for name in TIME_PARTS))
        return Estimates(
            self.context.model, total, parts, memory.peak_bytes, memory.needed_bytes, memory,
            per_row(gathered.micro_batches, len(plans)), gathered, times, dp,
        )  # fmt: skip

    def _paging_s(self, gathered: KeyedPlans, memory: StageMemory) -> Array:
        """Seconds of a step in which states of the optimizer come from the host and go there."""
        nodes = self.context.nodes
        assert nodes.host_link_bytes_per_s is not None  # planner.constraints.step refuses others
        free_bytes = nodes.accelerator.memory_bytes - memory.needed_bytes
        states = paged_bytes(self.context, gathered)
        return paging_s(states, free_bytes, nodes.host_link_bytes_per_s)

    def stage_times(self, plan: ParallelPlan) -> tuple[Times, Links]:
        """The simulator's input for one plan (see Estimates.stage_times)."""
        return self.evaluate(Plans.from_rows([plan])).stage_times(plan)

    def traffic(self, plan: ParallelPlan) -> tuple[GroupTraffic, ...]:
        """The traffic of each kind of process group of a legal plan on the links of each tier."""
        return tuple(traffic(self.context, plan))

    def layer_s(self, plan: ParallelPlan) -> float:
        """Seconds of one micro-batch through one layer, forward and backward, with recompute."""
        s = self.context
        g = gather(s, Plans.from_rows([plan]))
        times = BlockTimes(s, g, data_parallel(s, g))
        recompute_s = times.again_s[0] if plan.recompute == "full" else 0.0
        return float(np.max(times.whole_s[0] + recompute_s))

    def least_bytes(self, plans: Plans) -> FloatArray:
        """A lower bound on the bytes of the fullest rank, over all layouts of layers on stages.

        For plans without a layout; full recompute may be of any number of layers.
        """
        return self._least_bytes(gather(self.context, plans, mean_stages))

    def least(self, plans: Plans) -> tuple[FloatArray, FloatArray]:
        """`least_bytes`, and a lower bound on the seconds of a step, over the same layouts."""
        gathered = gather(self.context, plans, mean_stages)
        seconds = least_step_s(self.context, gathered)
        return self._least_bytes(gathered), np.broadcast_to(seconds, (len(plans),))

    def _least_bytes(self, gathered: KeyedPlans) -> FloatArray:
        needed = least_needed_bytes(self.context, gathered)
        return np.broadcast_to(needed, (len(gathered.plans),))

    def gathered(self, plans: Plans) -> KeyedPlans:
        """Plans with their distinct keys and the amounts of these."""
        return gather(self.context, plans)

    def needed_bytes(self, plans: Plans) -> FloatArray:
        """The least memory that the worst stage runs with, without the times."""
        return self.needed_bytes_of(self.gathered(plans))

    def needed_bytes_of(self, gathered: KeyedPlans) -> FloatArray:
        """The least memory that the worst stage runs with, of plans with their keys."""
        return StageMemory(self.context, gathered, False).needed_bytes
