"""Make the catalog's table of published runs with their predictions.

`python -m tools.accuracy.write_scored_runs --write` does so; run it after the
physics or the posterior changed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence

import numpy as np

from cost_models.flops import step_flop
from cost_models.parameters import total_parameters
from cost_models.plans import Plans
from cost_models.profiles import profile_for
from planner.documents import scored_runs
from planner.documents.scored_runs import FILE, WIDTHS, ScoredRun, rounded
from planner.evidence.published_runs.runs import PUBLISHED_RUNS, runs_in
from planner.evidence.uncertainty.posterior import SHARES, SeenRun
from planner.learning.accuracy.intervals import intervals
from planner.learning.accuracy.predict import Prediction, predict
from planner.learning.accuracy.scores import counts, features_of
from planner.search.simplicity import steps
from tools.accuracy.fit_posterior import LEFT_OUT

PLAN = (
    "runtime", "tp", "cp", "pp", "vpp", "ep", "dp", "zero_stage", "micro_batch_size", "recompute",
    "schedule", "moe_dispatcher", "overlap_ep",
)  # fmt: skip
_DECIMALS = 4
_LONGEST_TITLE = 120


def scored(predictions: Iterable[Prediction]) -> list[ScoredRun]:
    """The rows in the headline that time whole iterations."""
    return [
        _row(one) for one in predictions if counts(one) and not one.run.is_layer and one.parts_s
    ]


def _row(prediction: Prediction) -> ScoredRun:
    run, case, plan = prediction.run, prediction.case, prediction.plan
    predicted, measured = prediction.iteration_time_s, run.iteration_time_s
    assert case is not None
    assert plan is not None
    assert predicted is not None
    assert measured is not None
    group = case.cluster.groups[0]
    return ScoredRun(
        id=run.id,
        source=run.source_key,
        title=run["source"].partition(";")[0][:_LONGEST_TITLE],
        year=run.year,
        model=run["model"],
        parameters=total_parameters(case.model),
        experts=case.model.moe is not None,
        adapters=case.training.freezes,
        accelerator=group.accelerator.id,
        family=profile_for(group.accelerator).family,
        accelerators=group.accelerators,
        stack=run["stack"],
        stack_guessed=case.stack_guessed,
        precision=case.training.precision,
        seq_length=case.training.seq_length,
        global_batch_size=case.training.global_batch_size,
        kinds=tuple(
            name for name, held in steps(Plans.from_rows(case.variants)).items() if np.all(held)
        ),
        model_flop_per_s=rounded(
            step_flop(case.model, case.training) / measured / group.accelerators
        ),
        predicted_s=rounded(predicted),
        measured_s=rounded(measured),
        intervals_s=_intervals(prediction, predicted),
        **{name: getattr(plan, name) for name in PLAN},
    )


def _intervals(prediction: Prediction, predicted: float) -> dict[str, tuple[float, float]] | None:
    features = features_of(prediction)
    if features is None or prediction.run.source_key in LEFT_OUT:
        return None
    found = intervals(SeenRun(features, 0.0))
    widths = {
        share: round((high - low) / 2, _DECIMALS)
        for share, (low, high) in zip(SHARES, found, strict=True)
    }
    return scored_runs.intervals(rounded(predicted), widths)


def text(rows: Sequence[ScoredRun]) -> str:
    """The file, a field to a line: a third smaller than rows when it is packed."""
    dumped = [row.model_dump(mode="json", exclude={"intervals_s"}) for row in rows]
    columns = {name: [row[name] for row in dumped] for name in dumped[0]}
    columns[WIDTHS] = [_half_widths(row) for row in rows]
    lines = (f'"{name}":{json.dumps(of, separators=(",", ":"))}' for name, of in columns.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _half_widths(row: ScoredRun) -> dict[str, float] | None:
    if row.intervals_s is None:
        return None
    return {
        share: round(math.log(high / low) / 2, _DECIMALS)
        for share, (low, high) in row.intervals_s.items()
    }


def main() -> None:
    """Score all published runs; print how many, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    rows = scored(predict(run) for run in runs_in(PUBLISHED_RUNS))
    inside = [
        np.mean([low <= row.measured_s <= high for row in rows if row.intervals_s
                 for low, high in [row.intervals_s[share]]])
        for share in SHARES
    ]  # fmt: skip
    held = ", ".join(f"{share} %: {of:.1%}" for share, of in zip(SHARES, inside, strict=True))
    print(f"{len(rows)} runs; intervals hold {held}")
    if write:
        FILE.write_text(text(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
