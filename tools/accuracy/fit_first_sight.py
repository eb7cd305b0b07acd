"""Fit the prior of a site's errors to first sight: what releases said of sources nobody had seen.

`python -m tools.accuracy.fit_first_sight` prints the prior and how often its intervals hold runs of
families of sources that were left out, after none, one, three and five of a source's runs;
`--write` puts the prior into the catalog.  The parameters maximise the likelihood of draws of up to
eight runs of each source, every source with equal weight, under log-normal priors.  A draw may have
one outlier.  A doubt widens at least by LEAST_WIDER: what is a guess must be seen to be one.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from planner.evidence.uncertainty.error_features import DOUBTS, ErrorFeatures
from planner.evidence.uncertainty.first_sight import (
    FILE,
    LINEAR,
    MAX_ALIKE,
    OUTLIER_DEVIATION,
    OUTLIERS,
    SHARED,
    Belief,
    Prior,
    kinds_of,
    linear_of,
    read,
)
from planner.evidence.uncertainty.posterior import SeenRun
from planner.learning.accuracy.first_sights import sights

# Usual deviations, from which the fit may depart by a factor of two (one deviation of ln).
USUAL_LINEAR = (
    0.05,
    0.055,
    0.145,
    0.118,
    0.3,
    0.27,
    0.3,
    0.315,
    0.515,
    0.57,
    0.29,
    0.235,
    0.07,
    0.14,
)
USUAL_SHARED = (0.11, 0.045, 0.05, 0.035)
# Not fitted: the same plan measured in another release differs by 1 to 10 %; the likeliest noise is
# smaller, and intervals of sources with a few known runs then hold too little.
NOISE_DEVIATION = 0.058
USUAL_DOUBT, LEAST_WIDER, USUAL_ALIKE = 0.1, 1.35, 0.2
SITE, MODEL, NOISE = (0.1, 0.35, 1.0, 2.8), (1.0, 5.0), (0.6, 1.0, 2.8)
_SPREAD = 0.7
DRAWS, DRAWN, STEPS = 10, 8, 25
SHOTS, SHOT_DRAWS = (0, 1, 3, 5), 8
# Sources of one maker, of one program or of one kind of accelerator are left out together.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "NVIDIA's recipes": (
        "bridge", "bridge_skills", "dgxc2505", "nemotron340b", "automodel2", "sft_recipes",
    ),
    "MLPerf": ("mlperf_gpt3", "mlperf_405b", "mlperf_dsv3", "mlperf_gptoss", "mlperf_8b"),
    "JAX": (
        "tpu_recipes", "maxtext_v5p", "torchprime", "gcp_gpu", "jaxtoolbox_pax", "dgxc_paxml",
    ),
    "other accelerators": ("trn1", "habana", "mindspeed_910b"),
    "tuning": ("peft_l40s", "torchtune", "litgpt_thunder", "tinyllama"),
    "papers": (
        "megascale", "mtnlg", "glm130b", "bloomberg", "llama3", "vtrain_single", "vocabpp",
    ),
    "FSDP and DeepSpeed": ("fms_fsdp", "aws_fsdp", "modded_gpt", "nanotron", "flagperf_ds"),
    "InternEvo": ("internevo",),
    "Megatron-LM's tests": ("mlm_golden", "mcore_issue"),
}  # fmt: skip


@dataclass(frozen=True)
class Coverage:
    """Of intervals of 80 %, means over sources: share held, median |ln| error, Winkler score."""

    sources: int
    held: float
    median_abs_ln: float
    winkler: float


def by_source() -> dict[str, list[SeenRun]]:
    """The runs of the record by source."""
    found: dict[str, list[SeenRun]] = defaultdict(list)
    for one in sights():
        found[one.source].append(one.run)
    return found


@dataclass(frozen=True)
class _Draw:
    """A few runs of one source as tensors: n runs, K kinds of SHARED."""

    linear: Tensor  # (n, LINEAR)
    ln: Tensor  # (n,)
    doubts: Tensor  # (n, DOUBTS)
    alike: Tensor  # (n,): log2(1 + sources alike)
    same: Tensor  # (K, n, n)

    @classmethod
    def of(cls, runs: Sequence[SeenRun]) -> _Draw:
        features = [run.features for run in runs]
        kinds = np.array([kinds_of(one) for one in features])  # (n, K)
        same = (kinds[:, None] == kinds[None]) & (kinds != "")[:, None]
        return cls(
            torch.tensor(np.array([linear_of(one) for one in features])),
            torch.tensor([run.ln for run in runs], dtype=torch.float64),
            torch.tensor(
                [[float(name in one.doubts) for name in DOUBTS] for one in features]
            ).double(),
            torch.tensor([_alike(one) for one in features], dtype=torch.float64),
            torch.tensor(same.transpose(2, 0, 1).astype(float)),
        )


def _alike(of: ErrorFeatures) -> float:
    return math.log2(1 + min(of.sources_alike or 0, MAX_ALIKE))


class _Parameters:
    """The flat vector of the fit, cut into its parts."""

    sizes = (
        len(LINEAR), len(SHARED), len(DOUBTS), 1, len(SITE), len(MODEL), len(NOISE),
    )  # fmt: skip

    def __init__(self, flat: Tensor) -> None:
        linear, shared, doubts, alike, *weights = torch.split(flat, list(self.sizes))
        self.linear, self.shared = linear.exp(), shared.exp()
        self.doubts = math.log(LEAST_WIDER) + doubts.exp()
        self.alike = alike.exp()
        self.weights = [torch.log_softmax(own, 0) for own in weights]

    @classmethod
    def usual(cls) -> Tensor:
        positive = [*USUAL_LINEAR, *USUAL_SHARED]
        positive += [USUAL_DOUBT] * len(DOUBTS) + [USUAL_ALIKE]
        weights = [0.05, 0.25, 0.5, 0.2, 0.57, 0.43, 0.26, 0.22, 0.52]
        return torch.log(torch.tensor(positive + weights, dtype=torch.float64))

    def prior(self) -> Prior:
        def named(names: Collection[str], values: Tensor) -> dict[str, float]:
            return {name: round(float(v), 4) for name, v in zip(names, values, strict=True)}

        scales = {
            name: {str(s): round(float(w), 4) for s, w in zip(own, weights.exp(), strict=True)}
            for name, own, weights in zip(
                ("site", "model", "noise"), (SITE, MODEL, NOISE), self.weights, strict=True
            )
        }
        return read(
            {
                "linear": named(LINEAR, self.linear),
                "shared": named(SHARED, self.shared),
                "noise": NOISE_DEVIATION,
                "doubts": named(DOUBTS, self.doubts),
                "alike": round(float(self.alike), 4),
                "scales": scales,
            }
        )


def _log_evidence(own: _Parameters, draw: _Draw) -> Tensor:
    """Ln of the chance of a draw, over all components and which run may be an outlier."""
    count = len(draw.ln)
    scale = torch.exp(draw.doubts @ own.doubts - own.alike * draw.alike)
    squares = own.shared[:, None, None] ** 2 * draw.same
    outer = scale[:, None] * scale[None]
    by_site = outer * ((draw.linear * own.linear**2) @ draw.linear.T + squares[:-1].sum(0))
    by_model = outer * squares[-1]
    site, model, noise = (torch.tensor(one, dtype=torch.float64) for one in (SITE, MODEL, NOISE))
    whole = (
        site[:, None, None, None, None] ** 2 * by_site
        + model[:, None, None, None] ** 2 * by_model
        + (noise[:, None, None] * NOISE_DEVIATION) ** 2 * torch.eye(count, dtype=torch.float64)
    ).flatten(0, 2)
    weights = (own.weights[0][:, None, None] + own.weights[1][:, None] + own.weights[2]).flatten()
    outlier = torch.zeros(count + 1, count, count, dtype=torch.float64)
    at = torch.arange(count)
    outlier[at + 1, at, at] = OUTLIER_DEVIATION**2
    chances = torch.full((count + 1,), OUTLIERS, dtype=torch.float64)
    chances[0] = max(1.0 - count * OUTLIERS, 0.2)
    factor = torch.linalg.cholesky(whole[:, None] + outlier)
    ln = draw.ln.expand(len(whole), count + 1, count)[..., None]
    standard = torch.linalg.solve_triangular(factor, ln, upper=False)[..., 0]
    size = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
    found = -0.5 * (standard**2).sum(-1) - size + weights[:, None]
    return torch.logsumexp((found + torch.log(chances / chances.sum())).flatten(), 0)


def fit(sources: Mapping[str, Sequence[SeenRun]]) -> Prior:
    """The prior that makes the runs of these sources most likely."""
    random = Random(1)
    draws = []
    for own in sources.values():
        many = DRAWS if len(own) > DRAWN else 1
        draws.append(
            [_Draw.of(random.sample(list(own), min(len(own), DRAWN))) for _ in range(many)]
        )
    usual = _Parameters.usual()
    flat = usual.clone().requires_grad_(True)
    search = torch.optim.LBFGS([flat], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        own = _Parameters(flat)
        found = 0.5 * torch.square((flat - usual) / _SPREAD).sum()
        for several in draws:
            for draw in several:
                found = found - _log_evidence(own, draw) / len(several)
        found.backward()  # type: ignore[no-untyped-call]
        return found

    search.step(loss)  # type: ignore[no-untyped-call]
    return _Parameters(flat.detach()).prior()


def coverage(
    prior: Prior, sources: Mapping[str, Sequence[SeenRun]], shots: int, chosen: bool = False
) -> Coverage:
    """How intervals do on each source once so many of its runs are known.

    chosen: the runs that tell most, as `Belief.most_telling` has them; else random ones.
    """
    found = [
        _of_source(prior, own, shots, chosen)
        for own in sources.values()
        if not shots or len(own) >= shots + 2
    ]
    held, missed, winkler = (float(value) for value in np.mean(found, axis=0))
    return Coverage(len(found), held, missed, winkler)


def _of_source(
    prior: Prior, own: Sequence[SeenRun], shots: int, chosen: bool
) -> tuple[float, float, float]:
    random, found = Random(5), []
    told, _ = Belief(prior).most_telling([run.features for run in own], shots)
    for _ in range(SHOT_DRAWS if shots and not chosen else 1):
        seen = set(told if chosen else random.sample(range(len(own)), shots))
        belief = Belief(prior, [own[i] for i in sorted(seen)])
        held, missed, score = [], [], []
        for i, run in enumerate(own):
            if i in seen:
                continue
            of = belief.mixture(run.features)
            low, high = of.bounds(80.0)
            held.append(low <= run.ln <= high)
            missed.append(abs(run.ln - of.mean))
            score.append(winkler(low, high, run.ln))
        found.append((np.mean(held), np.median(missed), np.mean(score)))
    held_mean, missed_mean, score_mean = np.mean(found, axis=0)
    return float(held_mean), float(missed_mean), float(score_mean)


def winkler(low: float, high: float, ln: float) -> float:
    """The score of an interval of 80 %: its width, and ten times what a run lies outside."""
    return high - low + 10.0 * (max(low - ln, 0.0) + max(ln - high, 0.0))


def best_constant_winkler(sources: Mapping[str, Sequence[SeenRun]]) -> float:
    """The mean over sources of the score of the best symmetric interval for all runs."""
    halves = np.geomspace(0.02, 2.0, 200)
    scores = [
        np.mean([[winkler(-half, half, run.ln) for half in halves] for run in own], axis=0)
        for own in sources.values()
    ]
    return float(np.min(np.mean(scores, axis=0)))


def left_out_priors() -> dict[str, Prior]:
    """The prior without each of FAMILIES, by family."""
    sources = by_source()
    return {
        family: fit({key: own for key, own in sources.items() if key not in keys})
        for family, keys in FAMILIES.items()
    }


def left_out_coverage(priors: Mapping[str, Prior], shots: int) -> Coverage:
    """How intervals do on sources whose family the prior has not seen."""
    sources = by_source()
    parts = [
        coverage(prior, {key: sources[key] for key in FAMILIES[family] if key in sources}, shots)
        for family, prior in priors.items()
        if any(len(sources.get(key, ())) >= shots + 2 * bool(shots) for key in FAMILIES[family])
    ]
    many = [part.sources for part in parts]
    return Coverage(
        sum(many),
        float(np.average([part.held for part in parts], weights=many)),
        float(np.average([part.median_abs_ln for part in parts], weights=many)),
        float(np.average([part.winkler for part in parts], weights=many)),
    )


def document(prior: Prior) -> dict[str, object]:
    """The document of a prior."""
    return {
        "about": "How far off estimates are for a site that nobody has seen "
        "(planner/evidence/uncertainty/first_sight.py): standard deviations of ln, and scales with "
        "their weights; made by python -m tools.accuracy.fit_first_sight --write",
        "linear": dict(prior.linear),
        "shared": dict(prior.shared),
        "noise": prior.noise,
        "doubts": dict(prior.doubts),
        "alike": prior.alike,
        "scales": {
            "site": {str(k): v for k, v in prior.site.items()},
            "model": {str(k): v for k, v in prior.model.items()},
            "noise": {str(k): v for k, v in prior.noise_scales.items()},
        },
    }


def main() -> None:
    """Fit, print what was found and how it does on families left out; write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--leave-out", action="store_true", help="a fit for each family: minutes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sources = by_source()
    found = fit(sources)
    print(json.dumps(document(found), indent=2))
    print(f"best constant interval: Winkler score {best_constant_winkler(sources):.3f}")
    for shots in SHOTS:
        print(f"{shots} runs known, as fitted:", coverage(found, sources, shots))
    if asked.write:
        FILE.write_text(json.dumps(document(found), indent=2) + "\n", encoding="utf-8")
    if asked.leave_out:
        priors = left_out_priors()
        for shots in SHOTS:
            print(f"{shots} runs known, family left out:", left_out_coverage(priors, shots))


if __name__ == "__main__":
    main()
