"""The best published run of a model on a kind of accelerator, and the best plan for the same job.

python -m tools.accuracy.records [--pairs 30] [--write]

A plan that beats every published run by much says what it has that the record had not; where no
published run of the accelerator has it, it stands without evidence.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cost_models.plans import ParallelPlan
from planner.answers.plans.competition import fastest
from planner.documents.formats import plan_words
from planner.documents.request import PlanRequest
from planner.evidence.published_runs.runs import PUBLISHED_RUNS, runs_in
from planner.evidence.uncertainty.record import differences
from planner.learning.accuracy.predict import Prediction, predict

PAGE = Path(__file__).with_name("RECORDS.md")
MOST_RATIO = 1.15
_HEAD = """\
# Against the record

For each model and accelerator the fastest published run (tokens/s of an accelerator), what is
predicted of that very run, and the best plan for the same accelerators, sequences and batch. The
first ratio is the error of the prediction, the second what the search adds. Above
{most} in all, the last column says what the plan has that the record had not, and whether any
published run on this accelerator has it. Made by `python -m tools.accuracy.records --write`.

"""


@dataclass(frozen=True)
class Record:
    """A published run, and the best plan for its job with the seconds of its step."""

    predicted: Prediction
    plan: ParallelPlan | None
    plan_s: float
    published: tuple[ParallelPlan, ...]
    """The plans of published runs on this accelerator."""

    @property
    def measured_s(self) -> float:
        return float(self.predicted.run.iteration_time_s or 0.0)

    @property
    def ratio(self) -> float:
        """How many times as fast as the record the plan is said to be."""
        return self.measured_s / self.plan_s

    def why(self) -> str:
        """A sentence for a plan that beats the record by much."""
        return "; ".join(self.lacking()) or "nothing: the record itself is predicted too fast"

    def lacking(self) -> Iterator[str]:
        """What the plan has that the record had not, and whether some run has it."""
        if self.predicted.plan is not None and self.plan is not None:
            yield from differences(self.plan, self.predicted.plan, self.published)


def groups() -> dict[tuple[str, str], list[Prediction]]:
    """Predicted runs of confident pre-training rows, by model and accelerator."""
    found: dict[tuple[str, str], list[Prediction]] = defaultdict(list)
    for run in runs_in(PUBLISHED_RUNS):
        if run.is_tuning or run["confidence"].lower() == "low" or not run.iteration_time_s:
            continue
        if run.is_layer or run.flag("oom") or run["method"] not in ("", "full"):
            continue
        one = predict(run)
        if one.case is not None and one.plan is not None and one.case.cluster.accelerators >= 8:
            accelerator = one.case.cluster.groups[0].accelerator.id
            found[one.case.model.name or run["model"], accelerator].append(one)
    return dict(found)


def speed(one: Prediction) -> float:
    """Published tokens per second of an accelerator."""
    assert one.case is not None
    training = one.case.training
    tokens = training.global_batch_size * training.seq_length
    return tokens / float(one.run.iteration_time_s or 1.0) / one.case.cluster.accelerators


def records(pairs: int) -> Iterator[Record]:
    """The fastest run of each pair of a model and an accelerator, of the latest pairs.

    A node at least; of one year those with the most runs.
    """
    by_pair = groups()
    published: dict[str, list[ParallelPlan]] = defaultdict(list)
    for (_, accelerator), runs in by_pair.items():
        published[accelerator] += [one.plan for one in runs if one.plan is not None]

    def latest(pair: tuple[str, str]) -> tuple[int, int]:
        return max(one.run.year for one in by_pair[pair]), len(by_pair[pair])

    for pair in sorted(by_pair, key=latest, reverse=True)[:pairs]:
        best = max(by_pair[pair], key=speed)
        assert best.case is not None
        case = best.case
        request = PlanRequest(model=case.model, cluster=case.cluster, training=case.training)
        entry = fastest(request)
        plan = entry.outcome.best[0] if entry.outcome.best else None
        yield Record(best, plan, entry.outcome.score, tuple(published[pair[1]]))


def table(rows: Iterable[Record]) -> Iterator[str]:
    """Lines of Markdown."""
    heads = ("model", "accelerators", "record", "plan of it", "predicted", "best plan", "in all",
             "what it has that the record had not")  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        run, case, own = row.predicted.run, row.predicted.case, row.predicted.plan
        assert case is not None
        assert own is not None
        said = row.measured_s / float(row.predicted.iteration_time_s or 1.0)
        words = " · ".join(plan_words(row.plan.model_dump())) if row.plan else "nothing fits"
        cells = (
            f"{case.model.name or run['model']}, {case.model.num_layers} layers",
            f"{case.cluster.accelerators} {case.cluster.groups[0].accelerator.id}",
            f"{speed(row.predicted):,.0f} ({run.id})",
            " · ".join(plan_words(own.model_dump())),
            f"{said:.2f}",
            words,
            f"{row.ratio:.2f}" if row.plan else "",
            row.why() if row.plan and row.ratio > MOST_RATIO else "",
        )
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = list(records(given.pairs))
    text = _HEAD.format(most=MOST_RATIO) + "\n".join(table(rows)) + "\n"
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
