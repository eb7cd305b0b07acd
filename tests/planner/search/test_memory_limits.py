"""A search that keeps to a largest chance of running out of memory, and what it then says."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cost_models.plans import ParallelPlan, Plans
from planner.answers.mixed_clusters.pipeline import Groups
from planner.answers.plans.competition import prepared
from planner.answers.plans.plan_answers import find, why
from planner.documents.answer import WhyAnswer
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.memory_risk import peaks, room
from planner.evidence.uncertainty.site_storage import room_of
from planner.inputs.requests.parser import parse_request
from planner.presentation.terminal.plan_rows import asked_of
from planner.presentation.terminal.screens import why_screen
from planner.search.exhaustive import cost_model, search
from planner.search.outcome import Outcome
from tests.fixtures.small_requests import with_memory
from tests.planner.answers.mixed_clusters.test_mixed_clusters import SMALL
from tests.planner.answers.mixed_clusters.test_mixed_clusters import request as parse_mixed

ASKED: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64},
}
NARROW = {"cp": 1, "schedule": ["1f1b"], "memory_risk": 1.0}


def asked(**fields: Any) -> PlanRequest:
    return parse_request({**ASKED, "search": {**NARROW, **fields}})


def searched(request: PlanRequest) -> Outcome:
    return search(*prepared(request), top_k=8)


def capacity(request: PlanRequest) -> float:
    return request.cluster.groups[0].accelerator.memory_bytes


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.2])
def test_the_search_is_that_of_a_smaller_memory(risk: float) -> None:
    request = asked(memory_risk=risk)
    most = peaks().most_bytes("megatron", capacity(request), risk)
    careful, smaller = searched(request), searched(with_memory(asked(), most))
    assert careful.best == smaller.best
    assert careful.counts == smaller.counts
    found = cost_model(request).evaluate(Plans.from_rows(careful.best)).needed_bytes
    for needed in found:
        assert peaks().chance("megatron", float(needed), capacity(request)) <= risk * (1 + 1e-9)


def test_a_chance_that_is_always_kept_changes_nothing() -> None:
    careless = searched(asked(memory_risk=1.0))
    assert careless.best == searched(asked(memory_risk=0.6)).best
    assert careless.best != searched(asked(memory_risk=0.01)).best


def test_few_per_cent_are_risked_by_default() -> None:
    assert parse_request(ASKED).search.memory_risk == 0.05
    usual = parse_request({**ASKED, "search": {"cp": 1, "schedule": ["1f1b"]}})
    assert searched(usual).best == searched(asked(memory_risk="5%")).best


def test_room_is_never_more_than_there_is() -> None:
    risks = [0.001, 0.01, 0.05, 0.2, 0.45, 1.0]
    rooms = np.array([room(80e9, risk).bytes_by_runtime for risk in risks])
    assert np.all(np.diff(rooms, axis=0) >= 0)
    assert np.all(rooms[:-2] < 80e9)
    assert np.all(rooms[-1] == 80e9)


def test_each_runtime_has_its_own_room() -> None:
    plans = searched(asked(runtime=["megatron", "jax"], memory_risk=0.05)).best
    allowed = room_of(asked(memory_risk=0.05))
    rows = Plans.from_rows([plans[0], plans[0].model_copy(update={"runtime": "jax"})])
    of_both = allowed.of(rows)
    assert of_both[1] == allowed.of_plan(rows.row(1)) < of_both[0]


@pytest.mark.parametrize(("given", "risk"), [("5%", 0.05), (" 2.5 %", 0.025), (0.1, 0.1)])
def test_a_risk_is_a_share_or_per_cent(given: Any, risk: float) -> None:
    assert asked(memory_risk=given).search.memory_risk == pytest.approx(risk)


@pytest.mark.parametrize("given", [0, "0%", "200%", 2, -0.1, "some", "%", "nan", "x%"])
def test_what_is_no_risk_is_refused(given: Any) -> None:
    with pytest.raises(RequestError) as refused:
        asked(memory_risk=given)
    assert [one.pointer for one in refused.value.problems] == ["/search/memory_risk"]


@pytest.fixture(scope="module")
def turned_away() -> WhyAnswer:
    """Of the fullest plan that fits, where hardly any risk is taken."""
    best = searched(asked()).best
    needed = cost_model(asked()).evaluate(Plans.from_rows(best)).needed_bytes
    fullest = best[int(np.argmax(needed))]
    assert why(asked(), fullest).verdict in ("best", "slower")
    return why(asked(memory_risk="1%"), fullest)


@pytest.mark.slow
def test_why_says_that_the_risk_is_too_large(turned_away: WhyAnswer) -> None:
    assert turned_away.verdict == "may run out"
    assert turned_away.estimate is not None
    assert turned_away.estimate.fits
    (reason,) = turned_away.reasons
    assert reason.code == "memory_risk"
    chance = turned_away.estimate.memory.chance_of_running_out
    assert reason.numbers["chance"] == chance > 0.01
    assert "more than 1 %: from " in reason.text
    assert turned_away.smallest_change is not None
    rows = Plans.from_rows([turned_away.smallest_change.plan])
    needed = cost_model(asked()).needed_bytes(rows)[0]
    assert needed <= room_of(asked(memory_risk=0.01)).of(rows)[0] < capacity(asked())


@pytest.mark.slow
def test_what_fits_by_bytes_alone_misses_by_what_the_risk_takes() -> None:
    """The nearest miss is over the room that the risk leaves, not over the memory."""
    least = searched(asked(objective="memory_headroom", recompute="none", tp=8)).best[0]
    peak = float(cost_model(asked()).evaluate(Plans.from_rows([least])).needed_bytes[0])
    held = {"offload_optimizer": False, "framework": "megatron"}
    limits = {"recompute": "none", "tp": 8, "memory_risk": 0.02, **held}
    answer = find(with_memory(asked(**limits), 1.02 * peak))
    assert answer.best is None
    (miss,) = answer.nearest
    most = peaks().most_bytes("megatron", 1.02 * peak, 0.02)
    assert miss.over_by_bytes == pytest.approx(peak - most)
    assert miss.over_by_bytes is not None
    assert miss.over_by_bytes > 0
    assert find(with_memory(asked(recompute="none", tp=8), 1.02 * peak)).best is not None


def test_stages_of_a_mixed_cluster_keep_to_it() -> None:
    request = parse_mixed(SMALL)
    plan, owner = ParallelPlan(pp=4, stage_layers=(3, 3, 2, 2)), (0, 0, 1, 1)
    fullest = Groups(request.model, request.cluster, request.training).evaluate(plan, owner)
    groups = tuple(
        group.model_copy(
            update={
                "accelerator": group.accelerator.model_copy(
                    update={"memory_bytes": fullest.stage_bytes.max() / 0.95}
                )
            }
        )
        for group in request.cluster.groups
    )
    cluster = request.cluster.model_copy(update={"groups": groups})
    for risk, fits in ((1.0, True), (0.001, False), (0.4, True)):
        found = Groups(request.model, cluster, request.training, risk).evaluate(plan, owner)
        assert found.fits is fits


@pytest.mark.slow
def test_the_screen_says_why_it_is_turned_away(turned_away: WhyAnswer) -> None:
    console = Console(width=100, file=io.StringIO())
    with console.capture() as shown:
        console.print(why_screen(turned_away, asked_of(asked(memory_risk="1%")), console))
    text = " ".join(shown.get().split())
    assert "This plan may run out of memory" in text
    assert "more than 1 %" in text
