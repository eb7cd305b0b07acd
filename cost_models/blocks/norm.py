"""The norm before a mixer or a feed-forward, and the residual after it.

A half of a layer may have more than one norm (post-norms) or less (parallel blocks share one), so
one Norm stands for norms_per_layer / 2 of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cost_models.blocks.base import Block
from cost_models.blocks.records import MemoryBoundKernel, Record, SavedTensor, Split, Weight
from cost_models.sources import Array

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec

FP32_BYTES = 4.0
# Dropout masks are one byte per element (fused dropout).
MASK_BYTES = 1.0


def norm_parameters(model: StackSpec, width: int) -> float:
    """Parameters of one norm over `width` elements."""
    return float(width * (1 + model.norm_bias))


def norm_statistics(model: StackSpec, d: Dims, name: str, rows: Array) -> SavedTensor:
    """Row statistics that torch's norms save in fp32: 1/deviation, and for LayerNorm the mean."""
    each = 2.0 if model.norm == "layernorm" else 1.0
    active = d.runtime.keeps_norm_statistics
    return SavedTensor(
        f"{name} norm statistics", each * rows, FP32_BYTES, (), active, pointwise=True
    )


def norm_copies(
    model: StackSpec,
    d: Dims,
    name: str,
    elements: Array,
    row_bytes: Array | float,
    again: tuple[str, ...] = (),
    by_operator: float = 0.0,
) -> Iterator[SavedTensor]:
    """What an RMSNorm that runs operator by operator saves more than its input.

    Rows of half precision are saved as their fp32 copy, by as much wider; a trained weight needs
    the rows that it is multiplied with.  again: modules whose recompute drops them.
    """
    active = d.runtime.norms_in_fp32 * d.eager_layers * (model.norm == "rmsnorm")
    if not np.any(active):
        return
    wider = FP32_BYTES - row_bytes
    yield SavedTensor(f"{name} norm input copy", elements, wider, again, active, by_operator)
    yield SavedTensor(f"{name} norm rows", elements, row_bytes, again, active, by_operator)


def head_norm(
    model: StackSpec, d: Dims, name: str, elements: Array, rows: Array
) -> Iterator[SavedTensor]:
    """What norms over the heads of queries and keys save, of so many rows."""
    yield SavedTensor(f"{name} norm input", elements, d.activation_bytes, pointwise=True)
    yield from norm_copies(model, d, name, elements, d.activation_bytes)
    yield norm_statistics(model, d, name, rows)


def row_parallel_sum(model: StackSpec, d: Dims, name: str, unsplit: Array) -> SavedTensor:
    """The row-parallel output that per-operator recompute keeps although no backward reads it.

    It is the sum over tensor-parallel ranks, or on a single rank the product itself if it is one
    of the kept ones (`unsplit`, every second one).  torch.compile drops unread tensors.
    """
    split = d.tp > 1
    active = d.by_operator * (1.0 - d.compiled) * (split + (1.0 - split) * unsplit)
    elements = d.sharded_tokens * model.hidden_size
    return SavedTensor(f"{name} sum", elements, d.activation_bytes, (), active, by_operator=1.0)


class Norm(Block):
    """Norms of one sublayer.

    gathers: its output is gathered over tensor-parallel ranks (not before a router).
    module: the module whose selective recompute gathers again.  count: None: norms_per_layer / 2.
    """

    sources: ClassVar[tuple[str, ...]] = ("megatron-core", "korthikanti-2022", "torch")
    name: str
    gathers: bool = True
    module: str = ""
    count: float | None = None

    def _count(self, model: StackSpec) -> float:
        return model.norms_per_layer / 2.0 if self.count is None else self.count

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        count = self._count(model)
        elements = count * norm_parameters(model, model.hidden_size)
        yield Weight(f"{self.name} norm", elements, tensors=count * (1 + model.norm_bias))

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Fused: read and write once forward; read twice, write once backward.

        Eager torch computes weight gradients in a separate kernel, and RMSNorm in fp32 operator by
        operator (its composite rms_norm: 7 operators forward, about twice that backward).  On
        half-precision rows that of transformers saves their fp32 copy; under autocast the rows
        are fp32 themselves.  A trained weight needs the rows that it is multiplied with.
        """
        count, hidden, name = self._count(model), model.hidden_size, self.name
        size = d.sharded_tokens * hidden * count
        forward, backward = (36.0, 72.0) if model.norm == "rmsnorm" else (4.0, 10.0)
        # The rows of a fused norm whose result is cast apart.
        wide = d.autocast * (d.eager - d.eager_layers)
        yield MemoryBoundKernel(
            f"{name} norm",
            (4.0 * (1.0 + wide) + (forward - 4.0) * d.eager_layers) * size,
            (6.0 * (1.0 + wide) + (backward - 6.0) * d.eager_layers) * size,
            "layernorm",
            kind=model.norm,
        )
        first = 0.0 if name == "mlp" else 1.0
        # Parallel branches read one input, and one norm of it where they share that too.
        parallel = float(model.parallel_residual and name == "mlp")
        shared = parallel * (model.norms_per_layer == 1)
        rows = d.sharded_tokens * hidden * (1.0 - parallel)
        yield SavedTensor(f"{name} norm input", rows, d.residual_bytes, by_operator=first)
        yield from norm_copies(model, d, name, rows, d.residual_bytes, ("layernorm",))
        # DTensor saves the gathered input; Megatron saves the shard and gathers again in backward,
        # as does a recomputed module.
        gathers = self.gathers * d.runtime.keeps_gathered_input * (1.0 - d.recomputed(self.module))
        kept = (d.sharded_tokens + gathers * (d.tokens - d.sharded_tokens)) * (1.0 - shared)
        yield SavedTensor(
            f"{name} norm output", kept * hidden, d.input_bytes, ("layernorm",), pointwise=True
        )
        yield norm_statistics(model, d, name, d.sharded_tokens * (1.0 - shared))
        if count > 1.0:
            elements = (count - 1.0) * d.sharded_tokens * hidden
            yield SavedTensor(f"{name} post-norm input", elements, d.activation_bytes)
            yield from norm_copies(model, d, f"{name} post", elements, d.activation_bytes)


class Residual(Block):
    """Dropout (with its 1-byte mask) and residual add after one half of a layer."""

    sources: ClassVar[tuple[str, ...]] = ("megatron-core", "korthikanti-2022")
    name: str

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        yield from ()

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Backward adds the two branches' gradients.

        Eager torch runs dropout and add as separate kernels; torch.compile fuses both sums with
        the norm, so that only the second operand is read.
        """
        size = d.sharded_tokens * model.hidden_size
        mask = 1.0 if model.hidden_dropout > 0 else 0.0
        eager_mask = 4.0 * mask * d.eager
        # An fp32 stream and a half-precision branch, whose gradient is narrowed.
        yield MemoryBoundKernel(
            f"{self.name} dropout + add",
            (6.0 + mask + eager_mask - 4.0 * d.compiled + 4.0 * d.autocast) * size,
            (6.0 + 5.0 * mask - 4.0 * d.compiled + 12.0 * d.autocast) * size,
            kind="dropout add" if mask else "add",
        )
        if mask:
            yield SavedTensor(f"{self.name} dropout mask", size, MASK_BYTES, pointwise=True)
