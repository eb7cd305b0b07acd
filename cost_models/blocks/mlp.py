"""A dense MLP: a layer's own, or the shared expert beside routed experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.blocks.attention import bias_gradient
from cost_models.blocks.autocast import input_casts
from cost_models.blocks.base import FeedForward
from cost_models.blocks.norm import row_parallel_sum
from cost_models.blocks.records import (
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
    Working,
)
from cost_models.fields import Width

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


class MLP(FeedForward):
    """A column-parallel projection, an activation, and a row-parallel projection.

    prefix: of its records' names.  dropped_by: modules whose recompute drops its saved tensors.
    """

    sources: ClassVar[tuple[str, ...]] = ("megatron-core", "korthikanti-2022")
    module: ClassVar[str] = "mlp"
    prefix: ClassVar[str] = ""
    dropped_by: ClassVar[tuple[str, ...]] = ("mlp",)
    kind: Literal["mlp"] = "mlp"
    width: Width | None = Field(None, description="None: the model's ffn_hidden_size")
    gated: bool | None = Field(None, description="None: as the model's gated_mlp")
    bias: bool | None = Field(None, description="None: as the model's mlp_bias")

    @property
    def label(self) -> str:
        return "dense" if self.width is None else f"dense {self.width}"

    def _width(self, model: StackSpec) -> int:
        return self.width or model.ffn_hidden_size

    def _inputs(self, model: StackSpec) -> int:
        """Input projections: two where the activation is gated."""
        return 1 + (model.gated_mlp if self.gated is None else self.gated)

    def _bias(self, model: StackSpec) -> bool:
        return model.mlp_bias if self.bias is None else self.bias

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        inputs, hidden = self._inputs(model), model.hidden_size
        local = np.divide(self._width(model), split.tp)
        yield Weight(f"{self.prefix}fc1", inputs * local * hidden, matrix=True, tensors=inputs)
        yield Weight(f"{self.prefix}fc2", local * hidden, matrix=True)
        if self._bias(model):
            yield Weight(f"{self.prefix}fc1 bias", inputs * local, tensors=inputs)
            yield Weight(f"{self.prefix}fc2 bias", hidden)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Eager torch runs a gated activation as two operators forward and three backward."""
        prefix, hidden = self.prefix, float(model.hidden_size)
        width = self._width(model) / d.tp
        inputs, bias = float(self._inputs(model)), self._bias(model)
        # Per-operator recompute keeps every second product, so one of the two gated ones reruns.
        into = Gemm(
            f"{prefix}fc1", d.tokens, inputs * width, hidden, self.module, gathered_input=True,
            recomputed=0.5 * (inputs - 1.0),
        )  # fmt: skip
        out = Gemm(f"{prefix}fc2", d.tokens, hidden, width, self.module, scattered_output=True)
        yield into
        yield from input_casts(d, f"{prefix}fc1", hidden, inputs, self.module)
        yield from bias_gradient(inputs * width, d.tokens, bias, f"{prefix}fc1 bias")
        local = d.tokens * width
        eager_operators = (inputs - 1.0) * np.maximum(d.eager_layers, d.runtime.eager_activation)
        yield MemoryBoundKernel(
            f"{prefix}activation",
            (2.0 * inputs + 2.0 + 4.0 * eager_operators) * local,
            (4.0 * inputs + 2.0 + 8.0 * eager_operators) * local,
            self.module,
            kind="silu product" if inputs > 1.0 else "gelu",
        )
        yield out
        yield from bias_gradient(hidden, d.sharded_tokens, bias, f"{prefix}fc2 bias")
        if not model.parallel_residual:  # else the attention beside it gathers and scatters
            yield TensorParallel(hidden, (into,), (out,), self.module)
        yield from self._saved(model, d)

    def _saved(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        prefix, again = self.prefix, self.dropped_by
        local = d.tokens * self._width(model) / d.tp
        inputs = float(self._inputs(model))
        yield SavedTensor(
            f"{prefix}fc1 output", inputs * local, d.activation_bytes, again,
            by_operator=d.runtime.keeps_mlp_products / inputs,
        )  # fmt: skip
        yield SavedTensor(f"{prefix}activation output", local, d.input_bytes, again, pointwise=True)
        if inputs > 1.0:
            eager = np.maximum(d.eager_layers, d.runtime.eager_activation)
            yield SavedTensor(
                f"{prefix}gate output", local, d.activation_bytes, again, eager, pointwise=True
            )
        if prefix:
            return
        # In the order q, k, v, output, gate, up, down, the last product is an odd one (gated MLP).
        yield row_parallel_sum(model, d, "mlp", inputs - 1.0)
        # The gradients of its widest tensor and of its input, twice the latter where gate and up
        # are separate matrices.
        summed = 1.0 + (inputs - 1.0) * d.runtime.separate_gated_matrices
        widest = inputs * local + summed * d.tokens * model.hidden_size
        yield Working(widest * d.activation_bytes, (inputs + 1.0) * local * d.activation_bytes)


class SharedExpert(MLP):
    """The dense MLP that all tokens share beside routed experts."""

    module: ClassVar[str] = "shared_experts"
    prefix: ClassVar[str] = "shared "
    dropped_by: ClassVar[tuple[str, ...]] = ("shared_experts", "moe")
