"""What the composers of memory and time share: the setting, and keys gathered per plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models.activation_memory import MicroBatchBytes, micro_batch_bytes
from cost_models.data_parallel import HeldParameters, held_parameters
from cost_models.grouping import Groups, group
from cost_models.kernel_times import Machine
from cost_models.network import Fabric
from cost_models.plans import VOCABULARIES, Plans
from cost_models.profiles import EfficiencyProfile
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import PipelineSchedule
from cost_models.sources import Array
from cost_models.spec import ClusterSpec, LayerKind, ModelSpec, NodeGroup, TrainingSpec
from cost_models.stages import KINDS, StageTable, stage_table

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A model on a cluster with a batch, and the rates that apply there."""

    model: ModelSpec
    cluster: ClusterSpec
    nodes: NodeGroup
    training: TrainingSpec
    profile: EfficiencyProfile
    fabric: Fabric
    machine: Machine
    kinds: tuple[LayerKind, ...]


@dataclass(frozen=True)
class Gathered:
    """A batch of plans, their distinct keys, and the amounts each key stands for.

    Group maps: `layers` (what one micro-batch of one layer depends on), `state` (what holding
    and reducing parameters depends on), `stages` (how layers fall on stages).
    """

    plans: Plans
    layers: Groups
    state: Groups
    stages: Groups
    table: StageTable
    bytes: MicroBatchBytes
    held: HeldParameters
    micro_batches: FloatArray

    @cached_property
    def layer_parameters(self) -> dict[LayerKind, tuple[Array, Array]]:
        """(plain, expert) parameters of one layer of each kind, per plan."""
        at = self.state.spread
        return {k: (at(held.plain), at(held.expert)) for k, held in self.held.layers.items()}

    @cached_property
    def stage_parameters(self) -> list[tuple[Array, Array]]:
        """(plain, expert) parameters a rank of each stage slot holds, per plan.

        The word table stands on the first stage; the head, a tied copy and what multi-token
        prediction adds stand once on the last one.
        """
        at_stage, at_state = self.stages.spread, self.state.spread
        word_table = at_state(self.held.embedding)
        head = at_state(self.held.head + self.held.mtp)
        slots = []
        for slot in range(len(self.table.stage)):
            first, last = at_stage(self.table.first[slot]), at_stage(self.table.last[slot]) > 0
            plain: Array = first * word_table + last * head
            expert: Array = 0.0
            for kind, (per_layer, per_layer_expert) in self.layer_parameters.items():
                layers = at_stage(self.table.layers[KINDS.index(kind)][slot])
                plain = plain + layers * per_layer
                expert = expert + layers * per_layer_expert
            slots.append((plain, expert))
        return slots


def gather(s: Setting, plans: Plans, all_stages: bool) -> Gathered:
    """Find the distinct keys of some plans and what they hold; all_stages: dominated ones too."""
    layers = group(
        plans.tp, plans.sequence_parallel, plans.cp, plans.cp_kind, plans.ep, plans.etp,
        plans.micro_batch_size, plans.recompute_modules, plans.attention_kernel,
        plans.cross_entropy, plans.moe_dispatcher, plans.overlap_tp, plans.stack,
        plans.compile, plans.overlap_ep,
    )  # fmt: skip
    state = group(
        plans.tp, plans.cp, plans.pp, plans.dp, plans.dp_shard, plans.ep, plans.etp,
        plans.rank_order, plans.stack,
    )  # fmt: skip
    stages, table = stage_table(s.model, plans, all_stages)
    count = s.training.global_batch_size / (plans.dp * plans.micro_batch_size)
    return Gathered(
        plans, layers, state, stages, table,
        micro_batch_bytes(s.model, s.training, plans.take(layers.first)),
        held_parameters(s.model, plans.take(state.first)),
        np.broadcast_to(count, (len(plans),)),
    )  # fmt: skip


def by_schedule(plans: Plans, value: Callable[[PipelineSchedule], Array]) -> Array:
    """What `value` says of each plan's own schedule."""
    if plans.schedule.ndim == 0:
        return value(SCHEDULES[VOCABULARIES["schedule"][int(plans.schedule)]])
    result: Array | None = None
    for c in np.unique(plans.schedule).tolist():
        own = value(SCHEDULES[VOCABULARIES["schedule"][c]])
        result = own if result is None else np.where(plans.schedule == c, own, result)
    assert result is not None
    return result


def sum_of(values: Iterable[Array]) -> Array:
    """Sum of arrays that broadcast; 0 of none."""
    several = iter(values)
    total: Array = next(several, 0.0)
    for value in several:
        total = total + value
    return total


def max_of(values: Iterable[Array]) -> Array:
    """Element-wise maximum of non-negative arrays that broadcast; 0 of none."""
    result: Array = 0.0
    for value in values:
        result = np.maximum(result, value)
    return result
