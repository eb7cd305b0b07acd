"""The leaderboard: its page says what was measured, and the peers are asked for real."""

from __future__ import annotations

import pytest

from planner.documents.scored_runs import scored_runs
from planner.evidence.published_runs.runs import PUBLISHED_RUNS, read_runs
from planner.learning.accuracy.predict import Prediction, predict
from tests.tools.checkouts import checkout
from tools.peers import PEERS, results
from tools.peers.common import InexpressibleError, Question
from tools.peers.page import PAGE, render

COMMAND = "python -m tools.peers --write"


def _predicted(id_: str) -> Prediction:
    (run,) = (one for one in read_runs(PUBLISHED_RUNS) if one.id == id_)
    return predict(run)


def _question(id_: str) -> Question:
    one = _predicted(id_)
    assert one.case is not None
    assert one.plan is not None
    return Question(one.case, one.plan)


def test_the_page_says_what_the_results_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(results.read()), COMMAND


def test_our_figures_are_those_of_the_catalog() -> None:
    scored = {run.id: run.predicted_s for run in scored_runs()}
    for id_, run in results.read()["runs"].items():
        assert run["ours_s"] == pytest.approx(scored[id_], rel=1e-3), f"{id_}: {COMMAND}"


def test_every_scored_run_is_answered_refused_or_given_up() -> None:
    found = results.read()
    for key in PEERS:
        said = found["peers"][key]
        numbers = (*said["refused"].values(), *said["failed"].values())
        assert len(said["estimates"]) + sum(numbers) == found["scored"], key
        assert set(said["estimates"]) <= set(found["runs"])


@pytest.mark.parametrize(
    ("key", "id_", "reason"),
    [
        ("calculon", "simumax_b200-001", "an accelerator without a system file"),
        ("llm_analysis", "peft_l40s-002", "adapters or frozen weights"),
        ("simumax", "titan2412-001", "ZeRO 2 and 3"),
    ],
)
def test_what_a_peer_has_no_inputs_for_is_refused_with_the_reason(
    key: str, id_: str, reason: str
) -> None:
    with pytest.raises(InexpressibleError, match=reason):
        PEERS[key].express(_question(id_))


def test_a_run_of_megatron_in_the_words_of_each_peer() -> None:
    question = _question("korth_t5-002")
    plan = question.plan
    calculon = PEERS["calculon"].express(question)["execution"]
    assert (calculon["tensor_par"], calculon["pipeline_par"]) == (plan.tp, plan.pp)
    assert calculon["microbatch_size"] == plan.micro_batch_size
    llm_analysis = PEERS["llm_analysis"].express(question)
    assert llm_analysis["parallelism"]["pp_size"] == plan.pp
    assert llm_analysis["micro_batches"] == question.micro_batches
    simumax = PEERS["simumax"].express(question)["strategy"]
    assert simumax["interleaving_size"] == plan.vpp
    assert simumax["world_size"] == plan.accelerators


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", sorted(PEERS))
def test_a_peer_says_today_what_the_page_has_of_it(key: str) -> None:
    folder = checkout(PEERS[key].repository, PEERS[key].revision)
    kept = results.read()["peers"][key]["estimates"]
    ids = sorted(kept)[:: max(1, len(kept) // 10)]
    asked = [_predicted(id_) for id_ in ids]
    said = results.ask(key, asked, folder)
    assert not said["failed"]
    for id_, (seconds, peak_bytes) in said["estimates"].items():
        assert seconds == pytest.approx(kept[id_][0], rel=0.01), id_
        assert peak_bytes == pytest.approx(kept[id_][1], rel=0.01), id_
    assert len(said["estimates"]) == len(ids)
