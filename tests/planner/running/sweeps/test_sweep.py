"""Sweeps: rows that equal single answers, results kept and found again, shards, tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import planner
from planner import sweep
from planner.documents.formats import value_words
from planner.documents.problems import RequestError
from planner.running.sweeps import question
from planner.running.sweeps.grid import parse_grid
from planner.running.sweeps.question import OUTCOMES, Result, ask
from planner.running.sweeps.run import merge
from planner.running.sweeps.run import sweep as run
from planner.running.sweeps.table import COLUMNS, csv_bytes, parquet_bytes

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64, "tokens": 1e12},
}
# Plans in place of searches: many rows, little work.
PLANS = {
    "base": BASE,
    "axes": {"plan.tp": [1, 2, 4, 8, 3], "training.global_batch_size": [64, 128, 256]},
}


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "mixtral-8x7b", "cluster": "2x8xa100-sxm-80gb"},
        {"search": {"objective": "memory_headroom", "top_k": 3}},
        {"search": {"framework": "deepspeed"}, "cluster": "2x8xh100-sxm"},
        {"search": {"limits": {"tp": {"min": 4}}, "open": ["rank_order"]}},
    ],
)
def test_a_row_is_the_best_plan_of_the_search(changes: dict[str, Any]) -> None:
    request = BASE | changes
    best = planner.plan(request).best
    assert best is not None
    (row,) = sweep(base=request, points=[{"training.seq_length": 4096}], workers=1).rows
    assert row["outcome"] == "fits"
    for name, value in best.plan.model_dump().items():
        assert row[name] == (value_words(value) if isinstance(value, tuple) else value)
    for name in ("iteration_time_s", "tokens_per_s", "mfu", "days", "cost_usd", "energy_kwh"):
        assert row[name] == getattr(best, name)
    assert row["peak_bytes"] == best.memory.peak_bytes <= row["capacity_bytes"]
    low, high = row["iteration_time_low_s"], row["iteration_time_high_s"]
    assert (low, high) == (best.error_band.low_s, best.error_band.high_s)


def test_a_row_of_a_plan_is_its_estimate() -> None:
    for row in sweep(PLANS, workers=1).rows[:3]:
        batch = row["training.global_batch_size"]
        training = BASE["training"] | {"global_batch_size": batch}
        own = planner.estimate(BASE, plan={"tp": 1}, training=training).estimate
        assert row["iteration_time_s"] == own.iteration_time_s
        assert row["outcome"] == ("fits" if own.fits else "does_not_fit")


@pytest.mark.slow
def test_every_outcome_has_its_reason() -> None:
    precision = {"training.precision": "fp8", "cluster": "1x8xa100-sxm-80gb"}
    numbers = [*range(1, 257)]
    points: list[dict[str, Any]] = [
        {"training.seq_length": 2048},
        {"model": "llama-3.1-405b"},
        {"cluster": "1x1xh100-sxm", "search.tp": [2]},
        {"plan": {"zero_stage": 0}},
        {"plan": {"tp": 3}},
        precision,
        {"search": {"tp": numbers, "cp": numbers, "pp": numbers}},
    ]
    answer = sweep(base=BASE, points=points, workers=1)
    expected = [
        ("fits", ""),
        ("nothing_fits", "stage 0 needs "),
        ("nothing_fits", "no plan is legal: "),
        ("does_not_fit", "stage 0 needs "),
        ("illegal", "tp 3 "),
        ("bad_input", "/training/precision: "),
        ("space_too_large", "the space is too large: "),
    ]
    for row, (outcome, begin) in zip(answer.rows, expected, strict=True):
        assert row["outcome"] == outcome
        assert (row["reason"] or "").startswith(begin), row["reason"]
        assert (row["tp"] is None) == (outcome not in ("fits", "does_not_fit"))
    assert answer.outcomes["nothing_fits"] == 2


def test_a_fault_of_ours_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "fastest", lambda *_, **__: 1 / 0)
    assert ask(BASE) == Result(outcome="failed", reason="ZeroDivisionError: division by zero")


def test_outcomes_have_words() -> None:
    assert OUTCOMES.keys() == set(question.Outcome.__args__)  # type: ignore[attr-defined]


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_what_is_kept_is_not_asked_again(tmp_path: Path) -> None:
    whole = sweep(PLANS, workers=1)
    assert sweep(PLANS, workers=1, results=tmp_path) == whole
    before = stamps(tmp_path)
    assert len(before) == len(whole.rows) == 15
    lost, torn, *rest = before
    (tmp_path / lost).unlink()
    (tmp_path / torn).write_text((tmp_path / torn).read_text()[:-5])
    (tmp_path / "notes.txt").write_text("not ours")
    assert sweep(PLANS, workers=1, results=tmp_path) == whole
    after = stamps(tmp_path)
    assert after.keys() == {*before, "notes.txt"}
    assert all(after[name] == before[name] for name in rest)
    assert after[torn] != before[torn]


def test_a_larger_grid_goes_on_from_a_smaller_one(tmp_path: Path) -> None:
    few = PLANS | {"axes": PLANS["axes"] | {"plan.tp": [2, 4]}}
    sweep(few, workers=1, results=tmp_path)
    before = stamps(tmp_path)
    assert sweep(PLANS, workers=1, results=tmp_path) == sweep(PLANS, workers=1)
    after = stamps(tmp_path)
    assert before.items() < after.items()
    assert (len(before), len(after)) == (6, 15)


@pytest.mark.slow
def test_one_question_asked_twice_is_worked_once(tmp_path: Path) -> None:
    answer = sweep(base=BASE | {"plan": {}}, points=[{"plan.tp": 2}] * 3, results=tmp_path)
    assert len(answer.rows) == 3
    assert len(list(tmp_path.iterdir())) == 1


def test_shards_make_up_the_whole(tmp_path: Path) -> None:
    grid, whole = parse_grid(PLANS), sweep(PLANS, workers=1)
    folders = [tmp_path / str(i) for i in range(4)]
    parts = [run(grid, folder, workers=1, shard=f"{i}/4") for i, folder in enumerate(folders, 1)]
    assert sorted(len(part.rows) for part in parts) == [3, 4, 4, 4]
    rows = [row for part in parts for row in part.rows]
    assert all(row in rows for row in whole.rows)
    assert merge(grid, folders) == whole
    partly = merge(grid, [folders[0], folders[2]])
    assert partly.outcomes["not_asked"] == len(parts[1].rows) + len(parts[3].rows)
    kept = [row for row in partly.rows if row["outcome"] != "not_asked"]
    assert kept == [row for row in whole.rows if row in parts[0].rows or row in parts[2].rows]
    # In one folder, as where machines share a file system.
    for i in range(1, 4):
        run(grid, tmp_path / "all", workers=1, shard=f"{i}/3")
    assert merge(grid, [tmp_path / "all"]) == whole


@pytest.mark.parametrize(
    "shard", ["0/4", "5/4", "1/0", "-1/4", "3", "", "x/y", "²/2", 3, "1" * 5000]
)
def test_no_such_shard(shard: Any) -> None:
    with pytest.raises(RequestError, match="/shard"):
        sweep(PLANS, shard=shard)


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_no_such_workers(workers: Any) -> None:
    with pytest.raises(RequestError, match="/workers: must be >= 1"):
        sweep(PLANS, workers=workers)


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"/backend: must be one of local, ray, dask; got rai"):
        sweep(PLANS, backend="rai")
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot keep results"):
        sweep(PLANS, results=tmp_path / "file" / "folder")
    for nonsense in (5, "x", [], [1]):
        with pytest.raises(RequestError):
            sweep(nonsense)  # type: ignore[arg-type]


def test_csv_holds_every_cell() -> None:
    points = [
        {"training.tokens": 10**12, "plan.overlap_p2p": True, "plan.stage_layers": [20, 12]},
        {"plan": {"recompute": "selective", "recompute_modules": ["mlp", "core_attn"]}},
        {"training.tokens": 1.5e12, "search.framework": "deepspeed"},
    ]
    base = BASE | {"plan": {"pp": 2}}
    answer = sweep(base=base, points=points, workers=1)
    read = list(csv.DictReader(io.StringIO(answer.csv().decode(), newline="")))
    assert [*read[0]] == [*answer.inputs, *COLUMNS]
    for cells, row in zip(read, answer.rows, strict=True):
        for name, value in row.items():
            assert cells[name] == ("" if value is None else value_words(value))
            if isinstance(value, float):
                assert float(cells[name]) == value
    assert read[0]["stage_layers"] == "20,12"
    assert read[1]["recompute_modules"] == "core_attn,mlp"
    assert (
        read[1]["plan"] == '{"recompute": "selective", "recompute_modules": ["mlp", "core_attn"]}'
    )


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(1)"])
def test_a_name_is_no_formula_of_a_spreadsheet(name: str) -> None:
    row = {"model": name, **dict.fromkeys(COLUMNS), "iteration_time_s": -1.5}
    ((read, *_),) = [list(csv.DictReader(io.StringIO(csv_bytes(["model"], [row]).decode())))]
    assert read["model"] == f"'{name}"
    assert read["iteration_time_s"] == "-1.5"


@pytest.mark.slow
def test_parquet_holds_every_cell_with_its_type() -> None:
    rows = [
        {"batch": 1, "tokens": 10, "on": True, "huge": 2**70, "model": "x", "none": None},
        {"batch": 2, "tokens": 1.5, "on": False, "huge": 1, "model": 7, "none": None},
    ]
    inputs = tuple(rows[0])
    empty = dict.fromkeys(COLUMNS)
    table = pyarrow.parquet.read_table(
        io.BytesIO(parquet_bytes(inputs, [empty | row for row in rows]))
    )
    kinds = [str(table.schema.field(name).type) for name in inputs]
    assert kinds == ["int64", "double", "bool", "double", "string", "string"]
    assert table.select(inputs).to_pylist() == [
        {**rows[0], "huge": float(2**70)},
        {**rows[1], "model": "7"},
    ]
    answer = sweep(PLANS, workers=1)
    table = pyarrow.parquet.read_table(io.BytesIO(answer.parquet()))
    assert table.to_pylist() == list(answer.rows)
    kinds = {
        name: str(table.schema.field(name).type) for name in ("tp", "mfu", "compile", "reason")
    }
    assert kinds == {"tp": "int64", "mfu": "double", "compile": "bool", "reason": "string"}
