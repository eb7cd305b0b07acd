"""Packed and padded samples, against sums over drawn packs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.blocks.attention import attention_span
from cost_models.blocks.records import FlashAttention, KeyValues
from cost_models.catalog.models import model
from cost_models.estimate import CostModel
from cost_models.flops import forward_flop, step_flop
from cost_models.packing import expected_maximum, packed_span, variation, window_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.layers import one_micro_batch

LLAMA = model("llama-3.1-8b")
LENGTHS = (120, 250, 400, 700, 1200, 2600)


def training(**fields: Any) -> TrainingSpec:
    return TrainingSpec(**{"seq_length": 8192, "global_batch_size": 64, **fields})


@given(window=st.integers(1, 4096), length=st.integers(1, 4096))
def test_a_window_follows_from_its_span(window: int, length: int) -> None:
    span = attention_span(float(window), float(length))
    assert window_of(span, float(length)) == pytest.approx(min(window, length), rel=1e-6)


@pytest.mark.parametrize("window", [None, 300])
def test_the_span_of_a_pack_counts_the_pairs_of_its_samples(window: int | None) -> None:
    """Pairs of a query with keys at or before it, in its sample and window; twice is the span."""
    pairs = sum(np.minimum(np.arange(1, length + 1), window or length).sum() for length in LENGTHS)
    whole = attention_span(window, 8192.0)
    found = packed_span(whole, 8192.0, np.array(LENGTHS, dtype=np.float64))
    # Counted pairs have the diagonal whole, spans half of it.
    assert found * sum(LENGTHS) / 2 == pytest.approx(pairs, rel=2e-3)


def test_one_sample_per_sequence_is_what_no_lengths_are() -> None:
    same = training(sample_lengths=(8192,))
    assert step_flop(LLAMA, same) == step_flop(LLAMA, training())
    before, after = (CostModel(LLAMA, parse_cluster("1x8xh100-sxm"), t) for t in (training(), same))
    rows = Plans.from_rows([ParallelPlan(dp=8, zero_stage=3)])
    assert before.evaluate(rows).iteration_time_s == after.evaluate(rows).iteration_time_s


def test_attention_alone_gets_shorter_and_its_exchange_knows() -> None:
    whole, short = (
        one_micro_batch(LLAMA, training(**fields), cp=2).layers[0]
        for fields in ({}, {"sample_lengths": LENGTHS})
    )
    share = sum(length**2 for length in LENGTHS) / sum(LENGTHS) / 8192
    for one, other in zip(whole, short, strict=True):
        if isinstance(one, FlashAttention) and isinstance(other, FlashAttention):
            assert np.allclose(other.forward_flop / one.forward_flop, share)
            assert np.allclose(other.span / one.span, share)
        elif isinstance(other, KeyValues):
            assert [k for k in other.around if isinstance(k, FlashAttention)] == [
                r for r in short if isinstance(r, FlashAttention)
            ]
        else:
            assert type(one) is type(other)


def test_padding_costs_time_and_is_no_token() -> None:
    padded = training(sample_lengths=(1024, 3072), packing="padded")
    assert padded.tokens_per_iteration == 64 * 2048
    assert padded.positions_per_iteration == training().tokens_per_iteration
    cost = [CostModel(LLAMA, parse_cluster("1x8xh100-sxm"), t) for t in (training(), padded)]
    rows = Plans.from_rows([ParallelPlan(dp=8, zero_stage=3)])
    assert cost[0].evaluate(rows).iteration_time_s == cost[1].evaluate(rows).iteration_time_s
    each = forward_flop(LLAMA, 1024.0, 1024.0, False) + forward_flop(LLAMA, 3072.0, 3072.0, False)
    assert step_flop(LLAMA, padded) == pytest.approx(3 * 32 * each)
    long = training(sample_lengths=(1024, 30720), packing="padded")
    assert long.tokens_per_iteration == 32 * (1024 + 8192)


def draw_packs(lengths: np.ndarray, tokens: int, packs: int) -> np.ndarray:
    """Work of packs cut out of one stream of samples, each sample in the pack that it ends in."""
    random = np.random.default_rng(1)
    samples = random.choice(lengths, size=int(1.2 * packs * tokens / lengths.mean()))
    ends = np.cumsum(samples)
    return np.bincount((ends // tokens).astype(int), weights=samples**2)[1:packs]


def test_the_spread_of_packs_is_that_of_drawn_ones() -> None:
    lengths = np.array(LENGTHS, dtype=np.float64)
    for tokens in (32768, 131072):
        work = draw_packs(lengths, tokens, 3000)
        assert variation(lengths, tokens) == pytest.approx(work.std() / work.mean(), rel=0.12)
    assert variation(np.array([512.0]), 8192.0) == 0.0


def test_the_expected_maximum_is_that_of_normal_order_statistics() -> None:
    """Harter's tables."""
    exact = {1: 0.0, 2: 0.56419, 8: 1.42360, 100: 2.50759, 1000: 3.24144}
    assert expected_maximum(np.array(list(exact))) == pytest.approx(list(exact.values()), abs=0.03)
    assert expected_maximum(1) == 0.0


def test_ranks_wait_for_the_fullest_and_longer_between_meetings_less() -> None:
    spec = training(seq_length=32768, sample_lengths=(*LENGTHS, 32768), global_batch_size=128)
    cost = CostModel(LLAMA, parse_cluster("1x8xh100-sxm"), spec)
    plans = [ParallelPlan(dp=8, zero_stage=zero) for zero in (1, 3)]
    plans.append(ParallelPlan(dp=1, tp=8, zero_stage=0))
    lost = cost.evaluate(Plans.from_rows(plans)).time_parts_s["stragglers"]
    once, every, alone = lost.tolist()
    assert every / once == pytest.approx(4.0, rel=0.05)  # 16 micro-batches average out
    assert alone == 0.0
