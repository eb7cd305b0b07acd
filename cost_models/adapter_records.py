"""What low-rank adapters add beside a frozen matrix: products, passes, saved tensors, traffic.

An adapter is two GEMMs: down to the rank, and up to the output.

Tensor parallelism splits both matrices of an adapter (Megatron-Bridge 067f987, peft/utils.py
ParallelLinearAdapter): beside a column-parallel matrix by their outputs, beside a row-parallel one
the first by its input, the second by its output, which is then gathered whole.  torch's DTensor
splits what the matrix beside it splits, and sums the two outputs as one.  Routed experts of a rank
share one adapter (peft/lora.py, share_expert_adapters).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cost_models.blocks.autocast import CAST_BYTES
from cost_models.blocks.norm import FP32_BYTES, MASK_BYTES
from cost_models.blocks.records import (
    Collective,
    Gemm,
    HostOperations,
    MemoryBoundKernel,
    Record,
    SavedTensor,
)
from cost_models.dims import Dims
from cost_models.sources import Array
from cost_models.spec import TrainingSpec

# What the host takes for an adapter of PEFT, in launches of others: measured on an H200 whose GPU
# waited for its host.
ADAPTER_OPERATIONS = 4.5


def casts(training: TrainingSpec, d: Dims) -> Array:
    """1 where adapters are wider than what they read."""
    return d.runtime.casts_adapters * d.eager * (training.master_weights_dtype == "fp32")


@dataclass(frozen=True)
class Adapters:
    """The adapters beside a frozen matrix; shares: of its output columns, one of each adapter."""

    training: TrainingSpec
    d: Dims
    gemm: Gemm
    shares: tuple[float, ...]

    @property
    def _tokens(self) -> Array:
        return self.gemm.m * self.gemm.groups

    @property
    def _outputs(self) -> Array:
        return self.gemm.n * sum(self.shares)

    @property
    def _unsharded(self) -> Array:
        """1 where torch sums what they add with the matrix's own output."""
        return self.d.runtime.sums_adapters_with_matrices

    @property
    def _fused(self) -> Array:
        return self.d.runtime.fuses_adapters * (self.training.lora_dropout == 0)

    def _saved(self, tensor: str, elements: Array, element_bytes: Array) -> SavedTensor:
        gemm = self.gemm
        modules = (gemm.module,) if gemm.module else ()
        name = f"{gemm.name} adapter {tensor}"
        return SavedTensor(name, elements, element_bytes, modules, gemm.active)

    def records(self) -> Iterator[Record]:
        """All of them, in forward order.

        Each adapter saves its projection down to the rank, and its input where dropout or a cast
        has made a copy of it.
        """
        gemm, count = self.gemm, len(self.shares)
        yield from self._products()
        joined = self.d.runtime.joins_adapters * (gemm.name == "qkv")
        separate = count + (1.0 - count) * joined
        yield from self._passes(separate)
        rank, element_bytes = float(self.training.lora_rank), self.d.activation_bytes
        yield self._saved("rank", count * self._tokens * rank, element_bytes)
        padded = self.d.runtime.pads_adapters * (gemm.name == "qkv" and sum(self.shares) < 1.0)
        yield self._saved("outputs", self._tokens * self._outputs * padded, element_bytes)
        yield from self._input(separate)
        yield from self._traffic()

    def _products(self) -> Iterator[Gemm]:
        gemm, d, count = self.gemm, self.d, len(self.shares)
        rank, row = float(self.training.lora_rank), gemm.scattered_output
        ranks = self._unsharded + (1.0 - self._unsharded) * (d.etp if gemm.grouped else d.tp)

        def product(which: str, n: Array, k: Array) -> Gemm:
            return Gemm(
                f"{gemm.name} adapter {which}", self._tokens, n, k, gemm.module, float(count),
                fp8=False, active=gemm.active,
            )  # fmt: skip

        yield product("down", rank / (1.0 if row else ranks), gemm.k)
        yield product("up", self._outputs / count / (ranks if row else 1.0), rank)

    def _passes(self, inputs: Array) -> Iterator[MemoryBoundKernel]:
        """Sums of outputs and of the gradients of so many inputs.

        A separate pass scales an adapter's output first (PEFT tuners/lora/layer.py, Bridge
        peft/utils.py) unless torch.compile fuses the two.  A product that adds to what is there
        reads it once more.
        """
        gemm, d = self.gemm, self.d
        # Beside a row-parallel matrix the sum is over sequence shards, except in torch, which adds
        # before the tokens are scattered.
        row = (1.0 - self._unsharded) * gemm.scattered_output
        scattered = row * (1.0 - d.sharded_tokens / d.tokens)
        summed = self._tokens * self._outputs * (1.0 - scattered)
        scaling = 4.0 * (1.0 - d.compiled) * (1.0 - self._fused) * summed
        each = 6.0 - 4.0 * self._fused
        for operation, forward, backward in (
            ("sum", each * summed + scaling, scaling),
            ("input gradient", 0.0, each * inputs * self._tokens * gemm.k),
        ):
            name = f"{gemm.name} adapter {operation}"
            yield MemoryBoundKernel(name, forward, backward, gemm.module, gemm.active)

    def _input(self, count: Array) -> Iterator[Record]:
        """Dropout of so many inputs, and their casts, which torch.compile fuses.

        An input is widened and narrowed again, and so is the gradient on its way back.
        """
        gemm, d = self.gemm, self.d
        size, wider = count * self._tokens * gemm.k, casts(self.training, d)
        drops = float(self.training.lora_dropout > 0)
        element = d.activation_bytes + (FP32_BYTES - d.activation_bytes) * wider
        copies = np.maximum(wider, drops)
        yield HostOperations(count * d.runtime.casts_adapters * d.eager * ADAPTER_OPERATIONS)
        if not np.any(copies):
            return
        cast = wider * CAST_BYTES * size
        moved = drops * (2.0 * element + MASK_BYTES) * size + 2.0 * cast
        yield MemoryBoundKernel(
            f"{gemm.name} adapter input", moved, moved, gemm.module, gemm.active * copies,
            widened_bytes=(cast, cast),
        )  # fmt: skip
        yield self._saved("input", size * copies, d.activation_bytes)
        yield self._saved("dropout mask", size * drops, MASK_BYTES)

    def _traffic(self) -> Iterator[Collective]:
        """Beside a column-parallel matrix the projection to the rank is gathered forward and its
        gradient summed backward.  Beside a row-parallel one it is summed, and the output, of which
        each rank has some columns, is gathered.
        """
        gemm, row = self.gemm, self.gemm.scattered_output
        shared = (1.0 - self._unsharded) * self.d.activation_bytes
        narrow = shared * len(self.shares) * self._tokens * float(self.training.lora_rank)
        axis: Literal["tp", "etp"] = "etp" if gemm.grouped else "tp"
        around = ("all_reduce", "all_reduce" if row else "all_gather")
        yield Collective(around, narrow, axis, mirrored=False, module=gemm.module)
        if row:
            gathered_bytes = shared * self._tokens * self._outputs
            yield Collective(("all_gather",), gathered_bytes, axis, module=gemm.module)
