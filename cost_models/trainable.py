"""Which weights are trained: frozen parts and low-rank adapters, as changes to a model's records.

A frozen GEMM has no weight gradient and saves no input for one; its weights have no gradient, no
optimizer state and no master copy.  What adapters add beside it is in adapter_records.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from cost_models.adapter_records import Adapters, casts
from cost_models.adapters import adapted
from cost_models.arrays import max_of
from cost_models.blocks.base import Block, End, Mixer
from cost_models.blocks.head import Head
from cost_models.blocks.norm import Norm
from cost_models.blocks.records import (
    Gemm,
    HostOperations,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
    Working,
)
from cost_models.dims import Dims, dims
from cost_models.encoders import before_layers
from cost_models.layers import LayerKind, layers_of
from cost_models.parameters import elements, total_parameters
from cost_models.plans import ParallelPlan, Plans
from cost_models.runtimes.base import Traits
from cost_models.sources import Array, formula
from cost_models.spec import ModelSpec, TrainingSpec

# Saved tensors that only the weight gradients of these GEMMs read.
INPUTS: dict[str, tuple[str, ...]] = {
    "attention norm output": ("qkv", "mla down", "mla q up"),
    "mla norm output": ("mla q up", "mla kv up"),
    "attention output cast": ("attention out",),
    "mlp norm output": ("fc1", "router", "shared fc1"),
    "activation output": ("fc2",),
    "shared input": ("shared fc1",),
    "shared activation output": ("shared fc2",),
    "expert input": ("expert fc1",),
    "expert activation output": ("expert fc2",),
    "last norm output": ("logits", "mtp projection"),
}
# What only the gradients of norms' weights read.
NORM_ROWS = " norm rows"
# GEMMs whose input the kernel before them keeps anyway.
KEPT_INPUTS = ("attention out",)
HALF_BYTES = 2.0
# 4 bits, a scale of 8 bits for each 64 and one of 32 bits for each 256 of those (QLoRA, section 3).
NF4_BYTES = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0)
PLAIN_NF4_BYTES = 0.5 + 4.0 / 64.0
# What the host takes for unpacking a matrix (bitsandbytes' MatMul4Bit, with scales that are
# quantized themselves), in launches of others: measured on an H200 whose GPU waited for its host.
UNPACKING_OPERATIONS = 7.0
# Transformer Engine caches the cast weight and its transpose.
CAST_WEIGHT_BYTES = {"fp8": 2.0, "fp4": 2.0 * (0.5 + 1.0 / 16.0)}


@formula("byte", "qlora", "transformer-engine")
def frozen_bytes(training: TrainingSpec, runtime: Traits) -> Array:
    """Bytes of one frozen weight of a layer and of its low-precision copies, all that there are."""
    stored: Array = stored_bytes(training)
    if training.packs_frozen:
        stored = stored + runtime.plain_scales * (PLAIN_NF4_BYTES - NF4_BYTES)
    cast = CAST_WEIGHT_BYTES.get(training.precision, 0.0)
    # A weight that is stored in fp8 is itself the copy that is not transposed.
    own_copies = stored * (training.gathered_weight_bytes < training.weight_bytes)
    return stored + (cast - own_copies) * runtime.keeps_cast_weights


@formula("byte", "qlora")
def stored_bytes(training: TrainingSpec) -> float:
    """Bytes of one frozen weight of a layer as it is stored and gathered."""
    if training.packs_frozen:
        return NF4_BYTES
    return float(training.gathered_weight_bytes)


@lru_cache(maxsize=256)
def matrices(model: ModelSpec, kind: LayerKind) -> dict[str, tuple[float, float]]:
    """(inputs, outputs) of each matrix of a layer, before tensor parallelism splits it."""
    unit_dims = dims(TrainingSpec(seq_length=1, global_batch_size=1), Plans.of(ParallelPlan()))
    return {
        record.name: (float(record.k), float(record.n))
        for record in kind.records(model, unit_dims)
        if isinstance(record, Gemm) and record.weights
    }


@dataclass(frozen=True)
class TrainableModel:
    """A model, and a training that says which of its weights are trained."""

    model: ModelSpec
    training: TrainingSpec

    @cached_property
    def _adapted(self) -> dict[str, tuple[float, ...]]:
        training = self.training
        return adapted(self.model, training.lora_targets) if training.lora_rank else {}

    def trained(self, block: Block, split: Split) -> Iterator[Weight]:
        """The trained weights of a layer's block."""
        for weight in block.weights(self.model, split):
            if self.training.trains(_part(block, weight.name)):
                yield weight

    def weights(self, kind: LayerKind, split: Split) -> Iterator[Weight]:
        """The weights of a layer on one rank, those of adapters last."""
        model, training = self.model, self.training
        for block in kind.blocks:
            for weight in block.weights(model, split):
                trained = training.trains(_part(block, weight.name))
                yield weight if trained else replace(weight, trained=False)
        if self._adapted:
            yield from self._adapters(kind, split)

    def _adapters(self, kind: LayerKind, split: Split) -> Iterator[Weight]:
        rank, moe = self.training.lora_rank, self.model.moe
        for name, (inputs, outputs) in matrices(self.model, kind).items():
            shares = self._adapted.get(name, ())
            if not shares:
                continue
            routed = name.startswith("expert ")
            ranks = split.etp if routed else split.tp
            yield Weight(
                f"{name} adapter",
                rank * (inputs * len(shares) + outputs * sum(shares)) / ranks,
                matrix=True,
                used=float(moe.top_k) if routed and moe is not None else 1.0,
                tensors=2 * len(shares),
                placeholder=False,
            )

    def records(self, kind: LayerKind, d: Dims) -> tuple[Record, ...]:
        """The records of one micro-batch of a layer, in forward order."""
        trains = self.training.trains
        return self._records_as_run(
            [
                (record, trains(_part(block, getattr(record, "name", ""))))
                for block in kind.blocks
                for record in block.records(self.model, d)
            ],
            d,
            float(self.training.packs_frozen),
        )

    def end(self, block: End, d: Dims) -> tuple[Record, ...]:
        """The records of the embedding or the head; some runtimes pack the latter in 4 bits."""
        trained = self.training.trains(block.part)
        records = [(record, trained) for record in block.records(self.model, d)]
        if not isinstance(block, Head):
            return self._records_as_run(records, d, 0.0)
        if not trained:
            spared = block.spared_bytes(self.model, d)
            records = [(_without(record, spared), whose) for record, whose in records]
            if self.training.widens_frozen:
                records += [(block.cast_weights(self.model, d), trained)]
        packs = d.runtime.packs_head * self.training.packs_frozen
        return self._records_as_run(records, d, packs)

    def _records_as_run(
        self, records: list[tuple[Record, bool]], d: Dims, packed: Array
    ) -> tuple[Record, ...]:
        """The records as they run, from (record, whether its part is trained) of each block.

        packed: 1 where its frozen matrices have 4 bits.
        """
        if not self.training.freezes:
            return tuple(record for record, _ in records)
        gemms = _frozen(records)
        frozen = {gemm.name: gemm for gemm in gemms.values()}
        unpacked = self._unpacked(frozen.values(), d, packed) if np.any(packed) else {}
        changed: list[Record] = []
        for record, trained in records:
            match record:
                case Gemm() if id(record) in gemms:
                    gemm = gemms[id(record)]
                    changed += [*unpacked.get(gemm.name, ()), gemm]
                    if shares := self._adapted.get(gemm.name):
                        changed += Adapters(self.training, d, gemm, shares).records()
                    changed += self._held_inputs(gemm, d, packed)
                case TensorParallel():
                    columns = tuple(gemms.get(id(gemm), gemm) for gemm in record.columns)
                    rows = tuple(gemms.get(id(gemm), gemm) for gemm in record.rows)
                    changed.append(replace(record, columns=columns, rows=rows))
                case SavedTensor():
                    inputs_kept = packed * d.runtime.keeps_frozen_inputs
                    changed += self._saved(record, frozen, d, trained, inputs_kept)
                case MemoryBoundKernel(name="embedding" | "head gradient sums") if not trained:
                    changed.append(replace(record, backward_bytes=0.0))
                case Working() if unpacked:
                    size = d.activation_bytes * packed
                    widest = max_of(g.k * g.n * size for g in frozen.values())
                    changed.append(replace(record, alive_bytes=record.alive_bytes + widest))
                case _:
                    changed.append(record)
        return tuple(changed)

    def _saved(
        self,
        tensor: SavedTensor,
        frozen: dict[str, Gemm],
        d: Dims,
        trained: bool,
        kept_share: Array,
    ) -> Iterator[SavedTensor]:
        """A saved tensor, if any gradient reads it: of an input those of matrices or adapters.

        kept_share: 1 where it is saved all the same.
        """
        if tensor.name.endswith(NORM_ROWS) and not trained:
            return
        readers = [frozen[name] for name in INPUTS.get(tensor.name, ()) if name in frozen]
        if not readers:
            yield tensor
            return
        gemm = readers[0]
        adapted = [reader for reader in readers if reader.name in self._adapted]
        if adapted and not self.training.lora_dropout:
            gemm = adapted[0]
            kept_share = np.maximum(kept_share, 1.0 - casts(self.training, d))
            if tensor.name == "activation output":
                kept_share = kept_share * (1.0 - d.runtime.fuses_adapters)
        if np.any(kept_share) and gemm.name not in KEPT_INPUTS:
            yield replace(
                tensor,
                elements=gemm.m * gemm.groups * gemm.k,
                element_bytes=d.activation_bytes,
                active=tensor.active * kept_share,
            )

    def _held_inputs(self, gemm: Gemm, d: Dims, packed: Array) -> Iterator[SavedTensor]:
        """The input of a product of the last micro-batch (bitsandbytes' MatMul4Bit, ctx.tensors).

        What is no saved variable of autograd goes with the graph, not with its backward pass.
        """
        held_share = packed * d.runtime.holds_frozen_inputs
        # Parallel branches behind one norm have one input.
        shared = self.model.parallel_residual and self.model.norms_per_layer == 1
        if np.any(held_share) and not (shared and gemm.name == "fc1"):
            elements = gemm.m * gemm.groups * gemm.k
            active = gemm.active * held_share
            yield SavedTensor(f"{gemm.name} input before", elements, d.activation_bytes, (), active)

    def _unpacked(
        self, gemms: Iterable[Gemm], d: Dims, packed: Array
    ) -> dict[str, tuple[Record, ...]]:
        """What unpacks weights of 4 bits before each use (bitsandbytes, MatMul4Bit)."""
        # Passes are counted in half precision.
        moved = (NF4_BYTES + d.activation_bytes) * HALF_BYTES / d.activation_bytes
        records: dict[str, tuple[Record, ...]] = {}
        for gemm in gemms:
            size, name = moved * gemm.k * gemm.n * gemm.groups, f"{gemm.name} unpacking"
            matrices = float(max(len(self._adapted.get(gemm.name, ())), 1))
            launches = UNPACKING_OPERATIONS * matrices * d.runtime.casts_adapters * packed
            kernel = MemoryBoundKernel(name, size, size, gemm.module, gemm.active * packed)
            records[gemm.name] = kernel, HostOperations(launches)
        return records


@formula("1", "lora")
def trained_parameters(model: ModelSpec, training: TrainingSpec) -> int:
    """Trained parameters of the whole model: what a checkpoint of a fine-tuning run saves."""
    total = total_parameters(model)
    if not training.freezes:
        return total
    trainable, layers = TrainableModel(model, training), layers_of(model)
    for kind, count in zip(layers.kinds, layers.counts, strict=True):
        every = tuple(trainable.weights(kind, Split()))
        total -= count * round(float(sum(w.elements for w in every if not w.trained)))
        total += count * round(float(sum(w.elements for w in every if "adapter" in w.name)))
    for end in (*before_layers(model, 1), Head(divisible_by=1)):
        if not training.trains(end.part):
            total -= round(float(elements(end.weights(model, Split()))))
    return total


def _without(record: Record, spared: Array) -> Record:
    """A record with so much less alive, if it says what is alive."""
    if not isinstance(record, Working):
        return record
    return replace(record, alive_bytes=record.alive_bytes - spared)


def _part(block: Block, name: str) -> str:
    """The part of a model that a weight or a record of a layer belongs to."""
    if isinstance(block, Norm):
        return "norms"
    if isinstance(block, Mixer):
        return "mixers"
    return "routers" if name.startswith("router") else "feed_forwards"


def _frozen(records: Iterable[tuple[Record, bool]]) -> dict[int, Gemm]:
    """The matrix products whose weights stay as they are, by the id of their record."""
    return {
        id(record): replace(record, trained=False)
        for record, trained in records
        if isinstance(record, Gemm) and record.weights and not trained
    }
