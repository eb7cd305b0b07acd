"""`planner ranks`: places, groups, links and warnings, as a document, a screen and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cost_models.plans import ParallelPlan
from planner import cli
from planner.answers.plans.plan_answers import IllegalPlan
from planner.answers.plans.ranks import MOST_RANKS, RanksAnswer, ranks
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request

ASK = {
    "model": "llama-3.1-8b",
    "cluster": "4x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 128},
}
COMMAND = [
    "ranks", "--model", "llama-3.1-8b", "--cluster", "4x8xh100-sxm",
    "--seq-length", "2048", "--global-batch-size", "128",
]  # fmt: skip


def request(**changed: Any) -> PlanRequest:
    return parse_request({**ASK, **changed})


def answer(framework: str = "megatron", **plan: Any) -> RanksAnswer:
    return ranks(request(), ParallelPlan(**plan), framework)


def kinds(found: RanksAnswer) -> dict[str, Any]:
    return {kind.name: kind for kind in found.groups}


def test_every_group_holds_its_size_and_every_rank_is_in_one() -> None:
    found = answer(tp=2, sequence_parallel=True, cp=2, pp=2, dp=4)
    assert found.complete
    for kind in found.groups:
        members = [rank for group in kind.ranks for rank in group]
        assert sorted(members) == list(range(32))
        assert {len(group) for group in kind.ranks} == {kind.size}
        assert sum(kind.links.values()) == kind.count
    assert set(kinds(found)) == {"tp", "cp", "dp", "pp", "data x cp", "model"}
    assert found.coordinates["tp"][:4] == (0, 1, 0, 1)


def test_links_are_those_of_the_tier_that_holds_a_group() -> None:
    found = kinds(answer(tp=4, sequence_parallel=True, pp=4, dp=2))
    assert found["tp"].links == {"nvlink": 8}
    assert found["dp"].links == {"nvlink": 16}
    assert found["pp"].links == {"network": 8}
    assert found["pp"].ranks[0] == (0, 8, 16, 24)


@pytest.mark.slow
def test_an_order_that_breaks_locality_is_warned_of() -> None:
    plan = {"tp": 4, "sequence_parallel": True, "pp": 2, "dp": 4}
    assert not answer(**plan).warnings
    (warning,) = answer(**plan, rank_order="tp-cp-ep-pp-dp").warnings
    assert warning.code == "pp_inside_dp"
    (crossing,) = answer(tp=2, sequence_parallel=True, cp=8, dp=2).warnings
    assert crossing.code == "leaves_domain"
    assert crossing.text.startswith("4 of 4 cp groups of 8 leave nvlink")
    wide = ranks(request(), ParallelPlan(tp=16, sequence_parallel=True, dp=2), "torchtitan")
    assert [note.code for note in wide.warnings] == ["wider_than_domain"]


def test_what_cannot_run_has_no_places() -> None:
    with pytest.raises(IllegalPlan):
        answer(tp=3, dp=1)
    with pytest.raises(RequestError, match="no pp axis"):
        answer("accelerate", pp=4, dp=8)
    with pytest.raises(RequestError, match="did you mean megatron"):
        answer("megatrn", dp=32)
    many = request(
        cluster="100000x8xh100-sxm", training={"seq_length": 2048, "global_batch_size": 800000}
    )
    with pytest.raises(RequestError, match=f"allowed {MOST_RANKS:,}"):
        ranks(many, ParallelPlan(dp=800_000), "megatron")


def test_many_groups_are_counted_and_not_all_listed() -> None:
    wide = request(
        cluster="4096x8xh100-sxm", training={"seq_length": 2048, "global_batch_size": 32768}
    )
    found = ranks(wide, ParallelPlan(tp=2, sequence_parallel=True, dp=16384), "megatron")
    assert not found.complete
    assert kinds(found)["tp"].count == 16384
    assert len(kinds(found)["tp"].ranks) < 16384


class TestCommand:
    def test_screen(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run([*COMMAND, "--tp", "4", "--sequence-parallel", "--pp", "4"]) == 0
        shown = capsys.readouterr().out
        for words in (
            "Megatron-LM  32 ranks on 4 x 8", "tp 4, cp 1, dp 2, pp 4", "[0,8,16,24]",
            "node 0         [0 0 0 0][0 0 0 0]", "node 3         [3 3 3 3][3 3 3 3]",
        ):  # fmt: skip
            assert words in shown

    def test_equal_nodes_share_a_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run([*COMMAND, "--tp", "8", "--sequence-parallel", "--pp", "2"]) == 0
        shown = capsys.readouterr().out
        assert "nodes 0-1      [0 0 0 0 0 0 0 0]" in shown
        assert "nodes 2-3      [1 1 1 1 1 1 1 1]" in shown

    def test_document(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run([*COMMAND, "--tp", "2", "--order", "torchtitan", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert RanksAnswer.model_validate(document).framework == "torchtitan"

    def test_picture(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "ranks.svg"
        assert cli.run([*COMMAND, "--tp", "4", "--pp", "4", "--svg", str(path)]) == 0
        texts = [node.text for node in ElementTree.parse(path).iter() if node.text]
        assert {str(rank) for rank in range(32)} <= set(texts)
        assert {f"node {node}" for node in range(4)} <= set(texts)
        assert cli.run([*COMMAND, "--tp", "4", "--svg", str(tmp_path / "no" / "where.svg")]) == 2
        assert "cannot write" in capsys.readouterr().err

    @pytest.mark.parametrize("order", ["", "megatrn", "x" * 500, "\0", "../../etc/passwd"])
    def test_junk(self, order: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run([*COMMAND, "--tp", "4", "--order", order]) == 2
        assert "unknown framework" in capsys.readouterr().err
