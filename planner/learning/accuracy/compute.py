"""Computes the answer of `planner accuracy`: a row for each prediction, and the scores of all.

Rows are read, predicted and reduced one at a time, so that a large file costs no more memory
than its document.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import numpy as np

from planner.documents.first_sight import KindErrors
from planner.documents.formats import memory_words, plan_words
from planner.documents.problems import shown as shown_text
from planner.evidence.uncertainty.error_features import ErrorFeatures
from planner.evidence.uncertainty.posterior import SHARES, SeenRun
from planner.learning.accuracy.accuracy_answer import (
    AccuracyAnswer,
    MemorySummary,
    OpenTime,
    Ranking,
    Row,
    SourceMemory,
    SourceTime,
    Summary,
    Table,
    TimeSummary,
    within_range,
)
from planner.learning.accuracy.first_sights import first_sight_summary, kind_of
from planner.learning.accuracy.intervals import interval_summary, intervals, shots
from planner.learning.accuracy.predict import Prediction
from planner.learning.accuracy.scores import (
    Errors,
    MemoryErrors,
    errors,
    features_of,
    kendall_tau,
    log_of_ratio,
    memory_errors,
    repeat_spread,
    seen_runs,
    tau_ceiling,
    top1_regret,
)


def answer_of(
    data: str, predictions: Iterable[Prediction], shown: Sequence[int] = ()
) -> AccuracyAnswer:
    """The document of the predictions of a file called `data`.

    shown: how many runs of a source are shown before the others are judged.
    """
    known: dict[str, str] = {}
    rows: list[Row] = []
    runs: list[SeenRun] = []
    for prediction in predictions:
        rows.append(_row(prediction, known))
        runs += seen_runs([prediction])
    predicted = sum(row.reason is None for row in rows)
    summary = Summary(
        rows=len(rows),
        predicted=predicted,
        coverage=predicted / len(rows) if rows else 0.0,
        time=_time(rows),
        memory=_memory(rows),
        ranking=_rankings(rows),
        intervals=interval_summary(runs),
        first_sight=first_sight_summary(),
        shots=shots(runs, shown) if shown else {},
    )
    return AccuracyAnswer(data=_text(data), summary=summary, rows=rows)


def _row(prediction: Prediction, known: dict[str, str]) -> Row:
    """A prediction as its row; `known` keeps one copy of texts that many rows share."""
    run, case = prediction.run, prediction.case
    plan = None
    if prediction.plan is not None:
        dumped = prediction.plan.model_dump()
        plan = " · ".join([*plan_words(dumped), *memory_words(dumped)])
    predicted, published = prediction.iteration_time_s, run.iteration_time_s
    model, cluster = _text(run["model"]), _text(f"{run['n_gpus']} x {run['gpu']}")
    source = _text(run.source_key)
    assumptions = [_long_text(text) for text in case.assumptions] if case else []
    features = features_of(prediction)
    return Row(
        id=_text(run.id),
        source_key=known.setdefault(source, source),
        model=known.setdefault(model, model),
        cluster=known.setdefault(cluster, cluster),
        plan=plan,
        confidence=_text(run["confidence"].lower()),
        quantity="layer" if run.is_layer else "iteration",
        table=_table(prediction),
        predicted_iteration_time_s=predicted,
        lowest_s=prediction.lowest_s,
        highest_s=prediction.highest_s,
        published_iteration_time_s=published,
        ln_ratio=log_of_ratio(predicted, published) if predicted and published else None,
        predicted_peak_bytes=prediction.peak_bytes,
        published_peak_bytes=run.peak_bytes,
        capacity_bytes=prediction.capacity_bytes,
        fits=prediction.fits,
        out_of_memory=bool(run.flag("oom")),
        global_batch_size=case.training.global_batch_size if case else None,
        ranking_group=_long_text(f"{source}: {model}, {cluster}, sequence {run['seq_len'][:20]}"),
        config_group=_text(run["config_group"]),
        open_inputs=list(case.open_inputs) if case else [],
        reason=_long_text(prediction.reason) or None,
        assumptions=[known.setdefault(text, text) for text in assumptions],
        kind=_kind(prediction),
        doubts=list(features.doubts) if features else [],
        intervals=_intervals(features, predicted),
    )


def _kind(prediction: Prediction) -> str | None:
    case = prediction.case
    if case is None:
        return None
    adapts = "lora" if case.training.freezes else "full"
    return kind_of(case.model.moe is not None, prediction.run["method"].lower() or adapts)


def _intervals(
    features: ErrorFeatures | None, seconds: float | None
) -> dict[str, tuple[float, float]] | None:
    if features is None or seconds is None:
        return None
    bounds = zip(SHARES, np.exp(intervals(SeenRun(features, 0.0))).tolist(), strict=True)
    return {share: (seconds * low, seconds * high) for share, (low, high) in bounds}


def _text(text: str) -> str:
    """A file's text as an answer may repeat it: printable, and no longer than is of use."""
    return str(shown_text(text))


def _long_text(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:300])


def _table(prediction: Prediction) -> Table:
    if prediction.reason:
        return "not_predicted"
    if prediction.run.iteration_time_s is None:
        return "not_measured"
    if prediction.run["confidence"].lower() == "low":
        return "low"
    return "scored" if prediction.settled else "open"


def _grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _ratios(rows: Iterable[Row]) -> list[float]:
    return [row.ln_ratio for row in rows if row.ln_ratio is not None]


def _time(rows: Sequence[Row]) -> TimeSummary:
    scored = [row for row in rows if row.table == "scored"]
    by_source: dict[str, SourceTime] = {}
    for source, source_rows in _grouped(scored, lambda row: row.source_key).items():
        summary = errors(_ratios(source_rows))
        assert summary is not None
        layers = sum(row.quantity == "layer" for row in source_rows)
        by_source[source] = SourceTime(layer_rows=layers, **asdict(summary))
    medians = [source.median_abs_ln for source in by_source.values()]
    mean = math.fsum(medians) / len(medians) if medians else None
    return TimeSummary(
        n=len(scored),
        mean_of_source_medians=mean,
        by_source=by_source,
        by_kind=_errors_by(scored, lambda row: [row.kind or ""]),
        by_doubt=_errors_by(scored, lambda row: row.doubts or ["nothing"]),
        open=_open_time(rows),
    )


def _errors_by(rows: Iterable[Row], kinds: Callable[[Row], Sequence[str]]) -> dict[str, KindErrors]:
    """Errors of rows by kind; a row may be of several."""
    by_kind: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for kind in kinds(row):
            if row.ln_ratio is not None:
                by_kind[kind][row.source_key].append(row.ln_ratio)
    return {kind: KindErrors.from_runs(by_source) for kind, by_source in sorted(by_kind.items())}


def _open_time(rows: Iterable[Row]) -> OpenTime:
    open_rows = [row for row in rows if row.table == "open"]
    summary: Errors | None = errors(_ratios(open_rows))
    if summary is None:
        return OpenTime(
            n=0, median_abs_ln=None, p90_abs_ln=None, bias_ln=None, within_range_share=None
        )
    inside = sum(within_range(row) for row in open_rows) / len(open_rows)
    return OpenTime(within_range_share=inside, **asdict(summary))


def _counts_as_peak(row: Row) -> bool:
    settled = row.confidence != "low" and row.table != "open"
    return bool(settled and row.predicted_peak_bytes and row.published_peak_bytes)


def _memory(rows: Sequence[Row]) -> MemorySummary:
    """Peaks of confident rows whose plan is known, and every confident out-of-memory row."""
    peak_rows = list(filter(_counts_as_peak, rows))
    summary = _peaks(peak_rows)
    by_source: dict[str, SourceMemory] = {}
    for source, part in _grouped(peak_rows, lambda row: row.source_key).items():
        errors_of_source = _peaks(part)
        assert errors_of_source is not None
        by_source[source] = SourceMemory(**asdict(errors_of_source))
    overflowed = [row for row in rows if row.out_of_memory and row.confidence != "low"]
    return MemorySummary(
        n=len(peak_rows),
        median_abs_ln=summary and summary.median_abs_ln,
        mean_abs_error=summary and summary.mean_abs_error,
        mean_error=summary and summary.mean_error,
        under_predicted_share=summary and summary.under_predicted_share,
        oom_caught=sum(row.fits is False for row in overflowed),
        oom_rows=len(overflowed),
        ran_but_predicted_not_to_fit=[
            row.id for row in rows if row.fits is False and not row.out_of_memory
        ],
        by_source=by_source,
    )


def _peaks(rows: Sequence[Row]) -> MemoryErrors | None:
    return memory_errors(
        [row.predicted_peak_bytes or math.nan for row in rows],
        [row.published_peak_bytes or math.nan for row in rows],
    )


def _rankings(rows: Iterable[Row]) -> dict[str, Ranking]:
    """Per group of equal source, model, cluster and sequence with two different plans or more.

    A plan is all rows of one config_group; its time is the mean of theirs, and per sequence, for
    some plans of a group round the global batch to what they divide.
    """
    scored = [row for row in rows if row.table == "scored" and row.quantity == "iteration"]
    groups = _grouped(scored, lambda row: row.ranking_group)
    plans = {
        name: list(_grouped(group, lambda row: row.config_group or f"row {row.id}").values())
        for name, group in groups.items()
    }
    repeats: dict[str, list[list[float]]] = defaultdict(list)
    for config in plans.values():
        repeats[config[0][0].source_key] += [
            [_published_s_per_sample(row) for row in plan] for plan in config
        ]
    spreads = {source: repeat_spread(times) for source, times in repeats.items()}
    return {
        name: _ranking(group, spreads[group[0][0].source_key])
        for name, group in plans.items()
        if len(group) > 1
    }


def _ranking(plans: Sequence[Sequence[Row]], spread: float | None) -> Ranking:
    predicted = [_mean([_predicted_s_per_sample(row) for row in plan]) for plan in plans]
    published = [_mean([_published_s_per_sample(row) for row in plan]) for plan in plans]
    many = [len({_published_s_per_sample(row) for row in plan}) for plan in plans]
    regret = top1_regret(predicted, published)
    assert regret is not None
    return Ranking(
        n=len(plans),
        source_key=plans[0][0].source_key,
        kendall_tau=kendall_tau(predicted, published),
        kendall_tau_ceiling=None if spread is None else tau_ceiling(published, many, spread),
        top1_regret=regret,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _predicted_s_per_sample(row: Row) -> float:
    return (row.predicted_iteration_time_s or math.nan) / (row.global_batch_size or 1)


def _published_s_per_sample(row: Row) -> float:
    return (row.published_iteration_time_s or math.nan) / (row.global_batch_size or 1)
