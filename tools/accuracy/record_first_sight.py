"""Record what the planner says of published runs before anything is changed by them.

`python -m tools.accuracy.record_first_sight DATA --commit COMMIT --write` appends a row to
`catalog/first_sight.csv` for every run of the table DATA that is not in it yet.  Run it at the
commit before a source is added: a prediction that saw its run is no first sight.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

from planner.evidence.published_runs.runs import Run, read_runs
from planner.evidence.uncertainty.error_features import FACTORS
from planner.evidence.uncertainty.first_sight import sources_alike
from planner.learning.accuracy.first_sights import COLUMNS, FILE, NUMBERS
from planner.learning.accuracy.predict import Prediction, predict
from planner.learning.accuracy.scores import features_of


def recorded() -> set[str]:
    """The ids of the runs in the record."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row["id"] for row in csv.DictReader(file)}


def row_of(prediction: Prediction, commit: str) -> dict[str, str]:
    """A row of the record."""
    run, case = prediction.run, prediction.case
    row = dict.fromkeys(COLUMNS, "")
    row.update(
        id=run.id, source_key=run.source_key, commit=commit, reason=prediction.reason,
        confidence=run["confidence"].lower(), method=run["method"].lower() or "full",
    )  # fmt: skip
    values = (
        prediction.iteration_time_s, prediction.lowest_s, prediction.highest_s,
        run.iteration_time_s, prediction.peak_bytes, run.peak_bytes,
    )  # fmt: skip
    for name, value in zip(NUMBERS, values, strict=True):
        row[name] = "" if value is None else f"{value:.6g}"
    for name in ("lowest_s", "highest_s"):
        row[name] = "" if row[name] == row[NUMBERS[0]] else row[name]
    features = features_of(prediction)
    if case is not None and features is not None:
        family, accelerator, runtime, *_ = features.groups
        row.update(
            family=family, accelerator=accelerator, runtime=runtime, precision=features.precision,
            experts=str(int(features.experts)), hidden_size=str(features.hidden_size),
            num_layers=str(case.model.num_layers), accelerators=str(features.accelerators),
            sources_alike=str(sources_alike(features)), doubts="+".join(features.doubts),
        )  # fmt: skip
        shares = zip(FACTORS, features.shares, strict=True)
        row.update({f"share_{name}": f"{share:.4f}" for name, share in shares})
    return row


def new_rows(runs: Iterable[Run], commit: str) -> list[dict[str, str]]:
    """Rows of the runs that are not in the record."""
    known = recorded()
    return [row_of(predict(run), commit) for run in runs if run.id not in known]


def main() -> None:
    """Print how many runs are new; write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--commit", required=True, help="of the planner that predicts")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    rows = new_rows(read_runs(asked.data), asked.commit)
    print(f"{len(rows)} runs that are not in the record")
    if asked.write:
        with FILE.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
