"""Timelines: the document's numbers against cases worked by hand, and whatever may be typed."""

from __future__ import annotations

import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES
from cost_models.schedules.simulate import Links, Times
from planner.answers.pipelines.all_schedules import (
    ComparisonAnswer,
    ComparisonRequest,
    compare_for_plan,
    compare_schedules,
    parse_comparison,
)
from planner.answers.pipelines.timeline import (
    MOST_ACTIONS,
    TimelineAnswer,
    TimelineRequest,
    fewest_chunks,
    parse_timeline,
    simulate_timeline,
    timeline,
    timeline_of_plan,
)
from planner.commands.options import PIPELINE
from planner.documents.problems import RequestError
from tests.fixtures import answers

UNIT = {"forward_s": 1.0, "input_grad_s": 1.0, "weight_grad_s": 1.0}
SMALL: dict[str, Any] = {"schedule": "1f1b", "stages": 4, "micro_batches": 8, **UNIT}
WORDS = [
    "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8",
    "--forward-s", "1", "--input-grad-s", "1", "--weight-grad-s", "1",
]  # fmt: skip


def run(**over: Any) -> TimelineAnswer:
    return timeline(parse_timeline(SMALL | over))


@pytest.mark.parametrize(
    ("schedule", "chunks", "makespan_s", "ideal_s", "peaks"),
    [
        ("gpipe", 1, 33, 24, (8, 8, 8, 8)),
        ("1f1b", 1, 33, 24, (4, 3, 2, 1)),
        ("interleaved-1f1b", 2, 57, 48, (5.5, 4.5, 3.5, 2.5)),
        ("zb-h1", 1, 27, 24, (4, 4, 4, 4)),
        ("zb-v", 2, 51, 48, (4, 4, 4, 4)),
        ("dualpipe", 2, 25, 24, (5, 5, 5, 5)),
    ],
)
def test_known_cases(
    schedule: str, chunks: int, makespan_s: float, ideal_s: float, peaks: tuple[float, ...]
) -> None:
    answer = run(schedule=schedule, chunks=chunks)
    assert answer.makespan_s == makespan_s
    assert answer.ideal_s == ideal_s
    assert answer.closed_form_extra_s == pytest.approx(makespan_s - ideal_s)
    assert answer.bubble_of_total == pytest.approx(1 - ideal_s / makespan_s)
    assert answer.peak_in_flight == peaks
    assert answer.citation
    assert answer.holds


def test_actions_of_a_case_worked_by_hand() -> None:
    """Two ranks, two micro-batches, F = 1, B = 2: rank 1 alternates, rank 0 waits for it."""
    answer = run(stages=2, micro_batches=2)
    steps = [[(a.kind, a.micro_batch, a.start_s, a.end_s) for a in rank] for rank in answer.actions]
    assert steps == [
        [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 4, 6), ("B", 1, 7, 9)],
        [("F", 0, 1, 2), ("B", 0, 2, 4), ("F", 1, 4, 5), ("B", 1, 5, 7)],
    ]
    assert answer.in_flight == ((1, 2, 1, 0), (1, 0, 1, 0))
    assert answer.idle_s[0]["backward"] == 3
    assert answer.idle_s[1] == {
        "fill": 1, "forward": 0, "backward": 0, "communication": 0, "drain": 2,
    }  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "messages",
    [{}, {"p2p_s": 0.25}, {"p2p_s": 0.25, "p2p_transfer_s": 0.5, "blocking": True}],
    ids=["free", "latency", "blocking"],
)
def test_a_rank_is_busy_or_idle(schedule: str, messages: dict[str, Any]) -> None:
    answer = run(schedule=schedule, input_grad_s=1.25, **messages)
    busy = [sum(a.end_s - a.start_s for a in rank) for rank in answer.actions]
    for work_s, idle, waits in zip(busy, answer.idle_s, answer.waits, strict=True):
        assert work_s + sum(idle.values()) == pytest.approx(answer.makespan_s)
        assert work_s == pytest.approx(answer.ideal_s)
        assert min(idle.values()) >= 0
        assert sum(w.end_s - w.start_s for w in waits) == pytest.approx(idle["communication"])
    steps = [(s.start_s, s.end_s) for s in (*answer.actions[0], *answer.waits[0])]
    steps.sort()
    assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(steps))
    assert any(answer.waits) == bool(messages)
    for rank, held in zip(answer.actions, answer.in_flight, strict=True):
        assert len(rank) == len(held)
        assert held[-1] == pytest.approx(0)
    assert max(map(max, answer.in_flight)) == max(answer.peak_in_flight)


def test_waiting_for_a_message_under_way() -> None:
    """One micro-batch, latency 1: its gradient leaves rank 1 at 5 and is at rank 0 at 6."""
    answer = run(stages=2, micro_batches=1, p2p_s=1.0)
    assert answer.makespan_s == 8
    (wait,) = answer.waits[0]
    assert (wait.start_s, wait.end_s) == (5, 6)
    assert answer.waits[1] == ()  # the pipeline fills


def test_document_round_trip() -> None:
    answer = run(schedule="zb-v", p2p_s=0.1)
    again = TimelineAnswer.model_validate_json(answer.model_dump_json())
    assert again == answer
    document = json.loads(answer.model_dump_json())
    assert document["actions"][0][0] == {
        "kind": "F", "micro_batch": 0, "chunk": 0, "start_s": 0.0, "end_s": 1.0,
    }  # fmt: skip


def test_unknown_closed_form_is_null() -> None:
    """Outside of the region where it holds, a formula gives no number and the answer none."""
    answer = run(schedule="zb-v", micro_batches=2)
    assert answer.closed_form_extra_s is None
    assert math.isfinite(answer.makespan_s)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_chunks_may_be_left_out(schedule: str) -> None:
    assert run(schedule=schedule).chunks == fewest_chunks(SCHEDULES[schedule])


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "zero stages": ({"stages": 0}, "/stages", ">= 1"),
    "many stages": ({"stages": 257}, "/stages", "<= 256"),
    "no micro-batch": ({"micro_batches": 0}, "/micro_batches", ">= 1"),
    "half a micro-batch": ({"micro_batches": 1.5}, "/micro_batches", "an integer"),
    "a huge count": ({"micro_batches": 10**30}, "/micro_batches", "<="),
    "too many actions": ({"stages": 256, "micro_batches": 10_000}, "/micro_batches", "at most"),
    "a negative time": ({"forward_s": -1.0}, "/forward_s", ">= 1e-09"),
    "no time at all": ({"forward_s": 0.0}, "/forward_s", ">= 1e-09"),
    "not a number": ({"input_grad_s": math.nan}, "/input_grad_s", "number"),
    "endless": ({"weight_grad_s": math.inf}, "/weight_grad_s", "number"),
    "an age": ({"forward_s": 1e30}, "/forward_s", "<= 1000000"),
    "a slow message": ({"p2p_s": 1e30}, "/p2p_s", "<="),
    "text": ({"forward_s": "1"}, "/forward_s", "a number, got the string"),
    "a switch": ({"blocking": 1}, "/blocking", "true or false"),
    "an unknown schedule": ({"schedule": "1f1bb"}, "/schedule", "did you mean 1f1b"),
    "a long name": ({"schedule": "x" * 9999}, "/schedule", "no schedule"),
    "an unknown field": ({"stage": 4}, "/stage", "did you mean stages"),
    "a chunk too many": ({"chunks": 2}, "/chunks", "1f1b has 1 chunk per rank"),
    "one chunk": ({"schedule": "looped-bfs", "chunks": 1}, "/chunks", "at least 2 chunks"),
    "chunks of a V": ({"schedule": "zb-v", "chunks": 3}, "/chunks", "zb-v has 2 chunks"),
    "rounds": ({"schedule": "hanayo", "micro_batches": 7}, "/micro_batches", "4 or 8 would do"),
    "an odd pipeline": ({"schedule": "dualpipe", "stages": 5}, "/stages", "even"),
}


@pytest.mark.parametrize(("over", "pointer", "says"), BAD.values(), ids=BAD)
def test_bad_request(over: dict[str, Any], pointer: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        run(**over)
    (problem,) = caught.value.problems
    assert problem.pointer == pointer
    assert says in str(problem)


@pytest.mark.parametrize("document", [None, [], "1f1b", 4])
def test_not_a_document(document: Any) -> None:
    with pytest.raises(RequestError, match="an object"):
        parse_timeline(document)


def test_all_problems_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        parse_timeline({"schedule": "1f1b", "stages": 0, "forward_s": -1})
    pointers = {problem.pointer for problem in caught.value.problems}
    assert pointers == {
        "/stages",
        "/forward_s",
        "/micro_batches",
        "/input_grad_s",
        "/weight_grad_s",
    }


def test_the_largest_is_within_bounds() -> None:
    """64 ranks, 512 micro-batches and 4 chunks are promised."""
    assert MOST_ACTIONS >= 64 * 512 * 4 * 3


def plan_times(stages: int, chunks: int) -> Times:
    """The last rank works half as long again."""
    times = Times.equal(stages, chunks, 0.01, 0.01, 0.01)
    times.forward_s[-1] *= 1.5
    return times


@pytest.mark.slow
def test_of_a_plan() -> None:
    request = answers.request()
    plan = ParallelPlan(tp=4, pp=4, dp=4, vpp=2, schedule="interleaved-1f1b")
    answer = timeline_of_plan(request, plan, plan_times(4, 2), Links(1e-5))
    micro_batches = request.training.global_batch_size // 4
    assert (answer.stages, answer.chunks, answer.micro_batches) == (4, 2, micro_batches)
    assert answer.ideal_s == pytest.approx(micro_batches * 0.07)
    rows = compare_for_plan(request, plan, plan_times(4, 2), Links(1e-5))
    assert rows.ideal_s == pytest.approx(answer.ideal_s)
    (same,) = (r for r in rows.schedules if (r.schedule, r.chunks) == ("interleaved-1f1b", 2))
    assert same.makespan_s == pytest.approx(answer.makespan_s, rel=1e-9)


def test_comparison_has_every_schedule() -> None:
    answer = compare_schedules(
        parse_comparison({k: v for k, v in SMALL.items() if k != "schedule"})
    )
    assert {row.schedule for row in answer.schedules} == set(SCHEDULES)
    times = [row.makespan_s for row in answer.schedules if row.makespan_s is not None]
    assert times == sorted(times)
    assert min(times) >= answer.ideal_s
    for row in answer.schedules:
        assert (row.makespan_s is None) == bool(row.reason)
        assert row.synchronous == (not row.staleness)
    rows = {(row.schedule, row.chunks): row for row in answer.schedules}
    # The same work in two chunks of half the time: half the fill of 1F1B.
    assert rows["1f1b", 1].makespan_s == 33
    assert rows["interleaved-1f1b", 2].makespan_s == 28.5
    assert rows["gpipe", 1].peak_in_flight == 8
    assert rows["pipedream", 1].weight_copies == 4
    assert ComparisonAnswer.model_validate_json(answer.model_dump_json()) == answer


def test_comparison_says_why_not() -> None:
    asked = {**UNIT, "stages": 5, "micro_batches": 7, "chunks": 3}
    answer = compare_schedules(parse_comparison(asked))
    rows = {(row.schedule, row.chunks): row for row in answer.schedules}
    assert "even" in rows["dualpipe", 2].reason
    assert rows["dualpipe", 2].makespan_s is None
    assert rows["looped-bfs", 3].makespan_s is not None  # the chunks asked for, too
    assert answer.ideal_s == pytest.approx(7 * 3 * 3)


def test_command_prints_the_document(ask: Any, tmp_path: Path) -> None:
    code, out, err = ask("timeline", *WORDS, "--json")
    assert (code, err) == (0, "")
    assert TimelineAnswer.model_validate_json(out) == run()
    request = tmp_path / "request.yaml"
    request.write_text("schedule: gpipe\nstages: 4\nmicro_batches: 8\nforward_s: 1\n")
    code, out, _ = ask("timeline", str(request), *WORDS[-4:], "--json")
    assert code == 0
    assert TimelineAnswer.model_validate_json(out) == run(schedule="gpipe")


@pytest.mark.slow
def test_command_draws(ask: Any, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"x.{kind}" for kind in ("svg", "html", "trace", "png")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    code, out, _ = ask("timeline", *WORDS, *options, "--theme", "dark")
    assert code == 0
    assert "bubble 27.3 %" in out
    for path in files.values():
        assert path.stat().st_size > 1000
        assert f"wrote {path}" in out.replace("\n", "")
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    code, out, err = ask("timeline", *WORDS, "--svg", str(tmp_path / "no" / "x.svg"))
    assert (code, out) == (2, "")
    assert "cannot write" in err


def test_png_without_typst(ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.presentation.drawing.rendering.find_spec", lambda name: None)
    both = ["--svg", str(tmp_path / "x.svg"), "--png", str(tmp_path / "x.png")]
    code, out, err = ask("timeline", *WORDS, *both)
    assert (code, out) == (2, "")
    assert "pip install typst" in err
    assert list(tmp_path.iterdir()) == []


def test_typst_stays_out_of_the_way(ask: Any) -> None:
    loaded = "typst" in sys.modules
    assert ask("timeline", *WORDS)[0] == 0
    assert ("typst" in sys.modules) == loaded


def test_compare_command(ask: Any) -> None:
    code, out, err = ask("compare-schedules", *WORDS[2:], "--json")
    assert (code, err) == (0, "")
    assert ComparisonAnswer.model_validate_json(out).stages == 4
    code, out, _ = ask("compare-schedules", *WORDS[2:])
    assert code == 0
    for schedule in SCHEDULES:
        assert schedule in out
    assert "asynchronous" in out
    assert ask("compare-schedules", *WORDS)[0] == 2  # there is no one schedule to compare


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--schedule: is required"),
        (["--schedule", "1f1b"], "--stages: is required"),
        ([*WORDS, "--stages", "four"], "--stages: must be an integer, got the string 'four'"),
        ([*WORDS, "--stages", "0"], "--stages: must be >= 1, got 0"),
        ([*WORDS, "--forward-s", ".nan"], "--forward-s: must be a finite number"),
        ([*WORDS, "--forward-s", "1e30"], "--forward-s: must be <= 1000000.0, got 1e+30"),
        ([*WORDS, "--forward-s", "9" * 9000], "--forward-s: is an integer far beyond"),
        ([*WORDS, "--schedule", "zbv"], "did you mean zb-v"),
        ([*WORDS, "--tp", "4"], "--tp goes with a plan, --stages"),
        ([*WORDS, "--theme", "pink"], "pink"),
        (["--model", "llama-3.1-8b"], "--cluster: is required"),
        (["absent.yaml"], "No such file"),
    ],
)
def test_bad_words(ask: Any, words: list[str], says: str) -> None:
    status, out, err = ask("timeline", *words)
    assert (status, out) == (2, "")
    assert says in err
    status, out, err = ask("timeline", *words, "--json")
    assert (status, err) == (2, "")
    assert json.loads(out)["status"] == 422


def test_options_are_the_fields_of_the_requests() -> None:
    assert set(PIPELINE) == set(TimelineRequest.model_fields) - {"schedule"}
    assert set(PIPELINE) == set(ComparisonRequest.model_fields)


def test_uneven_ranks_have_one_busiest() -> None:
    times = Times.equal(2, 1, 1.0, 1.0, 1.0)
    times.forward_s[1] = 3.0
    answer = simulate_timeline(SCHEDULES["gpipe"], 2, 1, 4, times)
    assert answer.ideal_s == 4 * 5
    assert answer.closed_form_extra_s == 3
    assert answer.makespan_s == 23
    assert np.argmax([sum(a.end_s - a.start_s for a in rank) for rank in answer.actions]) == 1
