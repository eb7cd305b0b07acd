"""verl's Megatron actor: overrides that are written say the plan; what none says is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.answers.lint.lint import lint
from planner.documents.request import PlanRequest
from planner.frameworks.megatron.rules import RULES as CORE
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.verl import CASES, LOSS
from tests.fixtures.launches import TP2, joining, launch, run_script, unreached, written

Case = tuple[PlanRequest, ParallelPlan]
VERL, MEGATRON = frameworks.get("verl"), frameworks.get("megatron")


def same(case: Case) -> None:
    request, plan = case
    assert VERL.read is not None
    reading = VERL.read(VERL.write(request, plan).files, None)
    assert canonical(reading.plan, reading.model) == canonical(plan, request.model)
    left = {"name": "", "numerics": request.model.numerics}
    assert reading.model.model_copy(update=left) == request.model.model_copy(update=left)
    said = request.training.model_copy(update={"tokens": reading.training.tokens})
    assert reading.training == said
    assert (reading.refusals, reading.unknown, reading.framework) == ((), (), "verl")
    group = request.cluster.groups[0]
    assert (reading.nodes, reading.accelerators_per_node) == (
        group.nodes,
        group.accelerators_per_node,
    )


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(case: str) -> None:
    same(CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize("few", [24, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_hundred_drawn_plans_read_back(few: int) -> None:
    legal = legal_cases("verl", 1500 // few)
    assert len(legal) >= 100 // few
    for case in legal:
        same(case)


def test_the_first_node_submits_and_the_others_join(tmp_path: Path) -> None:
    made = VERL.write(*CASES["llama-uneven"])
    written(tmp_path, made)
    answered = joining(tmp_path, [0, 8, 16])
    head, submit = run_script(
        tmp_path, made.main, ("ray",), {"NODE_RANK": "0", "MASTER_ADDR": "node-0", "MODEL": "here"}
    )
    assert answered.read_text() == "0\n8\n16\n"
    assert head[:3] == ["ray", "start", "--head"]
    assert submit[:3] == ["ray", "job", "submit"]
    call = submit[submit.index("--") + 1 :]
    assert call[:3] == ["python3", "-m", "verl.trainer.main_ppo"]
    assert "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=4" in call
    assert {"trainer.nnodes=2", "trainer.n_gpus_per_node=8"} < set(call)
    (joined,) = run_script(
        tmp_path, made.main, ("ray",), {"NODE_RANK": "1", "MASTER_ADDR": "node-0", "MODEL": "here"}
    )
    assert joined[:4] == ["ray", "start", "--address", "node-0:6379"]


def test_keys_that_the_configuration_lacks_are_added() -> None:
    """Hydra's struct mode stops at a key that it does not know, unless told to add it."""
    text = VERL.write(*CASES["llama-recompute"]).files["launch.sh"]
    overrides = [line.strip().split("=")[0].strip("'") for line in text.splitlines() if "=" in line]
    for name in (one for one in overrides if "actor_rollout_ref" in one):
        assert name.startswith("++") == (".override_" in name)


def test_lint_takes_it_for_its_own() -> None:
    answer = lint(dict(VERL.write(*CASES["llama-uneven"]).files), parse_cluster("2x8xh100-sxm"))
    assert answer.framework == VERL.title
    assert [one for one in answer.findings if one.severity == "error"] == []


REFUSED = (
    ("no layer-wise optimizer", launch(training={"optimizer": "muon"}, **LOSS)),
    ("ZeRO 0 or 1, not 3", launch(zero_stage=3, **LOSS)),
    ("rank_order is tp-cp-ep-dp-pp", launch(rank_order="tp-cp-ep-pp-dp", pp=2, **LOSS)),
    ("log-probabilities of fp32 logits", launch(cross_entropy="fused")),
    ("overlap_tp is false", launch(overlap_tp=True, **LOSS, **TP2)),
    ("always by p2p", launch(cp=2, cp_kind="all_gather", **LOSS)),
    ("offload_activations is false", launch(offload_activations=True, **LOSS)),
    ("allgather dispatcher", launch("mixtral", ep=4, moe_dispatcher="allgather", **LOSS)),
    ("trains in bf16 or fp16", launch(training={"precision": "fp8"}, **LOSS)),
    ("for learned position embeddings", launch("gpt", **LOSS)),
)


@pytest.mark.parametrize(("text", "case"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refusals(text: str, case: Case) -> None:
    assert any(text in reason.text for reason in VERL.reasons(*case))
    assert not any(text in reason.text for reason in MEGATRON.reasons(*case))


def test_every_own_rule_is_reached_by_a_refusal() -> None:
    shared = {*CORE, *MEGATRON.rules}
    own = {one for one in unreached(VERL, [case for _, case in REFUSED]) if one not in shared}
    assert not own & set(VERL.rules[-10:])


def test_it_does_not_compete_where_nobody_names_it() -> None:
    assert not VERL.competes
