"""Fit the catalog's posterior to published runs: how far off each term of an estimate may be.

`python -m tools.accuracy.fit_posterior` prints the scales and the coverage of intervals;
`--write` puts the posterior into the catalog.  The scales maximise the likelihood of the runs
(empirical Bayes) under weak priors; outliers get more noise (Student's t with 4 degrees of freedom,
by reweighting).  The quantiles of intervals are those of runs whose source was left out, each
source with equal weight.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.evidence.published_runs.runs import PUBLISHED_RUNS, read_runs
from planner.evidence.uncertainty.error_features import FACTORS, Array
from planner.evidence.uncertainty.memory_risk import FILE as MEMORY_FILE
from planner.evidence.uncertainty.posterior import (
    FILE,
    LEVELS,
    OF_MODEL,
    ROUNDS,
    SHARES,
    USUAL_HIDDEN_SIZE,
    Posterior,
    Scales,
    SeenRun,
    outlier_noise,
)
from planner.learning.accuracy.first_sights import sights
from planner.learning.accuracy.predict import predict
from planner.learning.accuracy.scores import seen_runs
from tools.accuracy import fit_memory_posterior

# Functional tests of Megatron-LM: toy sizes in debug modes, which nobody trains with.
LEFT_OUT = ("mlm_golden",)
# Priors of the scales: the usual deviation, and how many times more or less it may well be (ln).
_USUAL_FACTOR, _USUAL_LEVEL, _USUAL_NOISE = 0.05, 1.0, 0.03
_WIDTH, _NOISE_WIDTH = 1.0, 0.7
# Over the first.  A source and its models are fitted as one and split by OF_MODEL: a run of a
# source that was not seen, which intervals are for, cannot tell the two apart.
_FITTED = LEVELS[1:-1]
_CHANCES = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8)  # of larger peaks, to be held against what was measured


def fit(runs: Sequence[SeenRun]) -> Posterior:
    """The posterior whose scales make the runs most likely."""
    count = len(FACTORS)
    logs = np.log([_USUAL_FACTOR] * count + [_USUAL_LEVEL] * len(_FITTED) + [_USUAL_NOISE] * 2)
    values = np.append(logs, 0.0)
    usual, width = values.copy(), np.full(len(values), _WIDTH)
    width[-3:] = _NOISE_WIDTH
    products = _Products(runs)
    # What lies far out by the priors is noise from the start: else a few such runs make one factor
    # ten times as unsure, or not, by what little moved elsewhere.
    noise = _reweighted(_posterior(runs, values, np.ones(len(runs))))
    for _ in range(ROUNDS):
        loss = partial(products.loss, more_noise=noise, usual=usual, width=width)
        values = _minimum(loss, values)
        noise = _reweighted(_posterior(runs, values, noise))
    return calibrated(_posterior(runs, values, noise))


def _posterior(runs: Sequence[SeenRun], values: Array, noise: Array) -> Posterior:
    factors, levels, spread = np.split(np.exp(values[:-1]), [len(FACTORS), len(values) - 3])
    *wider, source = levels.tolist()
    split = source * np.sqrt([1.0 - OF_MODEL, OF_MODEL])
    noise_of_dense, noise_of_experts = spread.tolist()
    scales = Scales(
        tuple(factors.tolist()),
        (1.0, *wider, *split.tolist()),
        noise_of_dense,
        noise_of_experts,
        float(values[-1]),
    )
    seen_runs = tuple(
        SeenRun(run.features, run.ln, float(more)) for run, more in zip(runs, noise, strict=True)
    )
    return Posterior(scales, seen_runs, {})


def _reweighted(posterior: Posterior) -> Array:
    """Noise of each run over that of its kind, at Student's t of FREEDOM degrees."""
    usual = posterior.scales.noise_variance([run.features for run in posterior.runs])
    _, weighted = posterior.solved
    return outlier_noise(usual, np.array([run.noise for run in posterior.runs]), weighted)


def calibrated(posterior: Posterior) -> Posterior:
    """With the quantiles that hold for runs of sources that were left out."""
    errors, weights = [], []
    for source in dict.fromkeys(run.features.groups[3] for run in posterior.runs):
        own = [run for run in posterior.runs if run.features.groups[3] == source]
        missed = np.abs(standardised(posterior.without("source", source), own))
        errors.append(missed)
        weights.append(np.full(len(own), 1.0 / len(own)))
    size, weight = np.concatenate(errors), np.concatenate(weights)
    order = np.argsort(size)
    below = np.cumsum(weight[order]) / weight.sum()
    quantiles = {share: float(np.interp(int(share) / 100, below, size[order])) for share in SHARES}
    return Posterior(posterior.scales, posterior.runs, quantiles)


def standardised(posterior: Posterior, runs: Sequence[SeenRun]) -> Array:
    """What runs are off by over the deviation that was expected; shape (runs,)."""
    features = [run.features for run in runs]
    _, shared = posterior.joint(features)
    deviation = np.sqrt(np.diag(shared) + posterior.scales.noise_variance(features))
    return np.array([run.ln for run in runs]) / deviation


class _Products:
    """Products of shares, and who shares a group: what every likelihood of the runs is made of."""

    def __init__(self, runs: Sequence[SeenRun]) -> None:
        shares = np.array([run.features.shares for run in runs])
        groups = np.array([run.features.groups for run in runs])
        self.ln = np.array([run.ln for run in runs])
        self.experts = np.array([run.features.experts for run in runs])
        self.width_ln = np.log([run.features.hidden_size / USUAL_HIDDEN_SIZE for run in runs])
        self.factors = [np.outer(column, column) for column in shares.T]
        self.levels = [np.ones_like(self.factors[0])]
        self.levels += [(column[:, None] == column).astype(float) for column in groups.T[:-1]]

    def loss(
        self, values: Array, more_noise: Array, usual: Array, width: Array
    ) -> tuple[float, Array]:
        """Negative log posterior of the scales' logarithms, and its gradient."""
        count = len(self.factors)
        factors, levels, noise = np.split(np.exp(2.0 * values[:-1]), [count, len(values) - 3])
        shared = self.levels[0] + sum(
            scale * same for scale, same in zip(levels, self.levels[1:], strict=True)
        )
        leaned = sum(scale * part for scale, part in zip(factors, self.factors, strict=True))
        more = more_noise * np.exp(-2.0 * values[-1] * self.width_ln)
        noisy = [more * ~self.experts * noise[0], more * self.experts * noise[1]]
        whole = leaned * shared + np.diag(noisy[0] + noisy[1])
        inverse = np.linalg.inv(whole)
        weighted = inverse @ self.ln
        _, log_determinant = np.linalg.slogdet(whole)
        away = (values - usual) / width
        loss = 0.5 * (self.ln @ weighted + log_determinant + away @ away)
        # d loss / d K, of K's every entry.
        slope = 0.5 * (inverse - np.outer(weighted, weighted))
        within, among = slope * shared, slope * leaned
        gradient = [
            2.0 * s * np.vdot(within, p) for s, p in zip(factors, self.factors, strict=True)
        ]
        gradient += [
            2.0 * s * np.vdot(among, p) for s, p in zip(levels, self.levels[1:], strict=True)
        ]
        gradient += [2.0 * float(np.diag(slope) @ part) for part in noisy]
        gradient.append(-2.0 * float(np.diag(slope) @ (sum(noisy) * self.width_ln)))
        return float(loss), np.array(gradient) + away / width


def _minimum(function: Callable[[Array], tuple[float, Array]], start: Array) -> Array:
    import torch

    values = torch.tensor(start, requires_grad=True)
    search = torch.optim.LBFGS([values], max_iter=60, line_search_fn="strong_wolfe")

    def at() -> float:
        loss, gradient = function(values.detach().numpy())
        values.grad = torch.from_numpy(gradient)
        return loss

    search.step(at)  # type: ignore[no-untyped-call]
    return np.asarray(values.detach().numpy())


def _recent() -> set[str]:
    """The sources recorded last: they teach about plans once the physics was held against them."""
    found = sights()
    return {one.source for one in found if one.commit == found[-1].commit}


def posterior_document(posterior: Posterior) -> dict[str, Any]:
    """The document of a posterior."""
    return {
        "about": "How far off estimates are by what they lean on "
        "(planner/evidence/uncertainty/posterior.py); made by "
        "python -m tools.accuracy.fit_posterior --write",
        "scales": {
            "factors": dict(
                zip(FACTORS, (round(x, 5) for x in posterior.scales.factors), strict=True)
            ),
            "levels": dict(
                zip(LEVELS, (round(x, 5) for x in posterior.scales.levels), strict=True)
            ),
            "noise": round(posterior.scales.noise, 5),
            "noise_of_experts": round(posterior.scales.noise_of_experts, 5),
            "noise_by_width": round(posterior.scales.noise_by_width, 5),
        },
        "quantiles": {key: round(value, 4) for key, value in posterior.quantiles.items()},
        "runs": [
            {
                "groups": list(run.features.groups),
                "experts": run.features.experts,
                "hidden_size": run.features.hidden_size,
                "seconds": float(f"{run.features.seconds:.5g}"),
                "accelerators": run.features.accelerators,
                "precision": run.features.precision,
                "doubts": list(run.features.doubts),
                "ln": round(run.ln, 4),
                "noise": round(run.noise, 3),
                "shares": [round(share, 4) for share in run.features.shares],
            }
            for run in posterior.runs
        ],
    }


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=PUBLISHED_RUNS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    predictions = [predict(run) for run in read_runs(options.data)]
    kept = [one for one in predictions if one.run.source_key not in LEFT_OUT]
    found = fit([run for run in seen_runs(kept) if run.features.groups[3] not in _recent()])
    measured = fit_memory_posterior.measured_peaks(kept)
    document = posterior_document(found)
    for name in ("scales", "quantiles"):
        print(name, json.dumps(document[name], indent=2))
    for level in LEVELS[1:]:
        missed = coverage(found, level)
        print(f"left out by {level:12s} " + ", ".join(f"{k} %: {v:.1%}" for k, v in missed.items()))
    for chance, share in fit_memory_posterior.coverage(measured, _CHANCES).items():
        print(f"peaks above what {chance:.0%} exceed, source left out: {share:.1%}")
    if options.write:
        MEMORY_FILE.write_text(fit_memory_posterior.text(measured), encoding="utf-8")
        rows = ",\n".join(f"    {json.dumps(row)}" for row in document.pop("runs"))
        head = json.dumps(document, indent=2)
        FILE.write_text(f'{head[:-2]},\n  "runs": [\n{rows}\n  ]\n}}\n', encoding="utf-8")


def coverage(posterior: Posterior, level: str) -> dict[str, float]:
    """Share of runs inside their intervals with their group of a level left out, sources alike."""
    at = LEVELS.index(level) - 1
    inside: dict[str, list[NDArray[np.bool_]]] = {}
    for group in dict.fromkeys(run.features.groups[at] for run in posterior.runs):
        rest = posterior.without(level, group)
        own = [run for run in posterior.runs if run.features.groups[at] == group]
        for run, missed in zip(own, np.abs(standardised(rest, own)), strict=True):
            held_by = np.array([missed <= posterior.quantiles[share] for share in SHARES])
            inside.setdefault(run.features.groups[3], []).append(held_by)
    shares = np.mean([np.mean(rows, axis=0) for rows in inside.values()], axis=0)
    return dict(zip(SHARES, shares.tolist(), strict=True))


if __name__ == "__main__":
    main()
