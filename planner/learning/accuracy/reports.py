"""Scores of shared reports of runs: predicted against measured, over many sites."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from planner.documents.loading import load_document
from planner.documents.plan_report import Document
from planner.documents.problems import Problem, RequestError, refuse, shown
from planner.documents.run_report import ReportedRun, RunReport
from planner.documents.typed_values import validate
from planner.learning.accuracy.scores import errors, log_of_ratio, memory_errors

MOST_FILES = 1_000


class ReportedErrors(Document):
    """Errors of the runs of one kind: medians of |ln(predicted / measured)|, and the mean of ln."""

    runs: int
    median_abs_ln: float
    p90_abs_ln: float
    bias_ln: float


class ReportsAnswer(Document):
    """What `planner accuracy --reports` answers.

    repeated: runs that stand in several reports, of which one counts.  by_kind: dense models and
    mixtures of experts by accelerator.  memory_mean_abs_error: of peaks, as a share of them.
    """

    files: int
    runs: int
    repeated: int
    versions: tuple[str, ...]
    time: ReportedErrors
    by_kind: dict[str, ReportedErrors]
    memory_runs: int
    memory_mean_abs_error: float | None


def score_reports(folder: Path) -> ReportsAnswer:
    """Read and score all reports of a folder.  Raises RequestError where one is none."""
    files = _files(folder)
    runs = [run for file in files for run in _read_report(file).runs]
    # The same run in two reports is one measurement.
    by_content = {json.dumps(run.model_dump(mode="json"), sort_keys=True): run for run in runs}
    distinct = list(by_content.values())
    kinds: dict[str, list[ReportedRun]] = defaultdict(list)
    for run in distinct:
        kinds[f"{'experts' if run.experts else 'dense'} on {run.accelerator}"].append(run)
    peaks = [
        (run.predicted_peak_bytes, run.measured_peak_bytes)
        for run in distinct
        if run.predicted_peak_bytes and run.measured_peak_bytes
    ]
    memory = memory_errors(*zip(*peaks, strict=True)) if peaks else None
    return ReportsAnswer(
        files=len(files),
        runs=len(distinct),
        repeated=len(runs) - len(distinct),
        versions=tuple(sorted({run.version for run in distinct})),
        time=_errors(distinct),
        by_kind={kind: _errors(kinds[kind]) for kind in sorted(kinds)},
        memory_runs=len(peaks),
        memory_mean_abs_error=memory and memory.mean_abs_error,
    )


def _files(folder: Path) -> Sequence[Path]:
    name = shown(str(folder))
    if not folder.is_dir():
        raise refuse("/reports", "no_folder", f"{name} is no folder of reports")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise refuse("/reports", "no_reports", f"{name} has no .json file")
    if len(files) > MOST_FILES:
        detail = f"{name} has {len(files):,} reports; at most {MOST_FILES:,} at a time"
        raise refuse("/reports", "too_many", detail)
    return files


def _read_report(file: Path) -> RunReport:
    """The report in a file; problems begin with its name.  Raises RequestError."""
    try:
        return validate("", load_document(file), RunReport)
    except RequestError as error:
        raise RequestError(_in_file(error, file.name)) from None


def _in_file(error: RequestError, name: str) -> Iterator[Problem]:
    for item in error.problems:
        yield item.model_copy(update={"detail": f"{name}: {item.detail}"})


def _errors(runs: Iterable[ReportedRun]) -> ReportedErrors:
    summary = errors([log_of_ratio(run.predicted_s, run.measured_s) for run in runs])
    assert summary is not None
    return ReportedErrors(
        runs=summary.n, median_abs_ln=summary.median_abs_ln, p90_abs_ln=summary.p90_abs_ln,
        bias_ln=summary.bias_ln,
    )  # fmt: skip
