"""slime's launches: what is written is Megatron-LM's own, reads back, and is started under Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.answers.lint.lint import lint
from planner.documents.request import PlanRequest
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.read_results import Unreadable
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.slime import CASES
from tests.fixtures.launches import launch, run_script, unreached, written

Case = tuple[PlanRequest, ParallelPlan]
SLIME, MEGATRON = frameworks.get("slime"), frameworks.get("megatron")


def same(case: Case) -> None:
    request, plan = case
    assert SLIME.read is not None
    reading = SLIME.read(SLIME.write(request, plan).files, None)
    assert canonical(reading.plan, reading.model) == canonical(plan, request.model)
    left = {"name": "", "numerics": request.model.numerics}
    assert reading.model.model_copy(update=left) == request.model.model_copy(update=left)
    said = request.training.model_copy(update={"tokens": reading.training.tokens})
    assert reading.training == said
    assert (reading.refusals, reading.unknown, reading.framework) == ((), (), "slime")
    group = request.cluster.groups[0]
    assert (reading.nodes, reading.accelerators_per_node) == (
        group.nodes,
        group.accelerators_per_node,
    )


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(case: str) -> None:
    same(CASES[case])


@pytest.mark.exhaustive
def test_drawn_plans_read_back() -> None:
    legal = legal_cases("slime", 600)
    assert len(legal) > 8
    for case in legal:
        same(case)


def test_a_run_that_only_generates_trains_nothing() -> None:
    files = SLIME.write(*CASES["llama-uneven"]).files
    assert SLIME.read is not None
    told = SLIME.read(files, None).assumed
    assert any(note.startswith("only the policy's training is costed") for note in told)
    at = "--num-rollout 20"
    assert at in files["launch.sh"]
    only = {**files, "launch.sh": files["launch.sh"].replace(at, f"{at} --debug-rollout-only")}
    with pytest.raises(Unreadable, match="--debug-rollout-only: it generates, and trains nothing"):
        SLIME.read(only, None)


def test_the_first_node_submits_and_the_others_join(tmp_path: Path) -> None:
    made = SLIME.write(*CASES["llama-uneven"])
    written(tmp_path, made)
    head, submit = run_script(tmp_path, made.main)
    assert head[:3] == ["ray", "start", "--head"]
    assert submit[:3] == ["ray", "job", "submit"]
    place = submit.index("--")
    assert submit[place + 1 :][:2] == ["python3", "./train_async.py"]
    assert "--actor-num-nodes" in submit[place:]
    (joined,) = run_script(
        tmp_path, made.main, variables={"NODE_RANK": "1", "MASTER_ADDR": "node-0"}
    )
    assert joined[:4] == ["ray", "start", "--address", "node-0:6379"]


def test_it_is_judged_by_its_own_rules() -> None:
    answer = lint(dict(SLIME.write(*CASES["llama-uneven"]).files), parse_cluster("2x8xh100-sxm"))
    assert answer.framework == SLIME.title
    assert [one for one in answer.findings if one.severity == "error"] == []


REFUSED = (
    ("zero_stage is 1, not 3", launch(zero_stage=3)),
    ("replaces the allgather", launch("mixtral", ep=4, moe_dispatcher="allgather")),
    ("for learned position embeddings", launch("gpt")),
)


@pytest.mark.parametrize(("text", "case"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refusals(text: str, case: Case) -> None:
    assert any(text in reason.text for reason in SLIME.reasons(*case))
    assert not any(text in reason.text for reason in MEGATRON.reasons(*case))


def test_every_own_rule_is_reached_by_a_refusal() -> None:
    shared = {*CORE, *MEGATRON.rules}
    own = {one for one in unreached(SLIME, [case for _, case in REFUSED]) if one not in shared}
    assert {rule.code for rule in own} <= {"framework_unsupported"}
    assert not own & set(SLIME.rules[-3:])


def test_it_does_not_compete_where_nobody_names_it() -> None:
    assert not SLIME.competes
