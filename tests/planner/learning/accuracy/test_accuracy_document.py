"""What becomes of each kind of row, and that the document has the fields that were promised."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from planner.evidence.published_runs.runs import PUBLISHED_RUNS, read_runs
from planner.learning.accuracy.accuracy_answer import AccuracyAnswer, ratio_words
from planner.learning.accuracy.compute import answer_of
from planner.learning.accuracy.predict import Prediction, predict
from planner.learning.accuracy.suspects import assumptions, suspects, worst
from tests.planner.learning.accuracy.drawn_runs import ROW, written
from tests.planner.learning.accuracy.published import predictions


@pytest.fixture(scope="module")
def shipped() -> AccuracyAnswer:
    return answer_of(PUBLISHED_RUNS.name, predictions())


def answer(folder: Path, *rows: dict[str, Any]) -> AccuracyAnswer:
    path = written(folder / "runs.csv", rows)
    return answer_of(path.name, map(predict, read_runs(path)))


@pytest.mark.slow
def test_shipped_runs_are_covered(shipped: AccuracyAnswer) -> None:
    assert shipped.summary.coverage >= 0.95
    assert shipped.summary.rows == len(shipped.rows) == 1594


@pytest.mark.slow
def test_the_fields_that_were_promised(shipped: AccuracyAnswer) -> None:
    document = json.loads(shipped.model_dump_json())
    summary = document["summary"]
    assert set(document) >= {"summary", "rows"}
    assert set(summary) >= {"coverage", "time", "memory", "ranking"}
    assert set(summary["time"]) >= {"mean_of_source_medians", "by_source"}
    for source in summary["time"]["by_source"].values():
        assert set(source) >= {"n", "median_abs_ln", "p90_abs_ln", "bias_ln"}
    assert set(summary["memory"]) >= {
        "median_abs_ln",
        "mean_abs_error",
        "under_predicted_share",
        "oom_caught",
        "oom_rows",
    }
    assert summary["ranking"]
    for group in summary["ranking"].values():
        assert set(group) >= {"n", "kendall_tau", "top1_regret"}
    for row in document["rows"]:
        assert set(row) >= {
            "id",
            "source_key",
            "predicted_iteration_time_s",
            "published_iteration_time_s",
            "predicted_peak_bytes",
            "published_peak_bytes",
            "reason",
            "assumptions",
        }


@pytest.mark.slow
def test_shipped_summary_adds_up(shipped: AccuracyAnswer) -> None:
    summary, rows = shipped.summary, shipped.rows
    scored = [row for row in rows if row.table == "scored"]
    time = summary.time
    assert time.n == len(scored) == sum(source.n for source in time.by_source.values())
    medians = [source.median_abs_ln for source in time.by_source.values()]
    assert time.mean_of_source_medians == pytest.approx(sum(medians) / len(medians))
    overflowed = [row for row in rows if row.out_of_memory and row.confidence != "low"]
    assert summary.memory.oom_rows == len(overflowed) > 20
    assert summary.predicted == sum(row.reason is None for row in rows)
    for row in rows:
        assert (row.reason is None) == (row.predicted_iteration_time_s is not None)
        assert row.plan or row.reason
        if row.table in ("scored", "open"):
            assert row.ln_ratio is not None
            assert row.confidence != "low"
    layers = [row for row in rows if row.quantity == "layer"]
    assert {row.source_key for row in layers} == {"korth_t4"}
    assert time.by_source["korth_t4"].layer_rows == 5


@pytest.mark.slow
def test_shipped_rankings_score_plans_not_rows(shipped: AccuracyAnswer) -> None:
    groups = {n: g for n, g in shipped.summary.ranking.items() if g.source_key == "bloom_prequel"}
    assert groups
    for name, group in groups.items():
        rows = [r for r in shipped.rows if r.ranking_group == name and r.table == "scored"]
        assert group.n == len({row.config_group for row in rows}) <= len(rows)
        assert group.top1_regret >= 1
        # Repeats of this source lie up to 11 % apart, so that no model can rank it perfectly.
        assert group.kendall_tau_ceiling is not None
        assert 0 < group.kendall_tau_ceiling <= 1
    assert shipped.summary.time.by_source["bloom_prequel"].n > sum(g.n for g in groups.values())


def test_a_row_in_doubt_is_listed_and_not_scored(tmp_path: Path) -> None:
    found = answer(tmp_path, ROW, {**ROW, "id": "b", "confidence": "LOW"})
    assert [row.table for row in found.rows] == ["scored", "low"]
    assert found.rows[1].ln_ratio is not None
    assert found.summary.time.n == 1
    assert found.summary.coverage == 1


def test_a_row_with_an_open_input_has_a_range_and_its_own_score(tmp_path: Path) -> None:
    found = answer(tmp_path, ROW, {**ROW, "id": "b", "micro_batch": "", "recompute": ""})
    first, second = found.rows
    assert (first.table, second.table) == ("scored", "open")
    assert set(second.open_inputs) == {"micro_batch", "recompute"}
    assert second.lowest_s is not None
    assert second.highest_s is not None
    assert second.highest_s > 1.05 * second.lowest_s
    assert found.summary.time.n == found.summary.time.open.n == 1
    assert found.summary.memory.n == 1


def test_a_layer_is_compared_with_a_layer(tmp_path: Path) -> None:
    row = {**ROW, "schedule": "LAYER_MICROBENCH", "derived_iteration_time_s": "0.02"}
    found = answer(tmp_path, ROW, {**row, "id": "b"})
    assert found.rows[0].predicted_iteration_time_s is not None
    assert found.rows[1].predicted_iteration_time_s is not None
    assert found.rows[1].quantity == "layer"
    assert found.rows[1].predicted_iteration_time_s < 0.1 * found.rows[0].predicted_iteration_time_s
    assert found.summary.time.by_source["drawn"].layer_rows == 1
    assert not found.summary.ranking


def test_an_out_of_memory_run_is_caught_or_not(tmp_path: Path) -> None:
    base = {**ROW, "derived_iteration_time_s": "", "oom": "1"}
    huge = {**base, "id": "b", "micro_batch": "4", "dp": "1", "tp": "1", "n_gpus": "1"}
    unknown = {**base, "id": "c", "gpu": "abacus"}
    found = answer(tmp_path, base, huge, unknown)
    assert [row.table for row in found.rows] == ["not_measured", "not_measured", "not_predicted"]
    assert found.rows[1].fits is False
    # What is not predicted is not caught.
    assert found.summary.memory.oom_rows == 3
    assert found.summary.memory.oom_caught == 1
    ran = answer(tmp_path, {**huge, "oom": "0", "derived_iteration_time_s": "9"})
    assert ran.summary.memory.ran_but_predicted_not_to_fit == ["b"]


def test_what_is_not_predicted_counts_against_coverage(tmp_path: Path) -> None:
    found = answer(tmp_path, ROW, {**ROW, "id": "b", "gpu": "abacus"})
    assert found.summary.coverage == 0.5
    assert found.rows[1].table == "not_predicted"
    assert "abacus" in str(found.rows[1].reason)
    nothing = answer(tmp_path, {**ROW, "gpu": "abacus"})
    assert nothing.summary.time.mean_of_source_medians is None
    assert nothing.summary.memory.mean_abs_error is None
    assert nothing.summary.coverage == 0


def test_repeats_of_a_plan_count_once_in_the_ranking(tmp_path: Path) -> None:
    rows = [
        {**ROW, "id": "a", "config_group": "g1", "derived_iteration_time_s": "2.0"},
        {**ROW, "id": "b", "config_group": "g1", "derived_iteration_time_s": "2.2"},
        {**ROW, "id": "c", "config_group": "g2", "tp": "8", "dp": "1",
         "derived_iteration_time_s": "3.0"},
    ]  # fmt: skip
    found = answer(tmp_path, *rows)
    (name, group), *others = found.summary.ranking.items()
    assert not others
    assert name == "drawn: llama-3.1-8b, 8 x H100 SXM, sequence 4096"
    assert group.n == 2
    assert group.kendall_tau == 1
    assert group.top1_regret == 1
    assert group.kendall_tau_ceiling == pytest.approx(1, abs=1e-3)


def test_other_models_and_clusters_are_other_groups(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "model": "llama-3-8b"}, {**ROW, "n_gpus": "16", "dp": "16"}]
    assert answer(tmp_path, *rows).summary.ranking == {}


def test_a_document_holds_no_nan() -> None:
    run = read_runs(PUBLISHED_RUNS)[0]
    with pytest.raises(ValueError, match="finite"):
        answer_of("x", [Prediction(run, None, iteration_time_s=math.nan)])


@pytest.mark.slow
def test_suspects_are_what_the_rows_that_are_off_share(shipped: AccuracyAnswer) -> None:
    base = next(row for row in shipped.rows if row.table == "scored")

    def row(name: str, ln_ratio: float, *assumed: str) -> Any:
        return base.model_copy(
            update={"id": name, "ln_ratio": ln_ratio, "assumptions": list(assumed)}
        )

    rows = [row("a", -0.5, "all", "bad"), row("b", 0.4, "all", "bad"), row("c", 0.1, "all", "good")]
    known = assumptions(rows)
    assert [known["all"].number, known["all"].rows, known["bad"].rows] == [1, 3, 2]
    assert known["all"].excess_abs_ln == pytest.approx(0)
    assert [one.text for one in suspects(rows[0], known)] == ["bad"]
    assert suspects(rows[2], known) == []
    assert [one.id for one in worst(rows, 2)] == ["a", "b"]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.104, "1.10"), (0.9, "0.90"), (12.0, "12.00"), (0.004, "0.004"), (1234.0, "1.2e+03"),
     (1e9, "> 1e6"), (1e-300, "< 1e-6"), (None, "-")],
)  # fmt: skip
def test_a_ratio_in_words(tmp_path: Path, ratio: float | None, words: str) -> None:
    row = answer(tmp_path, ROW).rows[0].model_copy(update={"ln_ratio": ratio and math.log(ratio)})
    assert ratio_words(row) == words
