"""Dynamic context parallelism: each sample runs on as few of dp x cp ranks as its length needs.

A rank holds seq_length / cp tokens of one sample; a sample of length l takes the smallest power of
two of ranks that holds it, and runs alone, in a forward and backward pass of its own (Megatron-LM's
BalancedCPScheduler, pipeline_parallel/hybrid_cp_schedule.py, core 0.18 to 0.19).
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.activation_memory import micro_batch
from cost_models.arrays import maximum
from cost_models.blocks.records import Kernel
from cost_models.keyed_plans import CostContext
from cost_models.keys import KeyView
from cost_models.layer_costs import MicroBatchSeconds, micro_batch_seconds
from cost_models.packing import FloatArray, lengths_of
from cost_models.plans import Plans
from cost_models.sources import Array, formula
from cost_models.spec import TrainingSpec

# Intervals per octave of lengths, each priced at its mean length: within a third of an octave,
# attention's work differs from that of the mean length by less than half a percent.
PARTS_OF_AN_OCTAVE = 3
# Median of 168 pools (8 to 128 ranks, log-normal, uniform and two-valued lengths, 1 to 100 passes a
# rank) that Megatron-LM's scheduler dealt, at 6 h l + l^2 / 2 operations for a sample.
BEHIND = 1.9


@formula("1", "megatron-core")
def ranks_of(lengths: Array, seq_length: float, cp: Array) -> Array:
    """Ranks of a sample: the smallest power of two that holds it, cp for the longest."""
    return np.exp2(np.maximum(np.ceil(np.log2(lengths * cp / seq_length)), 0.0))


def is_dynamic(training: TrainingSpec, plans: Plans) -> NDArray[np.bool_]:
    """Which plans assign ranks to samples by their lengths."""
    return np.asarray((plans.dynamic_cp > 0) & (plans.cp > 1) & training.packs)


def length_groups(training: TrainingSpec) -> tuple[tuple[float, float], ...]:
    """(mean length, share of the samples) of intervals of samples with similar costs.

    No interval extends across a power of two of the sequence.
    """
    lengths = np.sort(lengths_of(training))
    octaves = np.floor(np.log2(training.seq_length / lengths)).astype(int).tolist()
    groups = []
    for _, indices in groupby(range(len(lengths)), key=octaves.__getitem__):
        for part in np.array_split(lengths[list(indices)], PARTS_OF_AN_OCTAVE):
            if len(part):
                groups.append((float(part.mean()), len(part) / len(lengths)))
    return tuple(groups)


@formula("1", "derived")
def waiting_share(training: TrainingSpec, plans: Plans) -> FloatArray:
    """The share of a step in which ranks wait for the fullest one.

    A rank takes part in n E[c] / (dp cp) passes of n samples; the fullest is BEHIND standard
    deviations of a pass (its tokens per rank, l / c) behind the mean.
    """
    seq_length = float(training.seq_length)
    tokens: Array = 0.0
    ranks: Array = 0.0
    squares: Array = 0.0
    for length, share in length_groups(training):
        own_ranks = ranks_of(length, seq_length, plans.cp)
        tokens = tokens + share * length
        ranks = ranks + share * own_ranks
        squares = squares + share * length**2 / own_ranks
    passes = training.positions_per_iteration / tokens * ranks / (plans.dp * plans.cp)
    variance = maximum(squares / ranks / (tokens / ranks) ** 2 - 1.0, 0.0)
    return np.asarray(BEHIND * np.sqrt(variance) / passes, dtype=np.float64)


@formula("s", "derived")
def by_sample(s: CostContext, keys: KeyView, packed: MicroBatchSeconds) -> MicroBatchSeconds:
    """Seconds of a micro-batch of seq_length / cp tokens a rank, where samples run one by one.

    That many tokens of a rank are (seq_length / cp) E[c t(l, c)] / E[l] seconds, with c ranks and
    t seconds for a sample of l tokens.  `packed`: the seconds of keys that split every sequence.
    """
    training = s.training
    chosen = np.broadcast_to(is_dynamic(training, keys), (len(keys),))
    if not chosen.any():
        return packed
    rows = np.flatnonzero(chosen)
    cp = np.broadcast_to(keys.cp, (len(keys),))[rows]
    samples = length_groups(training)
    tokens = sum(length * share for length, share in samples)
    weights, priced = [], []
    for length, share in samples:
        ranks = ranks_of(length, float(training.seq_length), cp)
        view = keys.changed(rows, cp=np.asarray(ranks, dtype=np.int64))
        sample = training.model_copy(update={"seq_length": length, "sample_lengths": ()})
        weights.append(training.seq_length / cp * ranks * share / tokens)
        priced.append(
            micro_batch_seconds(s.model, s.machine, micro_batch(s.model, sample, view), view)
        )

    def mixed(value: Any, others: list[Any]) -> Any:
        """The record with every number mixed from those at its place in the others."""
        if isinstance(value, tuple):
            columns = zip(value, *others, strict=True)
            return tuple(mixed(first, rest) for first, *rest in columns)
        if isinstance(value, Kernel):
            return value
        if is_dataclass(value) and not isinstance(value, type):
            at = {f.name: [getattr(other, f.name) for other in others] for f in fields(value)}
            merged = {name: mixed(getattr(value, name), values) for name, values in at.items()}
            return replace(value, **merged)
        result = np.array(np.broadcast_to(value, (len(keys),)), dtype=np.float64)
        result[rows] = sum(weight * other for weight, other in zip(weights, others, strict=True))
        return result

    seconds: MicroBatchSeconds = mixed(packed, priced)
    return seconds
