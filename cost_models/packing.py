"""Samples of many lengths in sequences of one length: packed or padded.

Packed samples attend within themselves.  A pack is assumed to be full: first-fit packing leaves
about a hundredth empty.  Unfused attention kernels compute the whole square in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import maximum, minimum
from cost_models.blocks.indexer import attention_span
from cost_models.blocks.records import FlashAttention, Kernel, KeyValues, Record
from cost_models.dims import Dims
from cost_models.sources import Array, formula
from cost_models.spec import TrainingSpec

FloatArray = NDArray[np.float64]


def lengths_of(training: TrainingSpec) -> FloatArray:
    """Tokens of equally likely samples, cut at the sequence."""
    return minimum(np.array(training.sample_lengths, dtype=np.float64), training.seq_length)


@formula("1", "derived")
def window_of(span: Array, seq_length: float) -> Array:
    """The window with this `attention_span`: s - sqrt(s (s - span)); s if all tokens are seen."""
    return seq_length - np.sqrt(seq_length * maximum(seq_length - np.asarray(span), 0.0))


@formula("1", "derived")
def packed_span(span: float, seq_length: float, lengths: FloatArray) -> float:
    """Mean keys of a query before causal masking, if it attends only within its sample.

    A sample of l tokens has l span(l) pairs: E[l span(l)] / E[l], which without a window is
    E[l^2] / E[l].
    """
    window = float(window_of(span, seq_length))
    each = np.array([attention_span(window, length) for length in lengths.tolist()])
    return float(np.mean(lengths * each) / np.mean(lengths))


def packed(records: Iterable[Record], training: TrainingSpec, d: Dims) -> tuple[Record, ...]:
    """The records of a layer whose sequences are packed."""
    unpacked = tuple(records)
    if not training.packs:
        return unpacked
    lengths = lengths_of(training)
    shorter: dict[int, FlashAttention] = {}
    for record in unpacked:
        if isinstance(record, FlashAttention):
            longest_span = float(np.max(record.span * d.cp))
            share = packed_span(longest_span, float(training.seq_length), lengths) / longest_span
            shorter[id(record)] = replace(
                record, forward_flop=record.forward_flop * share, span=record.span * share
            )

    def now(kernel: Kernel) -> Kernel:
        return shorter.get(id(kernel), kernel)

    def changed(record: Record) -> Record:
        if isinstance(record, KeyValues):
            return replace(record, around=tuple(now(kernel) for kernel in record.around))
        return now(record) if isinstance(record, FlashAttention) else record

    return tuple(changed(record) for record in unpacked)


@formula("1", "derived")
def variation(lengths: FloatArray, seq_length: float) -> float:
    """Standard deviation over mean of the attention work of one pack.

    Work is the sum of l^2 over the samples of N tokens.  As a renewal-reward process its variance
    tends to N / E[l] times that of l^2 - c l, its mean to N c, with c = E[l^2] / E[l].
    """
    mean = float(np.mean(lengths))
    span = float(np.mean(lengths**2)) / mean
    spread = float(np.var(lengths**2 - span * lengths))
    return float(np.sqrt(spread / (mean * seq_length))) / span


@formula("1", "derived")
def expected_maximum(count: Array) -> Array:
    """Expected maximum of n standard normals: Blom's (n - 3/8) / (n + 1/4) quantile."""
    sizes, inverse = np.unique(np.asarray(count, dtype=np.float64), return_inverse=True)
    quantile = NormalDist().inv_cdf
    each = np.array([quantile((n - 0.375) / (n + 0.25)) for n in sizes.tolist()])
    return each[inverse].reshape(np.shape(count))
