"""Kernels on a machine of round numbers, by hand: ten multiprocessors of 1 TFLOP/s."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.kernels import (
    MEASURED_QUERY_ROWS,
    attention_s,
    gemm_bytes,
    gemm_flop,
    gemm_s,
    memory_pass_s,
)
from cost_models.profiles import AttentionEfficiency, Curve, GemmEfficiency

PEAK, FAST, SLOW = 10e12, 1e15, 1e9  # FLOP/s, and bytes/s that never or always bind


def tiles(wave_share: float = 1.0) -> GemmEfficiency:
    return GemmEfficiency(
        tile_fraction=0.5, small_tile_fraction=0.8, tile_overhead_s=1e-6, wave_share=wave_share,
        floor_s=3e-6, memory_fraction=0.5, multiprocessors=10,
    )  # fmt: skip


# One tile of 256 x 128 and k = 1024 at half of 1 TFLOP/s, and one of 128 x 128 at 0.8 of that.
WHOLE_S = 2 * 256 * 128 * 1024 / 0.5e12 + 1e-6
HALF_S = 2 * 128 * 128 * 1024 / 0.4e12 + 0.5e-6


def test_a_product_is_counted() -> None:
    assert gemm_flop(3.0, 5.0, 7.0) == 210.0
    assert gemm_bytes(3.0, 5.0, 7.0, 2.0, 4.0) == (21 + 35) * 2 + 15 * 4


@pytest.mark.parametrize("wave_share", [0.0, 0.5, 1.0])
def test_ten_tiles_are_one_wave(wave_share: float) -> None:
    for m, n in ((2560.0, 128.0), (128.0, 2560.0), (2433.0, 65.0)):
        assert gemm_s(m, n, 1024.0, PEAK, FAST, tiles(wave_share)) == pytest.approx(
            3e-6 + WHOLE_S, rel=1e-12
        )


def test_the_eleventh_tile_costs_what_the_library_cannot_avoid() -> None:
    """22 tiles of half the size take three waves, less than two waves of whole ones."""
    took = gemm_s(2816.0, 128.0, 1024.0, PEAK, FAST, tiles())
    assert took == pytest.approx(3e-6 + 3 * HALF_S, rel=1e-12)
    # With half of the idle time lost whole tiles are ahead again, at 1.55 waves.
    took = gemm_s(2816.0, 128.0, 1024.0, PEAK, FAST, tiles(0.5))
    assert took == pytest.approx(3e-6 + 1.55 * WHOLE_S, rel=1e-12)


def test_less_than_a_wave_takes_a_whole_one() -> None:
    """A single tile of 64 x 64, an eighth: 0.8 to the third of the rate, an eighth of the start."""
    smallest = 2 * 64 * 64 * 1024 / (0.5e12 * 0.8**3) + 1e-6 / 8
    for wave_share in (0.0, 1.0):
        took = gemm_s(64.0, 64.0, 1024.0, PEAK, FAST, tiles(wave_share))
        assert took == pytest.approx(3e-6 + smallest, rel=1e-12)


def test_groups_share_the_waves() -> None:
    took = gemm_s(256.0, 128.0, 1024.0, PEAK, FAST, tiles(), groups=10.0)
    assert took == pytest.approx(3e-6 + WHOLE_S, rel=1e-12)


def test_a_product_bound_by_memory_moves_its_three_matrices() -> None:
    m, n, k = 512.0, 256.0, 64.0
    both, result = m * k + k * n, m * n
    took = gemm_s(m, n, k, PEAK, SLOW, tiles())
    assert took == pytest.approx(3e-6 + 2 * (both + result) / 0.5e9, rel=1e-12)
    took = gemm_s(m, n, k, PEAK, SLOW, tiles(), 1.0, 4.0, 3.0)
    assert took == pytest.approx(3e-6 + 3 * (both + 4 * result) / 0.5e9, rel=1e-12)


def test_nothing_takes_no_time() -> None:
    sizes = np.array([0.0, 1.0])
    assert list(gemm_s(sizes, 8.0, 8.0, PEAK, FAST, tiles()) > 0) == [False, True]
    curve = Curve(np.array([0.0]), np.array([0.5]))
    assert list(memory_pass_s(sizes, SLOW, curve, 1e-6)) == [0.0, 1e-6]


def test_a_pass_runs_at_the_curve_and_never_below_its_floor() -> None:
    """0.1 at 1 KiB, 0.5 at 1 MiB: 0.3 at 32 KiB."""
    curve = Curve(np.array([10.0, 20.0]), np.array([0.1, 0.5]))
    assert memory_pass_s(2.0**15, SLOW, curve, 0.0) == pytest.approx(2.0**15 / 0.3e9)
    assert memory_pass_s(2.0**5, SLOW, curve, 0.0) == pytest.approx(2.0**5 / 0.1e9)
    assert memory_pass_s(2.0**15, SLOW, curve, 1.0) == 1.0


def test_a_single_byte_and_a_single_token_have_their_own_value() -> None:
    curve = Curve(np.array([0.0, 1.0]), np.array([0.1, 0.5]))
    assert memory_pass_s(1.0, 1.0, curve, 0.0) == pytest.approx(10.0)
    table = AttentionEfficiency(np.array([1.0, 2.0]), np.array([64.0]), np.array([[0.1, 0.5]]))
    took = attention_s(1.0, 1.0, 64.0, 1.0, table, 0.0, MEASURED_QUERY_ROWS, 1.0)
    assert took == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("seq_length", "head_dim", "fraction"),
    [
        (1024.0, 64.0, 0.2),
        (2048.0, 64.0, 0.3),
        (2048.0, 128.0, 0.5),
        (2048.0, 64.0 * 2**0.5, 0.4),
        (4096.0, 64.0 * 2**0.25, 0.45),
        (2048.0, 256.0, 0.5),
        (512.0, 32.0, 0.2),
        (0.0, 64.0, 0.2),
    ],
)
def test_attention_lies_between_what_was_measured(
    seq_length: float, head_dim: float, fraction: float
) -> None:
    table = AttentionEfficiency(
        np.array([1024.0, 4096.0]), np.array([64.0, 128.0]), np.array([[0.2, 0.4], [0.4, 0.6]])
    )
    rows = MEASURED_QUERY_ROWS
    took = attention_s(1e9, seq_length, head_dim, 1e12, table, 0.0, rows, 100.0)
    assert took == pytest.approx(1e9 / (fraction * 1e12), rel=1e-12)
    assert attention_s(1e9, seq_length, head_dim, 1e12, table, 9.0, rows, 100.0) == 9.0


def test_few_queries_idle_longer_at_the_end() -> None:
    """As many idle rows as the benchmarks had: half the queries take (1 + 2) / (1 + 1)."""
    table = AttentionEfficiency(np.array([1.0]), np.array([64.0]), np.array([[1.0]]))
    rows = 16 * 16384.0
    took = attention_s(1e9, 4096.0, 64.0, 1e12, table, 0.0, rows / 2, rows)
    assert took == pytest.approx(1.5e-3, rel=1e-12)
    alone = attention_s(1e9, 4096.0, 64.0, 1e12, table, 0.0, 0.0, rows)
    assert alone == pytest.approx(1e-3 * (1 + rows) / 2, rel=1e-12)
