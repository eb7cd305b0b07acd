"""Logs that are none, or not of one steady run: a clear word, and nothing kept."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.documents.problems import Problem, RequestError
from planner.inputs.logs import RunLog, lines_of, read_log, read_logs
from planner.inputs.logs import stream as stream_module
from tests.fixtures.tiers import examples

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"
MEGATRON = (LOGS / "megatron_gpt_8_nodes.log").read_text().splitlines()
BLOCK = [line for line in MEGATRON if "elapsed time" not in line]


def step(number: int, ms: object = 500.0, batch: int = 4, loss: str = "2.0E+00") -> str:
    return (
        f" iteration {number:8d}/    1000 | consumed samples: {number * batch:12d} | elapsed time "
        f"per iteration (ms): {ms} | learning rate: 1E-04 | global batch size: {batch:5d} | "
        f"lm loss: {loss} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def steps(count: int = 20, **more: Any) -> list[str]:
    return [step(number, **more) for number in range(1, count + 1)]


def problem(lines: list[str], files: dict[str, str] | None = None) -> Problem:
    with pytest.raises(RequestError) as caught:
        read_log(lines, "train.log", files)
    return caught.value.problems[0]


def test_the_sound_one_is_read() -> None:
    found = read_log([*BLOCK, *steps()], "train.log")
    assert found.step.seconds == 0.5
    assert found.step.steps == 15


def test_empty() -> None:
    assert problem([]).code == "empty"


def test_another_kind_of_text_names_what_can_be_read() -> None:
    found = problem(["Dear reader,", "this is a letter."])
    assert found.code == "unknown_log"
    assert "megatron-lm" in found.allowed
    assert "2 lines" in found.detail


@pytest.mark.parametrize("junk", [bytes(range(256)) * 40, b"\x89PNG\r\n\x1a\n" + b"\x00" * 999])
def test_binary(junk: bytes) -> None:
    assert problem(list(lines_of(io.BytesIO(junk)))).code == "not_text"


def test_a_line_without_end_is_never_held() -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return b"x" * size

    with pytest.raises(RequestError, match="a line of more than 1 MiB"):
        read_log(lines_of(Endless()), "train.log")  # type: ignore[arg-type]


def test_two_runs_in_one_file() -> None:
    found = problem([*BLOCK, *steps(), *BLOCK, *steps()])
    assert found.code == "two_runs"
    assert found.pointer == "/log"
    assert "the first began at line" in found.detail


def test_resumed_run() -> None:
    """Started anew from a checkpoint, without a block of its own."""
    found = problem([*BLOCK, *steps(20), *[step(n) for n in range(11, 31)]])
    assert found.code == "two_runs"
    assert "step 11 after step 20" in found.detail


def test_run_that_only_begins_later_is_sound() -> None:
    found = read_log([*BLOCK, *[step(n) for n in range(501, 521)]], "train.log")
    assert found.step.steps == 15


def test_batch_that_grows() -> None:
    found = problem([*BLOCK, *steps(10, batch=4), *[step(n, batch=8) for n in range(11, 30)]])
    assert found.code == "batch_changes"
    assert (found.got, found.allowed) == (8, (4,))


@pytest.mark.parametrize("loss", ["nan", "NaN", "inf"])
def test_loss_that_is_none(loss: str) -> None:
    found = problem([*BLOCK, *steps(10), *[step(n, loss=loss) for n in range(11, 30)]])
    assert found.code == "loss_is_nan"


def test_times_in_seconds_are_read_as_such() -> None:
    lines = [line.replace("(ms)", "(s)") for line in steps(ms=0.5)]
    assert read_log([*BLOCK, *lines], "train.log").step.seconds == 0.5


@pytest.mark.parametrize("ms", [5e-5, 2e9, -3.0, "nan", "1e999", "0.0"])
def test_times_in_no_unit(ms: object) -> None:
    found = problem([*BLOCK, *steps(ms=ms)])
    assert found.code in ("unit", "too_few_steps")


def test_times_that_disagree_with_the_clock() -> None:
    """Milliseconds by their name, seconds by the time stamps."""
    lines = [f" [2026-01-01 00:00:{n:02d}]{line}" for n, line in enumerate(steps(ms=1.0), 1)]
    found = problem([*BLOCK, *lines])
    assert found.code == "unit"
    assert "time stamps" in found.detail


def test_too_few_steps() -> None:
    found = problem([*BLOCK, *steps(1)])
    assert found.code == "too_few_steps"


def test_checkpoint_s_state_has_no_times() -> None:
    state = json.dumps({"global_step": 10, "log_history": [{"loss": 1.0, "step": 5}]}, indent=2)
    assert problem(state.splitlines()).code == "too_few_steps"


SCRIPT = """\
torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py --num-layers {layers} --hidden-size 7168 \
--num-attention-heads 32 --seq-length 1024 --max-position-embeddings 1024 \
--micro-batch-size {micro} --global-batch-size 4 --tensor-model-parallel-size 4 \
--pipeline-model-parallel-size 8 --fp16 --vocab-size 50257 --train-iters 1000
"""


def test_model_other_than_the_script_s() -> None:
    files = {"run.sh": SCRIPT.format(layers=40, micro=1)}
    found = problem([*BLOCK, *steps()], files)
    assert (found.pointer, found.code) == ("/files", "another_model")
    assert (found.got, found.allowed) == (40, (48,))


def test_plan_other_than_the_script_s() -> None:
    found = problem([*BLOCK, *steps()], {"run.sh": SCRIPT.format(layers=48, micro=2)})
    assert found.code == "another_run"


def test_script_fills_what_the_log_leaves_open() -> None:
    files = {"run.sh": SCRIPT.format(layers=48, micro=1)}
    bare = read_log(steps(), "train.log")
    assert "plan.tp" in bare.left_open
    found = read_log(steps(), "train.log", files)
    assert found.reading is not None
    assert (found.get("plan.tp"), found.get("model.num_layers")) == (4, 48)
    fact = next(one for one in found.facts if one.field == "plan.tp")
    assert (fact.file, fact.line) == ("run.sh", 1)


def test_script_that_is_none_is_refused() -> None:
    found = problem([*BLOCK, *steps()], {"run.sh": "echo hello\n"})
    assert found.code == "no_framework"


def test_a_gigabyte_is_refused_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_BYTES", 20_000)
    found = problem([*BLOCK, *steps(2000)])
    assert found.code == "too_large"


@pytest.mark.slow
def test_memory_stays_small() -> None:
    """Lines are let go of: 10 MB of them take less than 1 MB."""

    def lines() -> Iterator[str]:
        yield from BLOCK
        for number in range(1, 1_001):
            yield step(number)
            yield "x" * 10_000

    read_log(steps(), "warm up the imports")
    tracemalloc.start()
    try:
        found = read_log(lines(), "train.log")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.step.steps == 995
    assert peak < 1e6


def test_table_of_several_runs_is_no_log() -> None:
    rows = ["id,gpu,n_gpus,model,seq_len,global_batch,iteration_time_s"]
    rows += [f"r{n},H100,8,llama-3.1-8b,8192,64,{n}.5" for n in (1, 2)]
    assert [run.step.seconds for run in read_logs(rows, "runs.csv")] == [1.5, 2.5]
    assert problem(rows).code == "two_runs"


SMALL = [
    path.read_text().splitlines()
    for path in sorted(LOGS.glob("*.log"))
    if path.stat().st_size < 20_000
]
JUNK = st.sampled_from(["nan", "-1", "0", "9" * 400, "1e999", "[", "{", "'", "\u0000", "٣", ""])


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_damage_is_read_or_refused(data: st.DataObject) -> None:
    """Numbers replaced, lines lost, doubled or moved: a document or a clear word."""
    lines = list(data.draw(st.sampled_from(SMALL)))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(lines) - 1))
        what = data.draw(st.integers(0, 3))
        if what == 0:
            words = lines[place].split(" ")
            words[data.draw(st.integers(0, len(words) - 1))] = data.draw(JUNK)
            lines[place] = " ".join(words)
        elif what == 1 and len(lines) > 1:
            del lines[place]
        elif what == 2:
            lines.insert(place, lines[data.draw(st.integers(0, len(lines) - 1))])
        else:
            lines[place] = lines[place][: data.draw(st.integers(0, 80))]
    with suppress(RequestError):
        found = read_log(lines, "train.log")
        assert RunLog.model_validate_json(found.model_dump_json()) == found
