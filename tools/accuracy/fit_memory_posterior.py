"""Fit the catalog's memory posterior: how far measured memory peaks are from predicted ones.

A peak's ln(measured / predicted) = mean + runtime + source + noise.  Runtimes and sources deviate
normally.  The noise is Student's t, and its size differs by source: sources print from 0.3 to 17 %
of scatter.  Drawn by Gibbs sampling, every step in closed form (Gelman et al., Bayesian Data
Analysis, 3rd edition, sections 5.4 and 12.1).  Accelerator families are no level: nearly each
runtime was measured on one of them.  Runs without a measured peak are not evidence here: of plans
that ran out few are published, and whole recipes that ran where much more was predicted would
widen all others.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from planner.evidence.uncertainty.error_features import Array
from planner.evidence.uncertainty.memory_risk import ANY, measured_as
from planner.evidence.uncertainty.posterior import FREEDOM
from planner.learning.accuracy.predict import Prediction

CHANCES = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, *(i / 20 for i in range(2, 19)),
    0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999,
)  # fmt: skip
SWEEPS, WARM_UP, REPEATS, SEED = 16_000, 500, 5, 7
# The deviation that runtimes, sources and noise are taken to have before any run is seen, and how
# many runs that counts for.
_USUAL, _WEIGHT = 0.05, 2.0
_SIZES = 4.0  # degrees of freedom of a source's noise: sizes differ by a factor of two or so


@dataclass(frozen=True)
class Peak:
    """A measured peak: ln(measured / predicted), and whose it is."""

    runtime: str
    source: str
    ln: float


def measured_peaks(predictions: Iterable[Prediction]) -> tuple[Peak, ...]:
    """The peaks of pre-training rows that say with confidence what was run.

    Fine-tuning on one card ends its backward pass layer by layer, keeps losses by chunks and frees
    gradients early, of which the model has no terms: its peaks would widen all others.
    """
    return tuple(
        Peak(
            measured_as(one.plan.runtime),
            one.run.source_key,
            log(one.run.peak_bytes / one.peak_bytes),
        )
        for one in predictions
        if one.plan is not None
        and one.peak_bytes
        and one.run.peak_bytes
        and one.settled
        and one.run["confidence"].lower() != "low"
        and not one.run.is_tuning
        and not _guesses_states(one)
    )


def _guesses_states(one: Prediction) -> bool:
    """Whether how the states are sharded is a guess, which moves a peak by factors."""
    assumed = one.case.assumptions if one.case is not None else ()
    return any(note.startswith("ZeRO stage") and "not stated" in note for note in assumed)


def document(peaks: Sequence[Peak]) -> dict[str, Any]:
    """What is shipped."""
    draws = posterior_draws(peaks)
    runtimes = sorted({peak.runtime for peak in peaks})
    return {
        "about": "ln(measured / predicted peak) that is exceeded with each chance, by runtime "
        "(planner/evidence/uncertainty/memory_risk.py); made by "
        "python -m tools.accuracy.fit_posterior --write",
        "sources": len({peak.source for peak in peaks}),
        "of_sources": round(float(np.median(draws.of_sources) ** 0.5), 4),
        "of_noise": round(float(np.ptp(np.quantile(_noise(draws), (0.16, 0.84)))) / 2.0, 4),
        "rows": dict(sorted(Counter(peak.runtime for peak in peaks).items())),
        "chances": [round(chance, 3) for chance in CHANCES],
        "above_ln": {
            name: [round(value, 4) for value in exceeded(predicted(draws, name))]
            for name in (*runtimes, ANY)
        },
    }


def text(peaks: Sequence[Peak]) -> str:
    """What is shipped, as it is written."""
    return re.sub(r"\n\s+(?=-?\d|\])", " ", json.dumps(document(peaks), indent=2)) + "\n"


def exceeded(values: Array) -> list[float]:
    """What draws exceed with each of CHANCES."""
    return np.quantile(values, 1.0 - np.array(CHANCES)).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Draws:
    """Of each sweep: the mean of each runtime, and variances of sources and of their noise."""

    means: dict[str, Array]
    of_sources: Array
    of_noise: Array


def predicted(draws: Draws, runtime: str) -> Array:
    """Draws of ln(measured / predicted) of a source that was not seen."""
    far = _noise(draws)
    mean, of_sources = (
        np.tile(values, REPEATS)
        for values in (draws.means.get(runtime, draws.means[ANY]), draws.of_sources)
    )
    own = np.sqrt(of_sources) * np.random.default_rng(SEED + 1).standard_normal(len(far))
    return np.asarray(mean + own + far)


def _noise(draws: Draws) -> Array:
    """Draws of what no two peaks of an unseen source share."""
    random, of_noise = np.random.default_rng(SEED), np.tile(draws.of_noise, REPEATS)
    size = of_noise * _SIZES / random.chisquare(_SIZES, len(of_noise))
    return np.asarray(np.sqrt(size) * random.standard_t(FREEDOM, len(of_noise)))


def posterior_draws(peaks: Sequence[Peak], sweeps: int = SWEEPS) -> Draws:
    """Draws from the posterior of these peaks."""
    random = np.random.default_rng(SEED)
    ln = np.array([peak.ln for peak in peaks])
    names, runtime = np.unique([peak.runtime for peak in peaks], return_inverse=True)
    sources, source = np.unique([peak.source for peak in peaks], return_inverse=True)
    groups = np.hstack([np.ones((len(ln), 1)), np.eye(len(names))[runtime]])
    groups = np.hstack([groups, np.eye(len(sources))[source]])
    counts = np.array([1, len(names), len(sources)])
    of_runtimes = of_sources = of_noise = _USUAL**2
    size, far = np.full(len(sources), of_noise), np.ones(len(ln))
    kept: list[tuple[float, ...]] = []

    def variance(of: Array) -> float:
        total = _WEIGHT * _USUAL**2 + of @ of
        return float(total / random.chisquare(_WEIGHT + len(of)))

    for _ in range(sweeps):
        # The mean and all deviations at once: one by one they would hardly move.
        weighted = groups * (far / size[source])[:, None]
        prior = np.repeat([_USUAL**-2, 1.0 / of_runtimes, 1.0 / of_sources], counts)
        root = np.linalg.cholesky(weighted.T @ groups + np.diag(prior))
        middle = np.linalg.solve(root, weighted.T @ ln)
        all_of = np.linalg.solve(root.T, middle + random.standard_normal(len(middle)))
        mean, by_runtime, by_source = np.split(all_of, np.cumsum(counts)[:-1])
        of_runtimes, of_sources = variance(by_runtime), variance(by_source)
        squares = (ln - groups @ all_of) ** 2
        far = random.chisquare(FREEDOM + 1.0, len(ln)) / (FREEDOM + squares / size[source])
        scatter = _SIZES * of_noise + np.bincount(source, far * squares)
        size = scatter / random.chisquare(_SIZES + np.bincount(source))
        shape = 0.5 * (_WEIGHT + _SIZES * len(sources))
        rate = 0.5 * (_WEIGHT / _USUAL**2 + _SIZES * (1.0 / size).sum())
        of_noise = float(random.gamma(shape) / rate)
        other = float(mean[0] + random.normal() * of_runtimes**0.5)
        kept.append((*(mean + by_runtime), other, of_sources, of_noise))
    columns = np.array(kept[min(WARM_UP, sweeps // 2) :]).T
    means = dict(zip([*names.tolist(), ANY], columns, strict=False))
    return Draws(means, columns[-2], columns[-1])


def coverage(
    peaks: Sequence[Peak], levels: Sequence[float], sweeps: int = SWEEPS // 8
) -> dict[float, float]:
    """Share of peaks above what is exceeded with each chance, their source left out, sources alike.

    A chance that holds is its own share.
    """
    shares = []
    for source in dict.fromkeys(peak.source for peak in peaks):
        own = [peak for peak in peaks if peak.source == source]
        draws = posterior_draws([peak for peak in peaks if peak.source != source], sweeps)
        above = [
            np.quantile(predicted(draws, peak.runtime), 1.0 - np.array(levels)) < peak.ln
            for peak in own
        ]
        shares.append(np.mean(above, axis=0))
    return dict(zip(levels, np.mean(shares, axis=0).tolist(), strict=True))
