"""What is believed of one error: normal components with weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf, exp, pi

import numpy as np

from planner.evidence.uncertainty.error_features import FACTORS, Array

_MOST_STEPS, _CLOSE = 60, 1e-7
_ROOT_HALF, _DENSITY = 0.5**0.5, (2.0 * pi) ** -0.5


@dataclass(frozen=True)
class Mixture:
    """Normal components of ln(measured / estimated); each of shape (components,).

    by_factor: the variance of each linear error, over all components.
    """

    weights: Array
    means: Array
    deviations: Array
    by_factor: Mapping[str, float]

    @property
    def mean(self) -> float:
        """The expected value."""
        return float(self.weights @ self.means)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        second = float(self.weights @ (self.deviations**2 + self.means**2))
        return float(np.sqrt(max(second - self.mean**2, 0.0)))

    @property
    def main(self) -> str:
        """The factor with the largest variance."""
        return max(FACTORS, key=lambda name: self.by_factor[name])

    def bounds(self, per_cent: float) -> tuple[float, float]:
        """The central interval that holds as many runs."""
        outside = (1.0 - per_cent / 100.0) / 2.0
        if not self.means.any():  # symmetric
            high = self._quantile(1.0 - outside)
            return -high, high
        return self._quantile(outside), self._quantile(1.0 - outside)

    def _quantile(self, share: float) -> float:
        """The quantile by Newton's steps, which bisect where they would leave its bracket."""
        # Components that differ in nothing, as those of the model's scale where it has no name.
        same: dict[tuple[float, float], float] = {}
        columns = (self.weights.tolist(), self.means.tolist(), self.deviations.tolist())
        for weight, *component in zip(*columns, strict=True):
            same[tuple(component)] = same.get(tuple(component), 0.0) + weight
        reach = 8.0 * float(self.deviations.max())
        low, high = float(self.means.min()) - reach, float(self.means.max()) + reach
        at = self.mean
        for _ in range(_MOST_STEPS):
            below, density = -share, 0.0
            for (mean, deviation), weight in same.items():
                z = (at - mean) / deviation
                below += 0.5 * weight * (1.0 + erf(z * _ROOT_HALF))
                density += weight * _DENSITY * exp(-0.5 * z * z) / deviation
            low, high = (at, high) if below < 0.0 else (low, at)
            step = at - below / density if density > 0.0 else low
            nearer = step if low < step < high else 0.5 * (low + high)
            if abs(nearer - at) < _CLOSE:
                return nearer
            at = nearer
        return at
