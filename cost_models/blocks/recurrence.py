"""The base of recurrent mixers: projections around a short convolution and a scan.

Context-parallel ranks either exchange tokens for heads around the scan, so that each scan sees
whole sequences (Megatron-Core's `MambaContextParallel` and `a2a_cp_to_hp`); or each rank scans its
own tokens from the state after the ranks before it, which it gets from an all-gather of all ranks'
state increments and decays (flash-linear-attention's `fla/ops/cp`).  The fused kernels save their
inputs and recompute the states; chunk states, decays and statistics of norms are not counted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import any_of, sum_of, where
from cost_models.blocks.base import Mixer
from cost_models.blocks.records import (
    Cached,
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

# Time of computing a rank's state increment and decay before its scan, relative to the scan forward
# and backward: 4 ranks take 5.73 ms in all, where a quarter of one rank's scan takes 15.56 / 4
# (fla-org/flash-linear-attention#691: gated delta rule, 32,768 tokens, H800).
STATE_SUMMARY_TIME_RATIO = 0.47
STATE_BYTES = 4.0


@dataclass(frozen=True)
class Shape:
    """Widths of a recurrent mixer over all tensor-parallel ranks.

    projected: output of the input projection, split over ranks; convolved: the part of it that goes
    through a short convolution with `taps` taps; inner: output of the scan; gate: of that output;
    heads: of the scan.
    head_flop: executed per token and head; token_s: see Scan.
    state_per_head: numbers per head that a sequence carries from token to token.
    passed_per_head: numbers per head that a context-parallel rank passes to the next: the increment
    and the decay (or transition) of the state over its tokens.
    """

    projected: int
    inner: int
    heads: int
    head_flop: float
    token_s: float
    state_per_head: float
    passed_per_head: float
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
        """The parameters other than the input and output projections."""

    def exchanged_widths(self, model: StackSpec, d: Dims) -> tuple[Array, ...]:
        """Widths of the tensors that ranks exchange before the scan, one all-to-all each."""
        return (self.shape(model).projected / d.tp,)

    def inner_records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Records between the projections other than convolution and scan."""
        yield from ()

    def biases(self) -> tuple[bool, bool]:
        """Whether the (input, output) projections have a bias."""
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

    def cached(self, model: StackSpec, split: Split) -> Iterator[Cached]:
        """The state of the scan's heads, and the last inputs of the short convolution."""
        shape = self.shape(model)
        taps = shape.convolved * (shape.taps - 1)
        state = shape.heads * shape.state_per_head
        yield Cached(state_elements=np.divide(state + taps, split.tp))

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        shape, hidden = self.shape(model), float(model.hidden_size)
        tokens = d.tokens
        width, inner = shape.projected / d.tp, shape.inner / d.tp
        gate, states = shape.gate / d.tp, d.runtime.passes_recurrent_states
        # Several ranks may need the same part of an exchanged tensor.
        exchanged = sum_of(self.exchanged_widths(model, d)) - width
        more = where(d.cp > 1, exchanged * (1.0 - states), 0.0)
        preceding = tokens_before(shape.convolved / d.tp, shape.taps - 1, d) * states
        convolved = shape.convolved / d.tp + more * (shape.convolved > 0)
        into = Gemm("mixer in", tokens, width, hidden, gathered_input=True)
        yield into
        kept_elements = tokens * (width + more) + preceding
        yield SavedTensor("mixer in output", kept_elements, d.activation_bytes)
        yield from self._communication(model, d)
        yield from gathered_before(preceding, d)
        if shape.convolved:
            # Input read, output written; backward reads both and writes the input's gradient.
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
        """A scan over whole sequences for some heads, or over the rank's own tokens for all."""
        heads, length = shape.heads / d.tp, scanned_tokens(d)
        flop = shape.head_flop * d.tokens * heads
        scan = Scan("scan", flop, d.tokens * heads / length, length, shape.token_s, shape.matrices)
        summarised = 1.0 * (length < d.seq_length)
        if any_of(summarised):
            ratio = STATE_SUMMARY_TIME_RATIO
            summary = replace(scan, forward_flop=ratio * flop, token_s=ratio * shape.token_s)
            yield replace(summary, name="state summary", active=summarised)
        yield scan

    def _communication(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Communication between context-parallel ranks, and the received tensors they save."""
        states, split = d.runtime.passes_recurrent_states, 1.0 * (d.cp > 1)
        if any_of(split * (1.0 - states)):
            yield from self._head_exchange(model, d, split * (1.0 - states))
        if any_of(split * states):
            shape = self.shape(model)
            numbers = d.sequences * shape.heads / d.tp * shape.passed_per_head
            yield from _state_gather(numbers, d, split * states)

    def _head_exchange(self, model: StackSpec, d: Dims, on: Array) -> Iterator[Record]:
        """The exchange of tokens for heads, and back.

        A tensor is copied into rank order before the message and into token order after it, since
        load-balanced attention distributes tokens in another order.
        """
        widths, inner = self.exchanged_widths(model, d), self.shape(model).inner / d.tp
        for width in (*widths, inner):
            payload = d.tokens * width * d.activation_bytes
            yield Collective(("all_to_all",), payload, "cp", times=on)
        copied = d.tokens * (12.0 * sum_of(widths) + 8.0 * inner)
        yield MemoryBoundKernel("exchange copies", copied, copied, active=on)


def scanned_tokens(d: Dims) -> Array:
    """Tokens of a sequence that one rank scans: all, where ranks exchange tokens for heads."""
    return d.seq_length / (1.0 + (d.cp - 1.0) * d.runtime.passes_recurrent_states)


def _state_gather(numbers: Array, d: Dims, on: Array) -> Iterator[Record]:
    """An all-gather of `numbers` from each context-parallel rank, saved for backward."""
    every = numbers * d.cp
    yield Collective(("all_gather",), every * STATE_BYTES, "cp", times=on)
    yield SavedTensor("states passed between ranks", every, STATE_BYTES, active=on)


def tokens_before(width: Array, count: int, d: Dims) -> Array:
    """Elements of the last `count` tokens of the context-parallel rank before."""
    return d.sequences * count * width * (d.cp > 1)


def gathered_before(elements: Array, d: Dims) -> Iterator[Record]:
    """An all-gather of tokens_before, which autograd supports, unlike a send (fla/ops/cp/comm)."""
    if any_of(elements):
        on = 1.0 * (np.asarray(elements) > 0)
        yield Collective(("all_gather",), elements * d.cp * d.activation_bytes, "cp", times=on)
