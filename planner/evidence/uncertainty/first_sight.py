"""How far off an estimate may be for a site that the planner has not seen, and what its runs teach.

ln(measured / estimated) of the runs of one site is a sum of errors, each proportional to one of
LINEAR (the share of the time that a factor takes, a fixed cost of short steps, the nodes, the width
of the model), of errors that runs of one kind share (SHARED), and of noise.  All are normal, with
deviations that were fitted to what earlier releases said of sources that nobody had tuned to
(`catalog/first_sight.csv`; `python -m tools.accuracy.fit_first_sight --write`).

How much a site differs from what is known, how much a model does there and how noisy its runs are
is not known in advance: each has a few possible scales, and the belief is a mixture over all of
their combinations, weighted by how well each explains the site's own runs.  So three runs that
agree are believed, and one that contradicts the others is not.  What was guessed (DOUBTS) widens
every error.  Conditioning on runs has a closed form in each component (Rasmussen and Williams 2006,
section 2.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import exp, log, log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_models.runtimes import RUNTIMES
from planner.documents.scored_runs import scored_runs
from planner.evidence.uncertainty.error_features import (
    DOUBTS,
    FACTORS,
    NARROW,
    Array,
    ErrorFeatures,
)
from planner.evidence.uncertainty.mixture import Mixture
from planner.evidence.uncertainty.posterior import SeenRun

FILE = Path(__file__).parents[3] / "cost_models" / "catalog" / "first_sight.json"
LINEAR = ("common", *FACTORS, "fixed", "nodes", "width")
SHARED = ("experts", "accelerator", "precision", "model")
# A fixed cost of this many seconds is all of the time of steps that are as short.
FIXED_S = 0.1
USUAL_ACCELERATORS, USUAL_HIDDEN_SIZE = 8, 8192
# Sources alike (accelerator, stack, kind of model) beyond these narrow an interval no further.
MAX_ALIKE = 7
# The chance that a run is an outlier, and the deviation of ln that it then has besides.
OUTLIERS, OUTLIER_DEVIATION = 0.08, 1.0
_ROUNDS = 3


@dataclass(frozen=True)
class Prior:
    """Standard deviations of ln, and the scales that a site may have.

    linear: by LINEAR.  shared: by SHARED.  doubts: ln of how many times each of DOUBTS widens.
    alike: how much of ln each doubling of sources alike takes off.  site, model, noise_scales:
    weight by scale.
    """

    linear: Mapping[str, float]
    shared: Mapping[str, float]
    noise: float
    doubts: Mapping[str, float]
    alike: float
    site: Mapping[float, float]
    model: Mapping[float, float]
    noise_scales: Mapping[float, float]

    @cached_property
    def variances(self) -> Array:
        """Variances of the linear errors; shape (LINEAR,)."""
        return np.square([self.linear[name] for name in LINEAR])

    @cached_property
    def components(self) -> tuple[Array, Array, Array, Array]:
        """Variances of site, model and noise, and the ln of the weight, of each combination."""
        rows = [
            (site**2, model**2, (noise * self.noise) ** 2, log(first * second * third))
            for site, first in self.site.items()
            for model, second in self.model.items()
            for noise, third in self.noise_scales.items()
        ]
        site, model, noise, weight = np.array(rows).T
        return site, model, noise, weight

    def scale(self, of: ErrorFeatures) -> float:
        """How many times as wide an estimate is as one without doubts and sources alike."""
        sources = sources_alike(of) if of.sources_alike is None else of.sources_alike
        ln = sum(self.doubts[doubt] for doubt in of.doubts)
        return exp(ln - self.alike * log2(1 + min(sources, MAX_ALIKE)))


def linear(shares: Array, seconds: Array | float, accelerators: int, hidden_size: int) -> Array:
    """What the linear errors are proportional to, in the order of LINEAR.

    shares: (..., FACTORS).  seconds: of the iteration, (...).
    """
    nodes = log2(max(accelerators / USUAL_ACCELERATORS, 1.0)) / 8.0
    width = log2(hidden_size / USUAL_HIDDEN_SIZE) / 4.0
    time_s: Array = np.asarray(seconds, dtype=np.float64)
    ones = np.ones_like(time_s)
    rest = [np.minimum(FIXED_S / time_s, 1.0), nodes * ones, width * ones]
    return np.concatenate([ones[..., None], shares, np.stack(rest, axis=-1)], axis=-1)


def linear_of(of: ErrorFeatures) -> Array:
    """The regressors of one estimate; shape (LINEAR,)."""
    return linear(np.array(of.shares), of.seconds, of.accelerators, of.hidden_size)


def kinds_of(of: ErrorFeatures) -> tuple[str, str, str, str]:
    """The names by which runs share errors, in the order of SHARED; "" shares nothing."""
    _, accelerator, _, _, model = of.groups
    narrow = of.precision in NARROW
    return "experts" * of.experts, accelerator, f"{accelerator} {'narrow' * narrow}", model


def stack_of(runtime: str) -> str:
    """Whose kernels a runtime has."""
    known = RUNTIMES.get(runtime)
    return runtime if known is None or runtime == "jax" else known.lineage


def sources_alike(of: ErrorFeatures) -> int:
    """Other sources with published runs of its accelerator, stack and kind of model."""
    _, accelerator, runtime, source, _ = of.groups
    sources = _sources().get((accelerator, stack_of(runtime), of.experts), frozenset())
    return len(sources - {source})


@cache
def _sources() -> Mapping[tuple[str, str, bool], frozenset[str]]:
    by_kind: dict[tuple[str, str, bool], set[str]] = {}
    for run in scored_runs():
        if run.intervals_s and not run.stack_guessed:
            kind = (run.accelerator, stack_of(run.runtime), run.experts)
            by_kind.setdefault(kind, set()).add(run.source)
    return {kind: frozenset(sources) for kind, sources in by_kind.items()}


class Rows(NamedTuple):
    """What n estimates or runs share errors by.

    linear: (n, LINEAR), times the scale of each.  scales: (n,).  kinds: (n, SHARED), names.
    """

    linear: Array
    scales: Array
    kinds: NDArray[np.str_]


def rows_of(prior: Prior, features: Sequence[ErrorFeatures]) -> Rows:
    """The rows of several estimates or runs."""
    scales = np.array([prior.scale(f) for f in features])
    linear = scales[:, None] * np.array([linear_of(f) for f in features])
    return Rows(linear, scales, np.array([kinds_of(f) for f in features]))


class _Seen(NamedTuple):
    """A site's n runs as each of C components sees them.

    inverse: of their covariance, (C, n, n).  weighted: its product with the errors, (C, n).
    noise: (C, n).  weights: of the components, (C,).
    """

    runs: Rows
    ln: Array
    inverse: Array
    weighted: Array
    noise: Array
    weights: Array


class Belief:
    """What is believed of the errors at one site, given its runs (none: at first sight)."""

    def __init__(self, prior: Prior, runs: Sequence[SeenRun] = ()) -> None:
        self.prior = prior
        self._seen = _conditioned(prior, runs) if runs else None

    def mixture(self, of: ErrorFeatures) -> Mixture:
        """ln(measured / estimated) of an estimate at the site."""
        prior, seen = self.prior, self._seen
        site, model, noise, weight = prior.components
        scale = prior.scale(of)
        row, kinds = scale * linear_of(of), kinds_of(of)
        by_linear = prior.variances * row**2
        *shared, of_model = (prior.shared[name] ** 2 * scale**2 for name in SHARED)
        known = sum(size for size, kind in zip(shared, kinds, strict=False) if kind)
        variance = site * (by_linear.sum() + known) + model * of_model
        weights, means = np.exp(weight), np.zeros(len(weight))
        if seen is not None:
            across = _run_covariance(prior, seen, row, scale, kinds)
            weights, means = seen.weights, np.einsum("cn,cn->c", across, seen.weighted)
            variance = variance - np.einsum("cn,cnm,cm->c", across, seen.inverse, across)
        total = float(weights @ site)
        by_factor = dict(zip(LINEAR, (total * by_linear).tolist(), strict=True))
        deviations = np.sqrt(np.maximum(variance, 0.0) + noise)
        return Mixture(weights, means, deviations, by_factor)

    def means(self, of: Rows) -> Array:
        """The expected values of several estimates at the site, (m,); those of their mixtures."""
        seen, prior = self._seen, self.prior
        if seen is None:
            return np.zeros(len(of.scales))
        site, model, _, _ = prior.components
        by_site, by_model = _shared(prior, seen.runs, of.scales, of.kinds)
        by_site = by_site + (of.linear * prior.variances) @ seen.runs.linear.T
        expected = by_site @ ((seen.weights * site) @ seen.weighted)
        return np.asarray(expected + by_model @ ((seen.weights * model) @ seen.weighted))

    def correction(self, of: ErrorFeatures) -> tuple[Array, float]:
        """The expected errors by LINEAR, (LINEAR,), and those that runs of its kinds share."""
        seen, prior = self._seen, self.prior
        if seen is None:
            return np.zeros(len(LINEAR)), 0.0
        site, model, _, _ = prior.components
        scale, kinds = prior.scale(of), kinds_of(of)
        by_site = (seen.weights * site) @ seen.weighted  # (n,)
        errors = scale * prior.variances * (by_site @ seen.runs.linear)
        by_model = (seen.weights * model) @ seen.weighted
        shared, of_model = _shared_of_one(prior, seen.runs, scale, kinds)
        rest = float(shared @ by_site + of_model @ by_model)
        return errors, rest

    def factors(self, of: ErrorFeatures) -> tuple[Array, Array]:
        """Expected errors of estimates like this by LINEAR, and their standard deviations."""
        seen, prior = self._seen, self.prior
        site, _, _, weight = prior.components
        scale, sizes = prior.scale(of), prior.variances
        variances = site[:, None] * sizes * scale**2  # (C, LINEAR)
        weights, means = np.exp(weight), np.zeros_like(variances)
        if seen is not None:
            across = site[:, None, None] * scale * sizes * seen.runs.linear  # (C, n, LINEAR)
            weights, means = seen.weights, np.einsum("cnf,cn->cf", across, seen.weighted)
            variances = variances - np.einsum("cnf,cnm,cmf->cf", across, seen.inverse, across)
        mean = weights @ means
        second = weights @ (np.maximum(variances, 0.0) + means**2)
        return np.asarray(mean), np.sqrt(np.maximum(second - mean**2, 0.0))

    def most_telling(self, of: Sequence[ErrorFeatures], count: int = 1) -> tuple[list[int], float]:
        """Which of several runs to measure, one after the other, to know most of all of them.

        Each next is the one that takes most off the summed variance of what they share, which no
        outcome changes but for the weights.  Returns their indices, and the share of that variance
        that measuring them leaves.
        """
        prior, seen, rows = self.prior, self._seen, rows_of(self.prior, of)
        site, model, noise, weight = prior.components
        by_site, by_model = _shared(prior, rows, rows.scales, rows.kinds)
        by_site = by_site + (rows.linear * prior.variances) @ rows.linear.T
        covariance = site[:, None, None] * by_site + model[:, None, None] * by_model  # (C, m, m)
        weights = np.exp(weight)
        if seen is not None:
            by_site, by_model = _shared(prior, seen.runs, rows.scales, rows.kinds)
            by_site = by_site + (rows.linear * prior.variances) @ seen.runs.linear.T
            across = site[:, None, None] * by_site + model[:, None, None] * by_model  # (C, m, n)
            weights = seen.weights
            covariance = covariance - across @ seen.inverse @ across.swapaxes(1, 2)
        chosen: list[int] = []
        before = float(weights @ np.trace(covariance, axis1=1, axis2=2))
        for _ in range(min(count, len(of))):
            own = np.diagonal(covariance, axis1=1, axis2=2) + noise[:, None]
            taken = weights @ (np.square(covariance).sum(axis=1) / own)
            taken[chosen] = -1.0
            chosen.append(index := int(taken.argmax()))
            column = covariance[:, :, index]
            covariance = (
                covariance - column[:, :, None] * (column / own[:, index, None])[:, None, :]
            )
        left = float(weights @ np.trace(covariance, axis1=1, axis2=2))
        return chosen, left / before

    def left_out(self) -> tuple[Mixture, ...]:
        """What each run of the site is believed to be, given all of the others."""
        seen = self._seen
        if seen is None:
            return ()
        _, _, noise, _ = self.prior.components
        precision = np.diagonal(seen.inverse, axis1=1, axis2=2)  # (C, n)
        missed = seen.weighted / precision
        # Its own run weighed the components too.
        ln = np.log(seen.weights)[:, None] + 0.5 * (missed**2 * precision - np.log(precision))
        weights = np.exp(ln - ln.max(axis=0))
        weights /= weights.sum(axis=0)
        variance = 1.0 / precision - seen.noise + noise[:, None]
        return tuple(
            Mixture(
                weights[:, i],
                seen.ln[i] - missed[:, i],
                np.sqrt(np.maximum(variance[:, i], noise)),
                dict.fromkeys(LINEAR, 0.0),
            )
            for i in range(len(seen.ln))
        )


def _conditioned(prior: Prior, runs: Sequence[SeenRun]) -> _Seen:
    """The runs under each component, outliers with more noise."""
    site, model, noise, weight = prior.components
    ln = np.array([run.ln for run in runs])
    rows = rows_of(prior, [run.features for run in runs])
    by_site, by_model = _shared(prior, rows, rows.scales, rows.kinds)
    by_site = (rows.linear * prior.variances) @ rows.linear.T + by_site
    shared = site[:, None, None] * by_site + model[:, None, None] * by_model
    noises = np.repeat(noise[:, None], len(ln), axis=1)
    usual, outlying, count = noise[:, None], np.zeros_like(noises), np.arange(len(ln))
    for step in range(_ROUNDS + 1):
        covariance = shared.copy()
        covariance[:, count, count] += noises
        inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        weighted = inverse @ ln
        if step < _ROUNDS:
            precision = np.diagonal(inverse, axis1=1, axis2=2)
            outlying = _chance_outlying(weighted / precision, 1.0 / precision - noises + usual)
            noises = 1.0 / ((1.0 - outlying) / usual + outlying / (usual + OUTLIER_DEVIATION**2))
    _, size = np.linalg.slogdet(covariance)
    chance = outlying * log(OUTLIERS) + (1.0 - outlying) * log(1.0 - OUTLIERS)
    evidence = weight - 0.5 * (weighted @ ln + size) + chance.sum(axis=1)
    weights = np.exp(evidence - evidence.max())
    return _Seen(rows, ln, inverse, weighted, noises, weights / weights.sum())


def _chance_outlying(missed: Array, variance: Array) -> Array:
    """The chance that a run is an outlier, by how far it lies from what the others tell of it."""
    wide = variance + OUTLIER_DEVIATION**2
    log_odds = log(OUTLIERS / (1.0 - OUTLIERS))
    ln = log_odds + 0.5 * (missed**2 * (1.0 / variance - 1.0 / wide) + np.log(variance / wide))
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(ln, -50.0, 50.0))))


def _run_covariance(
    prior: Prior, seen: _Seen, row: Array, scale: float, kinds: tuple[str, ...]
) -> Array:
    """Covariance of an estimate with the site's runs, under each component; (C, n)."""
    site, model, _, _ = prior.components
    by_site, by_model = _shared_of_one(prior, seen.runs, scale, kinds)
    by_site = by_site + seen.runs.linear @ (prior.variances * row)
    return site[:, None] * by_site + model[:, None] * by_model


def _shared(
    prior: Prior, runs: Rows, scales: Array, kinds: NDArray[np.str_]
) -> tuple[Array, Array]:
    """What m estimates share with each of n runs: by the site, and by their models; (m, n)."""
    rows = kinds[:, None]
    sizes = np.square([prior.shared[name] for name in SHARED])
    scale = scales[:, None] * runs.scales
    both = ((rows != "") & (rows == runs.kinds)) * sizes * scale[..., None]
    return both[..., :-1].sum(axis=-1), both[..., -1]


def _shared_of_one(
    prior: Prior, runs: Rows, scale: float, kinds: tuple[str, ...]
) -> tuple[Array, Array]:
    """The same of one estimate; (n,)."""
    by_site, by_model = _shared(prior, runs, np.array([scale]), np.array([kinds]))
    return by_site[0], by_model[0]


@cache
def prior() -> Prior:
    """The prior in the catalog."""
    return read(json.loads(FILE.read_text(encoding="utf-8")))


@cache
def first_sight() -> Belief:
    """The belief without any run."""
    return Belief(prior())


def read(document: Mapping[str, Any]) -> Prior:
    """A prior from its document."""

    def scales(name: str) -> dict[float, float]:
        return {float(scale): weight for scale, weight in document["scales"][name].items()}

    return Prior(
        linear={name: document["linear"][name] for name in LINEAR},
        shared={name: document["shared"][name] for name in SHARED},
        noise=document["noise"],
        doubts={name: document["doubts"][name] for name in DOUBTS},
        alike=document["alike"],
        site=scales("site"),
        model=scales("model"),
        noise_scales=scales("noise"),
    )
