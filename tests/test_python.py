"""The Python interface: dicts, keywords and typed objects, one and the same answer."""

from __future__ import annotations

import doctest

import pytest

import planner
from cost_models.catalog.models import model
from cost_models.spec import TrainingSpec
from planner import emit, estimate, plan, why
from planner.answers.mixed_clusters.answer import MixedAnswer
from planner.answers.plans.emission import NothingFits
from planner.answers.plans.plan_answers import IllegalPlan
from planner.documents.problems import RequestError
from planner.frameworks.base import Unsupported
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import SpaceTooLarge

DOCUMENT = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64},
}


@pytest.mark.slow
def test_forms_agree() -> None:
    best = plan(DOCUMENT).best
    assert best is not None
    assert plan(**DOCUMENT).best == best
    assert plan(parse_request(DOCUMENT)).best == best
    typed = TrainingSpec(seq_length=4096, global_batch_size=64)
    assert plan(DOCUMENT, model=model("llama-3.1-8b"), training=typed).best == best


@pytest.mark.exhaustive
def test_nodes_that_differ() -> None:
    """As the command line and the service answer: the ways to use them."""
    kinds = ("h100-sxm", "a100-sxm")
    groups = [{"accelerator": kind, "nodes": 1} for kind in kinds]
    answer = plan(DOCUMENT, cluster={"groups": groups}, search={"recompute": "none"})
    assert isinstance(answer, MixedAnswer)
    assert [group.nodes for group in answer.groups] == [1, 1]
    assert {option.kind for option in answer.options} >= {"part"}
    with pytest.raises(RequestError, match="groups"):
        estimate(DOCUMENT, cluster={"groups": groups}, plan={"tp": 8})


def test_one_plan() -> None:
    best = plan(DOCUMENT).best
    assert best is not None
    again = estimate(DOCUMENT, plan=best.plan)
    assert again.estimate.iteration_time_s == best.iteration_time_s
    assert why(DOCUMENT, plan=best.plan).verdict == "best"


@pytest.mark.slow
def test_files() -> None:
    made = emit(DOCUMENT, launcher="slurm")
    assert (made.framework, made.main) == ("megatron", "job.sbatch")
    found = plan(DOCUMENT)
    assert found.launch is not None
    recommended = found.picks[1].plan.plan
    other = emit(DOCUMENT, plan=recommended, search={"framework": found.launch.framework})
    own = other.files["launch.sh"].splitlines()
    said = [line for line in made.files["launch.sh"].splitlines() if line not in own]
    assert [line for line in made.files["launch.sh"].splitlines() if line not in said] == own
    assert said
    assert all(line.startswith("# ") for line in said)
    with pytest.raises(NothingFits):
        emit(DOCUMENT, model="llama-3.1-405b")
    with pytest.raises(Unsupported, match="1F1B"):
        emit(DOCUMENT, plan={"pp": 2, "schedule": "zb-h1"})


def test_errors() -> None:
    with pytest.raises(RequestError, match="/plan: is required"):
        estimate(DOCUMENT)
    with pytest.raises(RequestError, match="/model"):
        plan(DOCUMENT, model=object())
    for nonsense in (5, 0, "x", "", [], [1], {1: 2}, object()):
        for ask in (plan, estimate, why, emit):
            with pytest.raises(RequestError):
                ask(nonsense)  # type: ignore[operator]
    with pytest.raises(SpaceTooLarge):
        plan(DOCUMENT, search={name: list(range(1, 257)) for name in ("tp", "cp", "pp")})
    with pytest.raises(IllegalPlan):
        estimate(DOCUMENT, plan={"tp": 3})


@pytest.mark.slow
def test_examples_of_the_docstring() -> None:
    assert doctest.testmod(planner).failed == 0
