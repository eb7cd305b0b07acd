"""A plan checked on one node of its cluster: the script, a real run of it, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_request
from planner.questions.examples import examples
from planner.running.validate.one_node import NAME, OneNode, judged, one_node

LARGE: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "cluster": "16x8xh100-sxm",
    "training": {"seq_length": 8192, "global_batch_size": 1024},
    "plan": {"tp": 4, "pp": 4, "cp": 2, "vpp": 5, "sequence_parallel": True},
}
TINY: dict[str, Any] = {
    "model": {
        "name": "tiny", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "ffn_hidden_size": 256, "vocab_size": 512,
    },
    "cluster": "local",
    "training": {"seq_length": 64, "global_batch_size": 4, "precision": "fp32"},
    "plan": {"tp": 1, "pp": 1, "zero_stage": 1},
}  # fmt: skip


def made(document: dict[str, Any]) -> OneNode:
    return one_node(parse_request(document, need_plan=True))


@pytest.fixture(scope="module")
def large() -> OneNode:
    return made(LARGE)


def test_it_is_one_node_of_the_cluster_with_the_width_of_the_model(large: OneNode) -> None:
    """What the plan splits stays split, in two; only layers, batch and replicas are fewer."""
    (group,) = large.request["cluster"]["groups"]
    assert (group["nodes"], group["accelerators_per_node"]) == (1, 8)
    assert group["accelerator"]["id"] == "h100-sxm-80gb"
    plan, model = large.request["plan"], large.request["model"]
    assert (plan["tp"], plan["cp"], plan["pp"], plan["dp"]) == (2, 2, 2, 1)
    assert (model["hidden_size"], model["ffn_hidden_size"]) == (8192, 28672)
    assert model["num_layers"] < 80
    assert large.fits
    assert {change.field for change in large.changes} >= {"plan/tp", "plan/dp", "model/num_layers"}
    assert len(large.results) == 8


def test_the_script_is_whole_and_is_bash(large: OneNode) -> None:
    assert subprocess.run(["bash", "-n"], input=large.text, text=True, check=False).returncode == 0
    for words in ("planner-run", "--nproc-per-node 8", "planner.running.validate.ranks.worker"):
        assert words in large.text


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([], "8 ranks were to run; rank-0.json, rank-1.json"),
        ([{"rank": 0}], "file 1 is no rank-N.json of the script"),
        ("nothing", "a list of what ranks left"),
    ],
)
def test_what_did_not_come_back_is_said(ranks: Any, said: str) -> None:
    with pytest.raises(RequestError) as error:
        judged({"request": LARGE, "ranks": ranks})
    assert said in error.value.problems[0].detail


@pytest.mark.parametrize("left_out", ["losses", "step_s"])
def test_a_rank_that_took_no_step_left_no_result(left_out: str) -> None:
    example = deepcopy(examples("result")["short"]["value"])
    example["ranks"][0][left_out] = []
    with pytest.raises(RequestError) as error:
        judged(example)
    assert "is no rank-N.json" in error.value.problems[0].detail


@pytest.mark.exhaustive
def test_what_its_ranks_leave_is_judged(tmp_path: Path) -> None:
    script = made(TINY)
    (tmp_path / NAME).write_text(script.text)
    subprocess.run(
        ["bash", NAME], cwd=tmp_path, check=True, capture_output=True, timeout=1800,
        env=os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    ranks = [json.loads((tmp_path / name).read_text()) for name in script.results]
    report = judged({"request": TINY, "ranks": ranks})
    terms = {term.name: term for term in report.memory_terms}
    for name in ("parameter", "gradient"):
        assert terms[name].measured == terms[name].predicted > 0
    assert report.measured_iteration_time_s.n == 10
    assert report.request == script.request
