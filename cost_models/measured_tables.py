"""The tables of one machine's measurements: a rate over sizes, interpolated in logarithms.

They price a measured term instead of a profile's fractions of peak; their points come from a
calibration (calibrations.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cost_models.sources import Array, formula

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RateGrid:
    """A measured rate over sizes: log2 of both, on the product of the sizes that were measured."""

    axes: tuple[FloatArray, ...]
    log_rate: FloatArray

    @classmethod
    def of(cls, sizes: Sequence[Sequence[float]], rates: Sequence[float]) -> RateGrid:
        """A grid from points in any order; a missing point gets the rate of the nearest one."""
        at = np.log2(np.asarray(sizes, dtype=np.float64))
        axes = tuple(np.unique(column) for column in at.T)
        points = np.array(list(product(*axes)))
        nearest = [int(np.argmin(((at - point) ** 2).sum(axis=1))) for point in points]
        logs = np.log2(np.asarray(rates, dtype=np.float64))[nearest]
        return cls(axes, logs.reshape([len(axis) for axis in axes]))

    def rate(self, *sizes: Array) -> Array:
        """The rate at these sizes, multilinear in logarithms; outside the grid its edge holds."""
        total: Array = 0.0
        lows, shares = [], []
        for axis, size in zip(self.axes, sizes, strict=True):
            position = np.interp(np.log2(np.maximum(size, 1e-9)), axis, np.arange(len(axis)))
            low = np.minimum(position.astype(np.int64), max(len(axis) - 2, 0))
            lows.append((low, np.minimum(low + 1, len(axis) - 1)))
            shares.append((1.0 - (position - low), position - low))
        for corner in product((0, 1), repeat=len(self.axes)):
            weight = reduce(np.multiply, [s[c] for s, c in zip(shares, corner, strict=True)])
            at = tuple(low[c] for low, c in zip(lows, corner, strict=True))
            total = total + weight * self.log_rate[at]
        return np.exp2(total)


@dataclass(frozen=True)
class Linear:
    """seconds = fixed_s + per_unit_s x units, both at least zero."""

    fixed_s: float
    per_unit_s: float


@formula("s", "derived")
def linear_through(points: Sequence[tuple[float, float]]) -> Linear:
    """The line of least relative error through (units, seconds); neither part below zero."""
    units = np.array([u for u, _ in points], dtype=np.float64)
    seconds = np.maximum([s for _, s in points], 1e-12)
    if len(points) == 1:
        return Linear(0.0, float(seconds[0] / units[0]))
    rows = np.stack([1.0 / seconds, units / seconds], axis=1)
    (fixed, slope), *_ = np.linalg.lstsq(rows, np.ones(len(points)), rcond=None)
    if slope < 0:
        return Linear(float(np.median(seconds)), 0.0)
    if fixed < 0:
        return Linear(0.0, float(np.median(seconds / units)))
    return Linear(float(fixed), float(slope))


@dataclass(frozen=True, eq=False)
class Measured:
    """The tables of a calibration; terms without points are absent.

    gemm: FLOP/s over (m, n, k) by precision and product; attention: FLOP/s over (head_dim,
    seq_length); passes: bytes/s over bytes.  host: seconds per layer.  wrapper: per block and
    parameter.  optimizer: seconds per tensor and per parameter.  crowding: slowdown by kind of
    kernel and ranks at work.  contention: seconds kernels lose per second of collectives.
    message: seconds per byte sent to another rank.
    synchronous: the host computes, so that what it does between kernels adds to them.
    """

    gemm: dict[tuple[str, str], RateGrid]
    attention: dict[tuple[str, str], RateGrid]
    passes: dict[tuple[str, str, str], RateGrid]
    host: dict[tuple[str, str], float]
    wrapper: dict[tuple[str, str], Linear]
    optimizer: tuple[float, float] | None
    crowding: dict[str, tuple[tuple[int, float], ...]]
    contention: float | None
    message: Linear | None
    synchronous: bool

    def slowdown(self, kernel: str, ranks: int) -> float:
        """The slowdown of a kernel while this number of ranks of a node work."""
        points = self.crowding.get(kernel, ((1, 1.0),))
        return float(np.interp(ranks, [r for r, _ in points], [s for _, s in points]))
