"""Fit the few constants that are learned from published runs, jointly.

`python -m tools.accuracy.fit_constants` prints the constants; `--write` puts them into the
catalog; `tools/accuracy/leave_out.py` fits them without each source.  The loss is the mean over
sources of the mean |ln(predicted / published)|.  Each row counts up to CAP and sources of few rows
count less, so that neither a large source nor one strange row decides.  Rows of low confidence and
rows with open inputs are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from cost_models.fitted import FILE, Fitted, documents, fitted
from planner.evidence.published_runs.cases import Case
from planner.evidence.published_runs.runs import PUBLISHED_RUNS, Run, read_runs
from planner.learning.accuracy.predict import predict_case, read_case
from planner.learning.accuracy.scores import log_ratios

CAP = 0.2
FULL_WEIGHT_ROWS = 5  # a source with fewer counts for less
# Bounds of the fit: the physically expected range of each constant, a little wider.
BOUNDS = {
    "sustained_ampere": (0.7, 1.0),
    "sustained_hopper": (0.6, 1.0),
    "sustained_b200": (0.68, 0.85),
    "sustained_gb200": (0.68, 0.85),
    "sustained_gb300": (0.7, 0.88),
    "sustained_v6e": (0.7, 1.0),
    "contention": (0.12, 0.25),
    "straggler": (0.0, 0.03),
    "tp_overlap_exposed": (0.2, 0.8),
}
# Not fitted: host_launch_s, of which the runs hardly tell (the loss is flat up to 1.5e-4 s).
NAMES = tuple(BOUNDS)


ReadRun = tuple[Run, Case | str]


def read(path: Path) -> list[ReadRun]:
    """The rows that may count, read once: a fit predicts them a few hundred times."""
    runs = read_runs(path)
    return [(run, read_case(run)) for run in runs if run["confidence"].lower() != "low"]


def errors_by_source(runs: Sequence[ReadRun], constants: Fitted) -> dict[str, np.ndarray]:
    """ln(predicted / published) of the rows that count, by source."""
    return log_ratios(predict_case(run, case, constants) for run, case in runs)


def loss(errors: dict[str, np.ndarray]) -> float:
    """Weighted mean over sources of the mean capped |ln|."""
    kept = list(errors.values())
    weights = [min(len(e), FULL_WEIGHT_ROWS) for e in kept]
    return float(np.average([np.minimum(np.abs(e), CAP).mean() for e in kept], weights=weights))


def fit(runs: Sequence[ReadRun], rounds: int = 2) -> Fitted:
    """The constants of least loss: golden-section search, one constant after the other."""
    values = asdict(fitted())
    for number in range(rounds):
        before = dict(values)
        for name in NAMES:

            def at(x: float, name: str = name) -> float:
                return loss(errors_by_source(runs, Fitted(**{**values, name: x})))

            low, high = BOUNDS[name]
            if number:
                half = (high - low) / 6
                low, high = max(low, values[name] - half), min(high, values[name] + half)
            else:
                grid = np.linspace(low, high, 6)
                best = int(np.argmin([at(x) for x in grid]))
                low, high = grid[max(best - 1, 0)], grid[min(best + 1, 5)]
            values[name] = _golden(at, low, high)
        if all(abs(values[n] - before[n]) <= 0.01 * abs(before[n]) for n in NAMES):
            break
    return Fitted(**{name: float(f"{value:.3g}") for name, value in values.items()})


def _golden(function: Callable[[float], float], low: float, high: float, steps: int = 4) -> float:
    ratio = (np.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(steps):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return float(a if at_a <= at_b else b)


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=PUBLISHED_RUNS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs = read(options.data)
    found = fit(runs)
    errors = errors_by_source(runs, found)
    for name, value in asdict(found).items():
        print(f"{name:22s} {value:.4g}   expected {documents()[name]['expected']}")
    print(f"mean of source medians {np.mean([np.median(abs(e)) for e in errors.values()]):.4f}")
    document = json.loads(FILE.read_text(encoding="utf-8"))
    for name, value in asdict(found).items():
        document["constants"][name]["value"] = value
    if options.write:
        FILE.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
