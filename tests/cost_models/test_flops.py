"""FLOP counts against SC'21 eq. 3 and against the kernels that are timed."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.blocks.head import Head
from cost_models.blocks.records import FlashAttention, Gemm
from cost_models.catalog.models import model as preset
from cost_models.flops import forward_flop, matmul_flop, step_flop
from cost_models.layers import layers_of
from cost_models.spec import ModelSpec, TrainingSpec
from tests.fixtures.layers import one_micro_batch


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch"),
    [(24, 2304, 24, 512), (30, 3072, 32, 512), (96, 12288, 96, 1536), (128, 25600, 160, 3072)],
)
def test_model_flop_with_full_recompute_is_eq_3(
    layers: int, hidden: int, heads: int, batch: int
) -> None:
    """Eq. 3 counts 4 forward passes of every layer (one recomputed) and 3 of the head."""
    vocab, seq = 51200, 2048
    model = ModelSpec(
        num_layers=layers, hidden_size=hidden, num_attention_heads=heads, vocab_size=vocab
    )
    training = TrainingSpec(seq_length=seq, global_batch_size=batch)
    tokens = float(training.tokens_per_iteration)
    head = matmul_flop(tokens, float(hidden * vocab))
    forward = forward_flop(model, tokens, float(seq), causal=False)
    assert step_flop(model, training) == pytest.approx(3 * forward, rel=1e-15)
    hardware = 4 * (forward - head) + 3 * head
    over_heads = 1 + seq / (6 * hidden) + vocab / (16 * layers * hidden)
    expected = 96.0 * batch * seq * layers * hidden**2 * over_heads
    assert hardware == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "name", ["gpt3-175b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"]
)
def test_kernels_do_the_counted_flop(name: str) -> None:
    """The GEMMs that are timed add up to the model FLOP (flash attention: the causal half)."""
    model = preset(name).model_copy(update={"mtp_num_layers": 0})
    seq = 4096
    training = TrainingSpec(seq_length=seq, global_batch_size=8)
    micro = one_micro_batch(model, training)
    timed = 0.0
    for place in layers_of(model).order:
        timed += sum(_flop(record) for record in micro.layers[place])
    timed += sum(_flop(record) for record in Head(divisible_by=1).records(model, micro.d))
    counted = forward_flop(model, float(seq), float(seq), causal=True)
    assert timed == pytest.approx(counted, rel=1e-4)


def _flop(kernel: object) -> float:
    if isinstance(kernel, Gemm):
        one = 2.0 * kernel.m * kernel.n * kernel.k * kernel.groups * kernel.active
        return float(np.max(one))
    if isinstance(kernel, FlashAttention):
        return float(np.max(kernel.forward_flop * kernel.active))
    return 0.0


def test_sliding_window_counts_only_its_pairs() -> None:
    """A window of w keys: w(s - w/2) causal pairs instead of s^2/2."""
    base = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10}
    full = ModelSpec.model_validate(base)
    windowed = ModelSpec.model_validate({**base, "sliding_window": 128})
    seq = 1024.0
    difference = forward_flop(full, seq, seq, True) - forward_flop(windowed, seq, seq, True)
    pairs = seq * seq / 2 - 128 * (seq - 64)
    # Two layers, 2 FLOP per multiply-add, Q K^T and P V over 64 values each.
    assert difference == pytest.approx(2 * 2 * 2 * 64 * pairs)
