"""The answer of `planner accuracy`: one row per published run, and the scores of all of them."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import FiniteFloat

from planner.documents.first_sight import FirstSight, KindErrors
from planner.documents.plan_report import Document
from planner.learning.accuracy.intervals import IntervalSummary, Shots

Table = Literal["scored", "open", "low", "not_measured", "not_predicted"]
# The table that a row belongs to, and the reason; the first reason that holds decides.
TABLES: dict[Table, str] = {
    "not_predicted": "no prediction, see its reason; counts against coverage",
    "not_measured": "the source gives no time: memory or an out-of-memory only",
    "low": "the source's own figures are in doubt: listed, not scored",
    "open": "an input that is not stated moves the time by more than 5 %: a score of its own",
    "scored": "in the headline",
}


class Row(Document):
    """One published run.

    lowest_s, highest_s: over the values of `open_inputs`, which the source does not state.
    quantity: what the two times are of.  ranking_group: the rows its plan competes with.
    kind: dense, mixture of experts, or adapters; None without a prediction.  doubts: what is
    guessed of it.  intervals: seconds, by per cent of runs that they are to hold.
    """

    id: str
    source_key: str
    model: str
    cluster: str
    plan: str | None
    confidence: str
    quantity: Literal["iteration", "layer"]
    table: Table
    predicted_iteration_time_s: FiniteFloat | None
    lowest_s: FiniteFloat | None
    highest_s: FiniteFloat | None
    published_iteration_time_s: FiniteFloat | None
    ln_ratio: FiniteFloat | None
    predicted_peak_bytes: FiniteFloat | None
    published_peak_bytes: FiniteFloat | None
    capacity_bytes: FiniteFloat | None
    fits: bool | None
    out_of_memory: bool
    global_batch_size: int | None
    ranking_group: str
    config_group: str
    open_inputs: list[str]
    reason: str | None
    assumptions: list[str]
    kind: str | None
    doubts: list[str]
    intervals: dict[str, tuple[FiniteFloat, FiniteFloat]] | None


class SourceTime(Document):
    """Errors of one source's scored rows; layer_rows: how many of them time one layer."""

    n: int
    layer_rows: int
    median_abs_ln: FiniteFloat
    p90_abs_ln: FiniteFloat
    bias_ln: FiniteFloat


class OpenTime(Document):
    """The rows with open inputs; within_range_share: measured between lowest and highest."""

    n: int
    median_abs_ln: FiniteFloat | None
    p90_abs_ln: FiniteFloat | None
    bias_ln: FiniteFloat | None
    within_range_share: FiniteFloat | None


class TimeSummary(Document):
    """mean_of_source_medians: of the medians in by_source, so that no source outvotes another.

    by_kind, by_doubt: the same of the rows of one kind, and of those of which something is guessed
    (nothing: none of it), over sources with five such rows and more.
    """

    n: int
    mean_of_source_medians: FiniteFloat | None
    by_source: dict[str, SourceTime]
    by_kind: dict[str, KindErrors]
    by_doubt: dict[str, KindErrors]
    open: OpenTime


class SourceMemory(Document):
    """Errors of one source's peaks, as shares of the published peak."""

    n: int
    median_abs_ln: FiniteFloat
    mean_abs_error: FiniteFloat
    mean_error: FiniteFloat
    under_predicted_share: FiniteFloat


class MemorySummary(Document):
    """Errors are shares of the published peak; under-predicted: by more than 3 %.

    Caught: an out-of-memory run that is predicted not to fit.
    """

    n: int
    median_abs_ln: FiniteFloat | None
    mean_abs_error: FiniteFloat | None
    mean_error: FiniteFloat | None
    under_predicted_share: FiniteFloat | None
    oom_caught: int
    oom_rows: int
    ran_but_predicted_not_to_fit: list[str]
    by_source: dict[str, SourceMemory]


class Ranking(Document):
    """How well n different plans are ranked; kendall_tau_ceiling: see scores.tau_ceiling.

    top1_regret: measured time of the plan predicted fastest, over the best measured time.
    """

    n: int
    source_key: str
    kendall_tau: FiniteFloat | None
    kendall_tau_ceiling: FiniteFloat | None
    top1_regret: FiniteFloat


class Summary(Document):
    """coverage: share of the rows that have a prediction.

    first_sight: what releases said of the catalog's runs before they were changed by them; the
    other scores are of runs that were known.  shots: where asked for, by K: errors once K runs of a
    source were seen.
    """

    rows: int
    predicted: int
    coverage: FiniteFloat
    time: TimeSummary
    memory: MemorySummary
    ranking: dict[str, Ranking]
    intervals: IntervalSummary | None
    first_sight: FirstSight
    shots: dict[str, Shots]


class AccuracyAnswer(Document):
    """What `planner accuracy` answers."""

    data: str
    summary: Summary
    rows: list[Row]


def within_range(row: Row) -> bool:
    """Whether the measured time lies between the lowest and the highest predicted one."""
    low, measured, high = row.lowest_s, row.published_iteration_time_s, row.highest_s
    return low is not None and high is not None and measured is not None and low <= measured <= high


def remarks(row: Row) -> list[str]:
    """Why a row is not in the headline, and how its run ended."""
    notes = [] if row.table in ("scored", "not_measured") else [row.table.replace("_", " ")]
    if row.quantity == "layer":
        notes.append("one layer")
    if row.out_of_memory:
        notes.append("out of memory")
    if row.fits is False:
        notes.append("predicted not to fit")
    return notes


def ratio_words(row: Row) -> str:
    """Predicted over measured, as a person reads it."""
    if row.ln_ratio is None:
        return "-"
    if abs(row.ln_ratio) > math.log(1e6):
        return "> 1e6" if row.ln_ratio > 0 else "< 1e-6"
    ratio = math.exp(row.ln_ratio)
    return f"{ratio:.2f}" if 0.095 <= ratio < 100 else f"{ratio:.2g}"
