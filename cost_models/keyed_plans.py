"""A batch of plans grouped by the few fields that each cost depends on (see `cost_models/keys.py`).

Each cost is computed once per group, for memory and time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.activation_memory import (
    MicroBatch,
    MicroBatchBytes,
    micro_batch,
    micro_batch_bytes,
)
from cost_models.arrays import maximum, minimum, per_row, where
from cost_models.collectives import COMMUNICATION_FIELDS
from cost_models.data_parallel import (
    TRAINED,
    HeldParameters,
    frozen_amounts,
    gathered_amounts,
    held_parameters,
)
from cost_models.kernel_times import Machine
from cost_models.keys import Groups, Key, KeyView, Memo
from cost_models.layers import LayerKind
from cost_models.network import Fabric
from cost_models.objectives import reference_share
from cost_models.placement import GROUP_FIELDS
from cost_models.plans import VOCABULARIES, IntArray, Plans
from cost_models.profiles import EfficiencyProfile
from cost_models.runtimes import traits
from cost_models.runtimes.base import Traits
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import PipelineSchedule
from cost_models.sources import Array
from cost_models.spec import ClusterSpec, ModelSpec, NodeGroup, TrainingSpec
from cost_models.stages import StageTable, stage_table

FloatArray = NDArray[np.float64]
LayerParameters = tuple[tuple[Array, Array], ...]
Stages = tuple[Groups, StageTable]

# What one micro-batch of a layer, of the embedding and of the head depends on, and what holding and
# reducing parameters depends on.
LAYER_KEY = Key(*COMMUNICATION_FIELDS, "dynamic_cp")
SIZED_LAYER_KEY = Key(*LAYER_KEY.fields, "seq_length")
STATE_KEY = Key(*GROUP_FIELDS, "runtime")


@dataclass(frozen=True)
class CostContext:
    """A model on a cluster with a batch, and the rates that apply there.

    memo: cached amounts for small sets of keys; none of them depends on the size of the batch.
    """

    model: ModelSpec
    cluster: ClusterSpec
    nodes: NodeGroup
    training: TrainingSpec
    profile: EfficiencyProfile
    fabric: Fabric
    machine: Machine
    kinds: tuple[LayerKind, ...]
    memo: Memo = field(default_factory=Memo, compare=False, repr=False)


@dataclass(frozen=True)
class KeyedPlans:
    """A batch of plans, their distinct keys, and the amounts each key stands for.

    layers, state, stages: the groups of plans by LAYER_KEY, by STATE_KEY and by the assignment of
    layers to stages; layer_plans, state_plans: one row for each key.  held: all weights, as if all
    were trained; trained: those that are; frozen: bytes of frozen weights and of the reference
    model; None: there are none.
    """

    plans: Plans
    layers: Groups
    layer_plans: KeyView
    state: Groups
    state_plans: KeyView
    stages: Groups
    table: StageTable
    micro: MicroBatch
    bytes: MicroBatchBytes
    held: HeldParameters
    trained: HeldParameters
    frozen: HeldParameters | None
    micro_batches: FloatArray

    @cached_property
    def runtime(self) -> Traits:
        """The traits of each plan's runtime."""
        return traits(self.plans.runtime)

    @cached_property
    def layer_parameters(self) -> LayerParameters:
        """(plain, expert) parameters of one layer of each kind, per plan."""
        return self._per_layer(self.held)

    @cached_property
    def trained_layer_parameters(self) -> LayerParameters:
        """(plain, expert) trained parameters of one layer of each kind, per plan."""
        return self._per_layer(self.trained)

    @cached_property
    def stage_parameters(self) -> Sequence[tuple[Array, Array]]:
        """(plain, expert) parameters a rank of each stage slot holds, per plan."""
        return self._per_stage(self.held, self.layer_parameters)

    @cached_property
    def trained_stage_parameters(self) -> Sequence[tuple[Array, Array]]:
        """(plain, expert) trained parameters a rank of each stage slot holds, per plan."""
        if self.trained is self.held:
            return self.stage_parameters
        return self._per_stage(self.trained, self.trained_layer_parameters)

    @cached_property
    def frozen_stage_bytes(self) -> Sequence[tuple[Array, Array]]:
        """(plain, expert) bytes of frozen weights and of a reference model on each stage slot."""
        if self.frozen is None:
            return [(0.0, 0.0)] * len(self.table.stage)
        return self._per_stage(self.frozen, self.frozen_layer_bytes)

    def offloaded_share(self, slot: int) -> Array:
        """The share of a stage's saved activations that waits in host memory: 0 to 1."""
        plans = self.plans
        layers = sum(self.stages.spread(each[slot]) for each in self.table.layers)
        share = minimum(plans.offload_num_layers / maximum(layers, 1), 1.0)
        shares: Array = where(plans.offload_num_layers > 0, share, 1.0)
        return plans.offload_activations * shares

    def take(self, rows: IntArray) -> KeyedPlans:
        """A subset of the plans; the amounts of keys are shared."""
        return replace(
            self,
            plans=self.plans.take(rows),
            layers=self.layers.take(rows),
            state=self.state.take(rows),
            stages=self.stages.take(rows),
            micro_batches=self.micro_batches[rows]
            if self.micro_batches.ndim
            else self.micro_batches,
        )

    def with_layout(self, model: ModelSpec, plans: Plans) -> KeyedPlans:
        """The same for plans that differ only in what decides which stage holds or recomputes
        which layers.
        """
        stages, table = stage_table(model, plans)
        return replace(self, plans=plans, stages=stages, table=table)

    @cached_property
    def frozen_layer_bytes(self) -> LayerParameters:
        """(plain, expert) bytes of frozen weights in one layer of each kind."""
        if self.frozen is None:
            return ((0.0, 0.0),) * len(self.held.layers)
        return self._per_layer(self.frozen)

    def _per_layer(self, parameters: HeldParameters) -> LayerParameters:
        at = self.state.spread
        return tuple((at(layer.plain), at(layer.expert)) for layer in parameters.layers)

    def _per_stage(self, parameters: HeldParameters, each: LayerParameters) -> _PerStage:
        """The word table stands on the first stage; the head, a tied copy and what multi-token
        prediction adds stand once on the last one.
        """
        at = self.state.spread
        return self.by_stage(each, at(parameters.embedding), at(parameters.head + parameters.mtp))

    def by_stage(
        self, layers: Iterable[tuple[Array, Array]], first: Array, last: Array
    ) -> _PerStage:
        """(plain, expert) sums over a stage of each slot, per plan: of a layer of each kind, and of
        what stands before the first and after the last.
        """
        return _PerStage(self.stages, self.table, tuple(layers), first, last)


class _PerStage(Sequence[tuple[Array, Array]]):
    """Sums over a stage of each slot, taken when they are asked for."""

    def __init__(
        self, stages: Groups, table: StageTable, layers: LayerParameters, first: Array, last: Array
    ) -> None:
        self._at_stage, self._table = stages.spread, table
        self._layers, self._first, self._last = layers, first, last
        self._sums_of_slot: dict[int, tuple[Array, Array]] = {}

    def __len__(self) -> int:
        return len(self._table.stage)

    def __getitem__(self, slot: Any) -> Any:
        if slot not in self._sums_of_slot:
            if slot >= len(self):
                raise IndexError(slot)
            self._sums_of_slot[slot] = self._sums(slot)
        return self._sums_of_slot[slot]

    def _sums(self, slot: int) -> tuple[Array, Array]:
        at_stage, table = self._at_stage, self._table
        is_last = at_stage(table.last[slot]) > 0
        plain: Array = at_stage(table.first[slot]) * self._first + is_last * self._last
        expert: Array = 0.0
        for kind, (per_layer, per_layer_expert) in enumerate(self._layers):
            count = at_stage(table.layers[kind][slot])
            plain = plain + count * per_layer
            expert = expert + count * per_layer_expert
        return plain, expert


def gather(
    s: CostContext, plans: Plans, stages_of: Callable[[ModelSpec, Plans], Stages] = stage_table
) -> KeyedPlans:
    """Find the distinct keys of some plans and what they hold.

    stages_of: how layers fall on stages; mean_stages where that is open.
    """
    key = LAYER_KEY if plans.seq_length is None else SIZED_LAYER_KEY
    layers, layer_plans = key.distinct(plans)
    state, state_plans = STATE_KEY.distinct(plans)
    stages, table = stages_of(s.model, plans)
    count = plans.micro_batches(s.training.global_batch_size)
    micro, held_bytes = s.memo.of("bytes", layer_plans, lambda: _micro_batch(s, layer_plans))
    held, trained, frozen = s.memo.of("held", state_plans, lambda: _counts(s, state_plans))
    return KeyedPlans(
        plans, layers, layer_plans, state, state_plans, stages, table, micro, held_bytes,
        held, trained, frozen, count if plans.is_one else per_row(count, len(plans)),
    )  # fmt: skip


def _micro_batch(s: CostContext, keys: KeyView) -> tuple[MicroBatch, MicroBatchBytes]:
    micro = micro_batch(s.model, s.training, keys)
    return micro, micro_batch_bytes(s.model, micro, len(keys))


def _counts(
    s: CostContext, keys: KeyView
) -> tuple[HeldParameters, HeldParameters, HeldParameters | None]:
    """All weights, those that are trained, and bytes of the frozen ones."""
    parameters = held_parameters(s.model, keys, s.training, gathered_amounts(s.training))
    trained, frozen = parameters, None
    if s.training.freezes:
        trained = held_parameters(s.model, keys, s.training, TRAINED)
    reference = reference_share(s.model, s.training)
    if s.training.freezes or reference:
        amounts = frozen_amounts(s.training, keys, reference)
        frozen = held_parameters(s.model, keys, s.training, amounts)
    return parameters, trained, frozen


def by_schedule(plans: Plans, value: Callable[[PipelineSchedule], Array]) -> Array:
    """What `value` says of each plan's own schedule."""
    if plans.schedule.ndim == 0:
        return value(SCHEDULES[VOCABULARIES["schedule"][int(plans.schedule)]])
    result: Array | None = None
    for c in np.unique(plans.schedule).tolist():
        scheduled = value(SCHEDULES[VOCABULARIES["schedule"][c]])
        result = scheduled if result is None else where(plans.schedule == c, scheduled, result)
    assert result is not None
    return result
