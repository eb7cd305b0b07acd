"""The values that an input takes: any for a real number, for an integer those that can run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from cost_models.plans import ParallelPlan
from planner.answers.plans.plan_answers import illegal
from planner.answers.sensitivities.inputs import Input, Variant, changed, held_in
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest

# Integers are tried at multiples p/q of the base up to these bounds, so that values are dense
# enough to locate a change of plan, and round if the base is.
_MOST_NUMERATOR, _MOST_DENOMINATOR = 32, 16
_FURTHER = 2.0  # how far beyond the asked factors an integer may go to find a value that can run
_STEP = 0.01  # relative step of a real number for the elasticity


@dataclass(frozen=True)
class Range:
    """The factors that an input may take between the lowest and the highest asked."""

    request: PlanRequest
    one: Input
    held: ParallelPlan
    factors: tuple[float, ...]
    resolution: float

    def _bounded(self, factor: float) -> float:
        """The nearest factor within the input's bounds."""
        return min(max(factor, self.one.least / self.one.value), self.one.most / self.one.value)

    def sampled(self) -> list[float]:
        """The asked factors, each moved to the nearest on its side of the base that can run."""
        chosen = set()
        for factor in self.factors:
            nearest = self._nearest(factor)
            if nearest is not None and nearest != 1.0:
                chosen.add(nearest)
        return sorted(chosen)

    def left_out(self) -> list[float]:
        """The asked factors that have no value, or whose value a nearer factor already has."""
        taken: dict[float, float] = {}
        for factor in sorted(self.factors, key=self._distance):
            nearest = self._nearest(factor)
            if nearest is not None and nearest != 1.0:
                taken.setdefault(nearest, factor)
        return sorted(set(self.factors) - set(taken.values()) - {1.0})

    def between(self, near: float, far: float) -> list[float]:
        """Factors from `near` to `far` inclusive, as dense as the resolution asks."""
        low, high = min(near, far), max(near, far)
        if self.one.whole:
            found = [factor for factor in (*self._integer_factors, 1.0) if low <= factor <= high]
            return sorted(found, reverse=near > far)
        steps = max(1, math.ceil(math.log(high / low) / math.log1p(self.resolution)))
        inner = [near * (far / near) ** (k / steps) for k in range(1, steps)]
        return [near, *inner, far]

    def neighbours(self) -> tuple[float, float]:
        """The nearest factors below and above the base; the base itself if a side has none."""
        if self.one.whole:
            below = [factor for factor in self._integer_factors if factor < 1]
            above = [factor for factor in self._integer_factors if factor > 1]
            return max(below, default=1.0), min(above, default=1.0)
        return self._bounded(1 - _STEP), self._bounded(1 + _STEP)

    def _distance(self, factor: float) -> float:
        nearest = self._nearest(factor)
        return math.inf if nearest is None else abs(math.log(nearest / factor))

    def _nearest(self, factor: float) -> float | None:
        if factor == 1.0:
            return None
        if not self.one.whole:
            return self._bounded(factor)
        own_side = [one for one in self._integer_factors if (one < 1) == (factor < 1)]
        return min(own_side, key=lambda one: abs(math.log(one / factor)), default=None)

    @cached_property
    def _integer_factors(self) -> list[float]:
        """Factors of an integer, per side: those at which the held plan can run, or else all."""
        runs, valid = list[float](), list[float]()
        low, high = min(self.factors) / _FURTHER, max(self.factors) * _FURTHER
        for factor in _fractions(int(self.one.value), low, high):
            try:
                variant = changed(self.request, self.one, factor)
            except RequestError:
                continue
            valid.append(factor)
            if not self.refused(variant):
                runs.append(factor)
        return [
            factor
            for side in (lambda f: f < 1, lambda f: f > 1)
            for factor in (list(filter(side, runs)) or list(filter(side, valid)))
        ]

    def refused(self, variant: Variant) -> bool:
        return bool(illegal(variant.request, held_in(variant, self.held)))


def _fractions(base: int, low: float, high: float) -> Iterable[float]:
    """The factors within bounds that take an integer to another integer, ascending."""
    found = {
        Fraction(p, q)
        for q in range(1, _MOST_DENOMINATOR + 1)
        for p in range(1, _MOST_NUMERATOR + 1)
        if base * p % q == 0 and low <= p / q <= high and p != q
    }
    return (float(fraction) for fraction in sorted(found))
