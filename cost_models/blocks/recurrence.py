"""What recurrent mixers share: projections around a short convolution and a scan.

Context-parallel ranks trade the sequence for heads around the scan, as Megatron-Core's Mamba and
delta-net mixers do, so that every scan sees whole sequences.  The fused kernels keep what goes in
and make the states again; chunk states, decays and statistics of norms are not counted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.blocks.base import Mixer
from cost_models.blocks.records import (
    Collective,
    Gemm,
    Pass,
    Record,
    SavedTensor,
    Scan,
    Split,
    TensorParallel,
    Weight,
)

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


@dataclass(frozen=True)
class Shape:
    """Widths of a recurrent mixer over all tensor-parallel ranks.

    projected: of what the hidden state is projected to, split over ranks; convolved: of that, what
    a short convolution runs over; scanned: what goes into the scan; inner: what comes out of it;
    gate: what multiplies it; heads: of the scan.
    head_flop: executed per token and head; token_s: see Scan.
    """

    projected: int
    inner: int
    heads: int
    head_flop: float
    token_s: float
    convolved: int = 0
    gate: int = 0
    fused_convolution: bool = False
    matrices: bool = True


class Recurrence(Mixer):
    """A projection in, a short convolution, a scan over heads, a gated norm, a projection out."""

    @abstractmethod
    def shape(self, model: StackSpec) -> Shape:
        """Its widths."""

    @abstractmethod
    def small_weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """The parameters beside the input and output projections."""

    def inner_records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """What runs between the projections beside convolution and scan."""
        yield from ()

    def biases(self) -> tuple[bool, bool]:
        """Whether the input and the output projection have one."""
        return False, False

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        shape, hidden, (into, out) = self.shape(model), model.hidden_size, self.biases()
        width = np.divide(shape.projected, split.tp)
        yield Weight("mixer in", width * hidden, matrix=True)
        if into:
            yield Weight("mixer in bias", width)
        yield from self.small_weights(model, split)
        yield Weight("mixer out", np.divide(shape.inner, split.tp) * hidden, matrix=True)
        if out:
            yield Weight("mixer out bias", float(hidden))

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        shape, hidden = self.shape(model), float(model.hidden_size)
        tokens = d.tokens
        width, inner = shape.projected / d.tp, shape.inner / d.tp
        convolved, gate = shape.convolved / d.tp, shape.gate / d.tp
        into = Gemm("mixer in", tokens, width, hidden, gathered_input=True)
        yield into
        yield SavedTensor("mixer in output", tokens * width, d.activation_bytes)
        exchanged = tokens * (width + inner) * d.activation_bytes
        yield Collective(("all_to_all",), exchanged, "cp")
        if shape.convolved:
            # Read and written; backward reads both and writes the input's gradient.
            moved = tokens * convolved
            yield Pass("convolution", 4.0 * moved, 6.0 * moved)
            if not shape.fused_convolution:
                yield SavedTensor("convolution output", moved, d.activation_bytes)
        yield from self.inner_records(model, d)
        heads = shape.heads / d.tp
        yield Scan(
            "scan", shape.head_flop * tokens * heads, d.sequences * heads / d.cp, d.seq_length,
            shape.token_s, shape.matrices,
        )  # fmt: skip
        yield SavedTensor("scan output", tokens * inner, d.activation_bytes)
        # A norm over the output, times the gate.
        moved = tokens * (2.0 * inner + gate)
        yield Pass("gated norm", 2.0 * moved, 4.0 * moved)
        yield SavedTensor("mixer out input", tokens * inner, d.input_bytes)
        out = Gemm("mixer out", tokens, hidden, inner, scattered_output=True, redone=1.0)
        yield out
        yield TensorParallel(hidden, (into,), (out,))
