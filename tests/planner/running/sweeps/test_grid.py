"""Grids: which requests they make, and what is wrong with them, at its place."""

from __future__ import annotations

from typing import Any

import pytest

from planner.documents.problems import RequestError, join
from planner.inputs.requests.parser import parse_request
from planner.running.sweeps.grid import MAX_QUESTIONS, parse_grid
from tests.fixtures.call_bound import bounded_work

TRAINING = {"seq_length": 4096, "global_batch_size": 64}
BASE = {"model": "llama-3.1-8b", "cluster": "1x8xh100-sxm", "training": TRAINING}


def grid(axes: Any = None, points: Any = None, base: Any = BASE) -> dict[str, Any]:
    parts = {"base": base, "axes": axes, "points": points}
    return {name: part for name, part in parts.items() if part is not None}


def test_all_combinations_in_order() -> None:
    points = [{"model": "llama-3.1-8b"}, {"model": "llama-3.1-70b", "training.seq_length": 8192}]
    axes = {"cluster.nodes": [1, 2], "/training/global_batch_size": [64, 128]}
    base = {"cluster": "h100-sxm", "training": {"seq_length": 4096}}
    parsed = parse_grid(grid(axes, points, base))
    names = ("model", "training.seq_length", "cluster.nodes", "training.global_batch_size")
    assert parsed.inputs == names
    questions = list(parsed.questions())
    assert len(questions) == parsed.count == 8
    assert [tuple(one.inputs.values()) for one in questions] == [
        (*point, nodes, batch)
        for point in (("llama-3.1-8b", None), ("llama-3.1-70b", 8192))
        for nodes in (1, 2)
        for batch in (64, 128)
    ]
    assert questions[-1].document == {
        "model": "llama-3.1-70b",
        "cluster": {"preset": "h100-sxm", "nodes": 2},
        "training": {"seq_length": 8192, "global_batch_size": 128},
    }
    assert base == {"cluster": "h100-sxm", "training": {"seq_length": 4096}}
    assert len({one.key for one in questions}) == 8


def test_a_whole_part_lies_under_its_fields() -> None:
    axes = {"cluster.nodes": [4], "cluster": ["h100-sxm", "a100-sxm-80gb"]}
    clusters = [one.document["cluster"] for one in parse_grid(grid(axes)).questions()]
    assert clusters == [{"preset": name, "nodes": 4} for name in ("h100-sxm", "a100-sxm-80gb")]


def test_a_field_deep_inside_the_request() -> None:
    groups = [{"accelerator": "h100-sxm-80gb", "nodes": 1}]
    base = BASE | {"cluster": {"groups": groups}}
    axes = {"/cluster/groups/0/nodes": [1, 3], "search.limits.tp.max": [2]}
    one, other = parse_grid(grid(axes, base=base)).questions()
    assert parse_request(other.document).cluster.groups[0].nodes == 3
    assert one.document["search"] == {"limits": {"tp": {"max": 2}}}


def test_equal_requests_have_one_key_however_they_are_written() -> None:
    (one,) = parse_grid(grid({"training.global_batch_size": [64]})).questions()
    points = [{"/training": {"global_batch_size": 64, "seq_length": 4096}}]
    (other,) = parse_grid(grid(points=points)).questions()
    assert one.key == other.key


def test_a_model_in_a_file_keeps_its_name_as_input() -> None:
    def model_at(name: str) -> Any:
        return parse_request(BASE).model.model_dump(mode="json") if name == "m.json" else name

    parsed = parse_grid(grid({"model": ["m.json", "llama-3.1-70b"]}), model_at)
    one, other = parsed.questions()
    assert (one.inputs, other.inputs) == ({"model": "m.json"}, {"model": "llama-3.1-70b"})
    assert one.document["model"]["name"] == parse_request(BASE).model.name


BATCH = "training.global_batch_size"
ENDLESS = "training" + ".x" * 5000
DIGITS = "cluster.groups." + "9" * 5000
BAD: list[tuple[str, Any, str]] = [
    ("no object", [], ""),
    ("unknown part", {"axis": {}}, "/axis"),
    ("nothing varies", grid(), "/axes"),
    ("nothing varies either", grid({}), "/axes"),
    ("base is a list", grid({BATCH: [1]}, base=[]), "/base"),
    ("axes are a list", grid([BATCH]), "/axes"),
    ("no list", grid({BATCH: 64}), f"/axes/{BATCH}"),
    ("empty list", grid({BATCH: []}), f"/axes/{BATCH}"),
    ("no points", {"base": BASE, "points": None}, "/points"),
    ("points are an object", grid(points={BATCH: [1]}), "/points"),
    ("a point is a number", grid(points=[{}, 5]), "/points/1"),
    ("unknown first name", grid({"global_batch_size": [64]}), "/axes/global_batch_size"),
    ("unknown in a point", grid(points=[{BATCH: 1}, {"modle": "x"}]), "/points/1/modle"),
    ("unknown field", grid({"training.batch": [64]}), "/axes/training.batch/0"),
    ("without a name", grid({"": [64]}), "/axes/"),
    ("endless name", grid({ENDLESS: [1]}), join("/axes", ENDLESS)),
    ("the second value", grid({BATCH: [64, 0]}), f"/axes/{BATCH}/1"),
    ("a pointer's value", grid({"/training/seq_length": ["x"]}), "/axes/~1training~1seq_length/0"),
    ("inside a value", grid({"training": [TRAINING | {"tokens": -1}]}), "/axes/training/0/tokens"),
    ("a point's value", grid(points=[{BATCH: 64}, {BATCH: 0}]), f"/points/1/{BATCH}"),
    ("unknown model", grid({"model": ["llama-3.1-8b", "lama-3.1-8b"]}), "/axes/model/1"),
    ("base's field", grid({BATCH: [1]}, base={"training": {"seq": 1}}), "/base/training/seq"),
    ("base lacks", grid({BATCH: [64]}, base={"model": "llama-3.1-8b"}), "/base/cluster"),
    ("base's cluster", grid({"cluster.nodes": [1]}, base={"cluster": "h1"}), "/base/cluster"),
    ("an axis' cluster", grid({"cluster": ["h1"], "cluster.nodes": [1]}), "/axes/cluster/0"),
    ("field of a name", grid({"model.num_layers": [8]}), "/axes/model.num_layers/0"),
    ("field of a number", grid({"training.tokens.x": [8]}, base={"training": {"tokens": 5}}),
     "/axes/training.tokens.x/0"),
    ("beyond a list", grid({"cluster.groups.1.nodes": [8]}, base={"cluster": {"groups": [{}]}}),
     "/axes/cluster.groups.1.nodes/0"),
    ("digits", grid({DIGITS: [8]}, base={"cluster": {"groups": []}}), join("/axes", DIGITS) + "/0"),
    ("twice", grid({BATCH: [64], "/training/global_batch_size": [1]}),
     "/axes/~1training~1global_batch_size/0"),
    ("in a point too", grid({BATCH: [64]}, [{BATCH: 64}]), f"/axes/{BATCH}/0"),
    ("twice in a point", grid(points=[{BATCH: 1, "/training/global_batch_size": 1}]), "/points/0"),
    ("too many", grid({f"search.limits.{n}.max": [*range(1, 400)] for n in ("tp", "pp")}), "/axes"),
    ("far too many", grid({f"plan.x{i}": [1, 2] for i in range(5000)}), "/axes"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "pointer"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_grid(document: Any, pointer: str) -> None:
    with bounded_work(), pytest.raises(RequestError) as raised:
        parse_grid(document)
    found = [problem.pointer for problem in raised.value.problems]
    assert pointer in found


def test_near_names() -> None:
    def meant(name: str) -> tuple[str, ...]:
        with pytest.raises(RequestError) as raised:
            parse_grid(grid({name: [1]}))
        return raised.value.problems[0].did_you_mean

    assert meant("global_batch_size") == ("training.global_batch_size",)
    assert meant("nodes") == ("cluster.nodes",)
    assert meant("tp") == ("search.tp", "plan.tp")
    assert "training.seq_length" in meant("traning.seq_length")
    assert meant("training.global_batch") == ("global_batch_size",)


def test_every_bad_value_is_told() -> None:
    axes = {BATCH: [64, 0, -1], "model": ["llama-3.1-8b", "lama"]}
    with pytest.raises(RequestError) as raised:
        parse_grid(grid(axes))
    found = {problem.pointer for problem in raised.value.problems}
    assert found == {f"/axes/{BATCH}/1", f"/axes/{BATCH}/2", "/axes/model/1"}


def test_the_most_questions() -> None:
    limits = {f"search.limits.{name}.max": [*range(1, 318)] for name in ("tp", "pp")}
    assert 317 * 317 > MAX_QUESTIONS >= 316 * 316
    with pytest.raises(RequestError, match="at most 100,000 questions, got 100489"):
        parse_grid(grid(limits))


def test_values_that_only_contradict_others_are_no_problem_of_the_grid() -> None:
    axes = {"cluster": ["1x8xa100-sxm-80gb", "1x8xh100-sxm"], "training.precision": ["fp8", "bf16"]}
    assert parse_grid(grid(axes)).count == 4
