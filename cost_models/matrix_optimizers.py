"""The additional memory and time of optimizers that treat matrices separately: Adafactor and Muon.

Muon's update needs the whole matrix.  Megatron-Core's layer-wise optimizer (ZeRO 1, its distributed
Muon) assigns whole matrices to data-parallel ranks, balanced by cost, and gathers momenta over
tensor-parallel ranks, which all compute the same products (--muon-tp-mode duplicated); DeepSpeed's
ranks also update whole matrices.  Where torch shards each matrix, all its ranks gather the update
in half precision and compute the same products.  Gathering is not hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models import state_memory
from cost_models.arrays import max_of, maximum, minimum, sum_of, where
from cost_models.blocks.embedding import Embedding
from cost_models.blocks.head import Head
from cost_models.blocks.records import Split, Weight
from cost_models.kernel_times import HALF_BYTES, Machine
from cost_models.kernels import gemm_s
from cost_models.keyed_plans import CostContext, KeyedPlans
from cost_models.optimizer_matrices import Matrix, factors, matrices, newton_schulz_products
from cost_models.optimizers import OPTIMIZERS
from cost_models.placement import Axis, Placement
from cost_models.runtimes import traits
from cost_models.sources import Array

MOMENTUM_BYTES = 4.0

# A matrix before tensor parallelism splits it, and what a rank has of it.
Pair = tuple[Matrix, Matrix]
Value = Callable[[Matrix, Matrix], Array]


@dataclass(frozen=True)
class MatrixStep:
    """Seconds per step beyond those of the same number of other parameters.

    Of the update, and of gathering matrices over tensor-parallel and over data-parallel ranks.
    """

    update_s: Array
    tensor_gather_s: Array
    shard_gather_s: Array


class MatrixOptimizer:
    """The matrices of each stage slot under the training's optimizer; (plain, expert) pairs."""

    def __init__(self, s: CostContext, g: KeyedPlans) -> None:
        self._s, self._g = s, g
        self.rule = OPTIMIZERS[s.training.optimizer]
        self._element_bytes = state_memory.element_bytes(s.training, g.runtime).optimizer
        sharded = g.plans.zero_stage >= 1
        self._ranks = tuple(
            where(sharded, g.state.spread(ranks), 1.0)
            for ranks in (g.held.shards, g.held.expert_shards)
        )
        self._everywhere = np.asarray(g.runtime.gathers_sharded_matrices) > 0
        self._parameters = self._by_stage(lambda _, local: local.elements)
        self._largest = self._largest_value(lambda _, local: local.elements)

    def state_bytes(self, slot: int) -> Array:
        """Bytes of master weights and states beyond those of as many other parameters."""
        each = self._s.training.moment_bytes
        less = (self.rule.moments - self.rule.matrix_moments) * each
        total: Array = 0.0
        for elements, shard, factor_elements, ranks in self._groups(slot):
            total = total + shard * (self._element_bytes - less) + factor_elements * each / ranks
            total = total - elements * self._element_bytes / ranks
        return total

    def step(self, slot: int, step_bytes: Array, memory_bytes_per_s: float) -> MatrixStep:
        """step_bytes: what the update of another parameter moves."""
        less = 2.0 * (self.rule.moments - self.rule.matrix_moments) * self._s.training.moment_bytes
        own_bytes = step_bytes - less + self.rule.matrix_pass_bytes
        moved: Array = 0.0
        for elements, shard, _, ranks in self._groups(slot):
            moved = moved + shard * own_bytes - elements * step_bytes / ranks
        update = moved / memory_bytes_per_s
        if self.rule.newton_schulz_steps:
            update = update + self._products_s(slot)
        return MatrixStep(update, *self.gather_s(slot))

    def gather_s(self, slot: int) -> tuple[Array, Array]:
        """Seconds of gathering over tensor-parallel and over data-parallel ranks."""
        if not self.rule.newton_schulz_steps:
            return 0.0, 0.0
        tensor, shard = self._gathers_s
        groups = zip(self._groups(slot), tensor[slot], strict=True)
        over_tensor = sum_of(
            seconds * where(self._everywhere, 1.0, own_elements / maximum(elements, 1.0))
            for (elements, own_elements, _, _), seconds in groups
        )
        sharded = self._everywhere & (self._g.plans.zero_stage >= 1)
        return over_tensor, where(sharded, sum_of(shard[slot]), 0.0)

    def _products_s(self, slot: int) -> Array:
        """Seconds of the Newton-Schulz iterations of a rank."""
        total: Array = 0.0
        largest = self._largest_value(self._newton_schulz_s)
        for seconds, longest, ranks in zip(
            self._newton_schulz[slot], largest, self._ranks, strict=True
        ):
            share_s = self._share_of_rank(seconds, longest, ranks)
            total = total + where(self._everywhere, seconds, share_s)
        return total

    def _groups(self, slot: int) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Parameters held, those whose states are this rank's, factors, ranks that share."""
        for elements, largest, factor_elements, ranks in zip(
            self._parameters[slot], self._largest, self._factors[slot], self._ranks, strict=True
        ):
            yield elements, self._share_of_rank(elements, largest, ranks), factor_elements, ranks

    def _share_of_rank(self, total: Array, largest: Array, ranks: Array) -> Array:
        """A rank's part: even, but where matrices stay whole no less than the largest one."""
        if not self.rule.newton_schulz_steps:
            return total / ranks
        largest_share = maximum(total / ranks, minimum(total, largest))
        return where(self._everywhere, total / ranks, largest_share)

    @cached_property
    def _factors(self) -> Sequence[tuple[Array, Array]]:
        if not self.rule.factored:
            return [(0.0, 0.0)] * len(self._parameters)
        return self._by_stage(lambda _, local: factors(local.rows, local.columns))

    @cached_property
    def _newton_schulz(self) -> Sequence[tuple[Array, Array]]:
        return self._by_stage(self._newton_schulz_s)

    def _newton_schulz_s(self, full: Matrix, _: Matrix) -> Array:
        return newton_schulz_s(full, self._s.machine, self.rule.newton_schulz_steps)

    @cached_property
    def _gathers_s(self) -> tuple[Sequence[tuple[Array, Array]], Sequence[tuple[Array, Array]]]:
        placement, fabric = Placement(self._g.state_plans), self._s.fabric
        cast = traits(self._g.state_plans.runtime).gathers_sharded_matrices
        element = MOMENTUM_BYTES - (MOMENTUM_BYTES - HALF_BYTES) * cast

        def gather(payload: Array, axis: Axis) -> Array:
            return fabric.transfer("all_gather", payload, axis)

        def over_tensor(full: Matrix, matrix: Matrix) -> Array:
            axis = placement.etp if full.expert else placement.tp
            split = np.not_equal(full.elements, matrix.elements)
            return split * gather(full.elements * element, axis)

        def over_shards(_: Matrix, matrix: Matrix) -> Array:
            axis = placement.expert_shard if matrix.expert else placement.shard
            return gather(matrix.elements * HALF_BYTES, axis)

        return self._by_stage(over_tensor), self._by_stage(over_shards)

    @cached_property
    def _layers(self) -> list[list[Pair]]:
        """The matrices of one layer of each kind."""
        return [list(self._pairs(kind.weights)) for kind in self._s.kinds]

    @cached_property
    def _ends(self) -> tuple[list[Pair], list[Pair]]:
        """The matrices before the first layer and after the last, by key."""
        model, g = self._s.model, self._g
        hidden, keys = float(model.hidden_size), g.state_plans
        predictions = Matrix(hidden, 2.0 * hidden, float(model.mtp_num_layers), False)
        split = Matrix(hidden / keys.tp, 2.0 * hidden, float(model.mtp_num_layers), False)
        last = [(predictions, split)] if model.mtp_num_layers else []
        if not self.rule.tables:
            return [], last
        copies = (model.tied_embeddings + (model.mtp_num_layers > 0)) * (keys.pp > 1)
        table = Matrix(g.held.word_table / hidden, hidden, copies, False)
        head = self._pairs(Head().weights)
        return list(self._pairs(Embedding().weights)), [*head, (table, table), *last]

    def _pairs(self, weights: Callable[..., Iterable[Weight]]) -> Iterator[Pair]:
        model, keys = self._s.model, self._g.state_plans
        tp, etp, ep = (np.asarray(a, dtype=np.float64) for a in (keys.tp, keys.etp, keys.ep))
        yield from zip(
            *(
                matrices(weights(model, split), model.hidden_size, self.rule.tables)
                for split in (Split(ep=ep), Split(tp, etp, ep))
            ),
            strict=True,
        )

    def _by_stage(self, value: Value) -> Sequence[tuple[Array, Array]]:
        """(plain, expert) sums over the matrices of each stage slot, per plan."""
        at = self._g.state.spread

        def total(pairs: list[Pair], expert: bool) -> Array:
            return sum_of(
                local.count * value(full, local) for full, local in pairs if local.expert == expert
            )

        size = len(self._g.state_plans)

        def spread(amount: Array) -> Array:
            per_plan: Array = at(np.broadcast_to(np.asarray(amount, dtype=np.float64), (size,)))
            return per_plan

        layers = [(spread(total(p, False)), spread(total(p, True))) for p in self._layers]
        first, last = (spread(total(pairs, False)) for pairs in self._ends)
        return self._g.by_stage(layers, first, last)

    def _largest_value(self, value: Value) -> tuple[Array, Array]:
        """The largest value of one matrix of any layer: (plain, expert)."""
        size, at = len(self._g.state_plans), self._g.state.spread
        columns = []
        for expert in (False, True):
            each = [
                value(full, local)
                for pairs in self._layers
                for full, local in pairs
                if local.expert == expert
            ]
            largest = max_of(each) if each else 0.0
            columns.append(at(np.broadcast_to(np.asarray(largest, dtype=np.float64), (size,))))
        return columns[0], columns[1]


def newton_schulz_s(matrix: Matrix, machine: Machine, steps: int) -> Array:
    """Seconds that make one matrix approximately orthogonal, always in half precision."""
    if machine.instant:
        return 0.0
    chip = machine.accelerator
    peak = chip.peak_bf16_flop_per_s or chip.peak_fp16_flop_per_s or machine.matrix_flop_per_s
    rate = peak * machine.fitted.sustained_fraction(machine.profile.steady)
    bandwidth, efficiency = chip.memory_bytes_per_s, machine.profile.gemm["bf16"]
    step_s: Array = sum_of(
        gemm_s(*shape, rate, bandwidth, efficiency)
        for shape in newton_schulz_products(matrix.rows, matrix.columns)
    )
    return steps * step_s
