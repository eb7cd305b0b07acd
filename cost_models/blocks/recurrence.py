"""What recurrent mixers share: projections around a short convolution and a scan.

Context-parallel ranks either trade tokens for heads around the scan, so that each scan sees whole
sequences (Megatron-Core's `MambaContextParallel` and `a2a_cp_to_hp`); or each scans its own tokens
from the state that the ranks before it hand on, all gathering what the tokens of each add to a
state and keep of it (flash-linear-attention's `fla/ops/cp`).  The fused kernels keep what goes in
and make the states again; chunk states, decays and statistics of norms are not counted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import sum_of
from cost_models.blocks.base import Mixer
from cost_models.blocks.records import (
    Collective,
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Scan,
    Split,
    TensorParallel,
    Weight,
)

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.sources import Array
    from cost_models.spec import StackSpec

# What the tokens of a rank add to a state and keep of it, found before the scan from that state: of
# the scan's own time forward and backward.  5.73 ms on 4 ranks where a quarter of one rank's is
# 15.56 / 4 (fla-org/flash-linear-attention#691: gated delta rule, 32,768 tokens, H800).
SUMMARY = 0.47
STATE_BYTES = 4.0


@dataclass(frozen=True)
class Shape:
    """Widths of a recurrent mixer over all tensor-parallel ranks.

    projected: of what the hidden state is projected to, split over ranks; convolved: of that, what
    a short convolution of so many taps runs over; inner: what comes out of the scan; gate: what
    multiplies it; heads: of the scan.
    head_flop: executed per token and head; token_s: see Scan.
    handed: numbers of each head that a context-parallel rank hands on: its state, and what its
    tokens keep of the state before.
    """

    projected: int
    inner: int
    heads: int
    head_flop: float
    token_s: float
    handed: float
    convolved: int = 0
    taps: int = 1
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

    def traded(self, model: StackSpec, d: Dims) -> tuple[Array, ...]:
        """Widths of the tensors that ranks trade for heads before the scan, one after the other."""
        return (self.shape(model).projected / d.tp,)

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
        gate, states = shape.gate / d.tp, d.runtime.hands_on_states
        # Several ranks may need the same part of what is traded.
        traded = sum_of(self.traded(model, d)) - width
        more = np.where(d.cp > 1, traded * (1.0 - states), 0.0)
        before = tokens_before(shape.convolved / d.tp, shape.taps - 1, d) * states
        convolved = shape.convolved / d.tp + more * (shape.convolved > 0)
        into = Gemm("mixer in", tokens, width, hidden, gathered_input=True)
        yield into
        kept = tokens * (width + more) + before
        yield SavedTensor("mixer in output", kept, d.activation_bytes)
        yield from self._communication(model, d)
        yield from gathered_before(before, d)
        if shape.convolved:
            # Read and written; backward reads both and writes the input's gradient.
            moved = tokens * convolved
            yield MemoryBoundKernel("convolution", 4.0 * moved, 6.0 * moved)
            if not shape.fused_convolution:
                yield SavedTensor("convolution output", moved, d.activation_bytes)
        yield from self.inner_records(model, d)
        yield from self._scan(shape, d)
        yield SavedTensor("scan output", tokens * inner, d.activation_bytes)
        # A norm over the output, times the gate.
        moved = tokens * (2.0 * inner + gate)
        yield MemoryBoundKernel("gated norm", 2.0 * moved, 4.0 * moved)
        yield SavedTensor("mixer out input", tokens * inner, d.input_bytes)
        out = Gemm("mixer out", tokens, hidden, inner, scattered_output=True, recomputed=1.0)
        yield out
        yield TensorParallel(hidden, (into,), (out,))

    def _scan(self, shape: Shape, d: Dims) -> Iterator[Scan]:
        """Over whole sequences of some heads, or over own tokens of all heads."""
        heads, length = shape.heads / d.tp, scanned_tokens(d)
        flop = shape.head_flop * d.tokens * heads
        scan = Scan("scan", flop, d.tokens * heads / length, length, shape.token_s, shape.matrices)
        summarised = 1.0 * (length < d.seq_length)
        if np.any(summarised):
            summary = replace(scan, forward_flop=SUMMARY * flop, token_s=SUMMARY * shape.token_s)
            yield replace(summary, name="state summary", active=summarised)
        yield scan

    def _communication(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """What context-parallel ranks send each other, and what they keep of it."""
        states, split = d.runtime.hands_on_states, 1.0 * (d.cp > 1)
        if np.any(split * (1.0 - states)):
            yield from self._trade(model, d, split * (1.0 - states))
        if np.any(split * states):
            shape = self.shape(model)
            numbers = d.sequences * shape.heads / d.tp * shape.handed
            yield from _handed_on(numbers, d, split * states)

    def _trade(self, model: StackSpec, d: Dims, on: Array) -> Iterator[Record]:
        """Tokens for heads and back.  Before and after the message a tensor is copied into the
        order of the ranks, then of the tokens, which balanced attention has dealt out otherwise.
        """
        widths, inner = self.traded(model, d), self.shape(model).inner / d.tp
        for width in (*widths, inner):
            payload = d.tokens * width * d.activation_bytes
            yield Collective(("all_to_all",), payload, "cp", times=on)
        copied = d.tokens * (12.0 * sum_of(widths) + 8.0 * inner)
        yield MemoryBoundKernel("exchange copies", copied, copied, active=on)


def scanned_tokens(d: Dims) -> Array:
    """Tokens of a sequence that one rank scans: all of it, where ranks trade them for heads."""
    return d.seq_length / (1.0 + (d.cp - 1.0) * d.runtime.hands_on_states)


def _handed_on(numbers: Array, d: Dims, on: Array) -> Iterator[Record]:
    """Every context-parallel rank gathers so many numbers of each, and keeps them for backward."""
    every = numbers * d.cp
    yield Collective(("all_gather",), every * STATE_BYTES, "cp", times=on)
    yield SavedTensor("states handed on", every, STATE_BYTES, active=on)


def tokens_before(width: Array, count: int, d: Dims) -> Array:
    """Elements of the last tokens of the context-parallel rank before, for what looks back."""
    return d.sequences * count * width * (d.cp > 1)


def gathered_before(elements: Array, d: Dims) -> Iterator[Record]:
    """All ranks gather those of each, the shortest way that autograd follows (fla/ops/cp/comm)."""
    if np.any(elements):
        on = 1.0 * (np.asarray(elements) > 0)
        yield Collective(("all_gather",), elements * d.cp * d.activation_bytes, "cp", times=on)
