"""Seconds of one kernel: roofline with an efficiency that depends on size (reference: profiles).

Not modelled: clock changes under sustained power beyond the profile's, L2 reuse between kernels.
"""

from __future__ import annotations

import math

import numpy as np

from cost_models.arrays import maximum, minimum, where
from cost_models.profiles import AttentionEfficiency, Curve, GemmEfficiency
from cost_models.sources import Array, formula

# Tiles of C that matrix libraries choose from, rows x columns; each also transposed.
TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
_SHARES = tuple(high * wide / (TILES[0][0] * TILES[0][1]) for high, wide in TILES)
_HALVINGS = tuple(-math.log2(share) for share in _SHARES)  # of the largest tile

MEASURED_QUERY_ROWS = 16384.0 * 16  # of the flash-attention benchmarks: 16k tokens, 16 heads


@formula("flop", "derived")
def gemm_flop(m: Array, n: Array, k: Array) -> Array:
    """FLOP of C[m,n] = A[m,k] B[k,n]: one multiply and one add per inner element."""
    return 2.0 * m * n * k


@formula("byte", "derived")
def gemm_bytes(m: Array, n: Array, k: Array, element_bytes: Array, output_bytes: Array) -> Array:
    """The least bytes that C = A B moves: both operands read, the result written once."""
    return (m * k + k * n) * element_bytes + m * n * output_bytes


@formula("s", "roofline", "aiconfigurator")
def gemm_s(
    m: Array,
    n: Array,
    k: Array,
    peak_flop_per_s: Array,
    memory_bytes_per_s: float,
    efficiency: GemmEfficiency,
    element_bytes: float = 2.0,
    output_bytes: Array = 2.0,
    groups: Array = 1.0,
) -> Array:
    """Seconds of `groups` equal GEMMs launched as one kernel (groups = 1: a plain GEMM).

    C is cut into tiles, each computed by one multiprocessor, in waves; the library chooses the tile
    size that finishes first.  Tiles that extend beyond C waste work, which makes small m and n
    slow; the overhead of each tile makes small k slow.  An empty GEMM (no tokens) takes no time.
    Not modelled: splitting k over multiprocessors where C has few tiles.
    """
    flop = gemm_flop(m, n, k) * groups
    units = efficiency.multiprocessors
    unit_flop_per_s = peak_flop_per_s / units * efficiency.tile_fraction
    rows = {size: np.ceil(m / size) for size in (64, 128, 256)}
    columns = {size: np.ceil(n / size) for size in (64, 128, 256)}
    each = groups / units
    arithmetic: Array = np.inf
    for (high, wide), share, halvings in zip(TILES, _SHARES, _HALVINGS, strict=True):
        count = rows[high] * columns[wide]
        if high != wide:
            count = minimum(count, rows[wide] * columns[high])
        count = count * each
        waves = (1.0 - efficiency.wave_share) * maximum(count, 1.0)
        waves = waves + efficiency.wave_share * np.ceil(count)
        rate = unit_flop_per_s * efficiency.small_tile_fraction**halvings
        one_s = (2.0 * high * wide / rate) * k + share * efficiency.tile_overhead_s
        arithmetic = minimum(arithmetic, waves * one_s)
    moved = gemm_bytes(m, n, k, element_bytes, output_bytes) * groups
    seconds = efficiency.floor_s + maximum(
        arithmetic, moved / (memory_bytes_per_s * efficiency.memory_fraction)
    )
    return where(flop > 0, seconds, 0.0)


@formula("s", "roofline", "aiconfigurator")
def memory_pass_s(
    moved_bytes: Array, memory_bytes_per_s: float, efficiency: Curve, floor_s: float
) -> Array:
    """Seconds of an elementwise kernel that moves moved_bytes (reads plus writes)."""
    fraction = interpolate(efficiency, np.log2(maximum(moved_bytes, 1.0)))
    seconds = maximum(moved_bytes / (memory_bytes_per_s * fraction), floor_s)
    return where(moved_bytes > 0, seconds, 0.0)


@formula("s", "flash-attention-2", "flash-attention-3")
def attention_s(
    work_flop: Array,
    seq_length: Array,
    head_dim: float,
    peak_flop_per_s: float,
    efficiency: AttentionEfficiency,
    floor_s: float,
    query_rows: Array,
    idle_rows: float,
) -> Array:
    """Seconds of one flash-attention pass over work_flop executed FLOP.

    The efficiency is interpolated in log(length) along the measured head dimensions; outside
    the table the edge value holds.  query_rows: queries times heads of the launch.  The last rows
    of a causal square have most to do, so that multiprocessors idle at the end for as long as
    idle_rows more would take (derived; held against single kernels by number of heads, SimuMax
    tables); the efficiencies were measured at MEASURED_QUERY_ROWS.
    """
    dims = np.log2(efficiency.head_dim)
    x = np.log2(maximum(seq_length, 1.0))
    by_dim = [np.interp(x, np.log2(efficiency.seq_length), row) for row in efficiency.fraction]
    position = float(np.interp(np.log2(head_dim), dims, np.arange(len(dims))))
    low = int(position)
    high = min(low + 1, len(dims) - 1)
    weight = position - low
    fraction = by_dim[low] * (1.0 - weight) + by_dim[high] * weight
    idle = (1.0 + idle_rows / maximum(query_rows, 1.0)) / (1.0 + idle_rows / MEASURED_QUERY_ROWS)
    seconds: Array = maximum(work_flop * idle / (peak_flop_per_s * fraction), floor_s)
    return seconds


def interpolate(curve: Curve, x: Array) -> Array:
    """Piecewise-linear interpolation of a measured curve; constant outside it."""
    return np.interp(x, curve.x, curve.y)
