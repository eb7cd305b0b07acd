"""The order of the ranks: what the search finds is what trying every plan finds, and it is said."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from cost_models.plans import VOCABULARIES, ParallelPlan, Plans
from planner import cli, plan
from planner.answers.plans.plan_answers import illegal
from planner.answers.plans.ranks import ranks
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import cost_model

# Two nodes with one NIC of 200 Gb/s each: many micro-batches pay more for stages apart than a step
# does for replicas apart; with few it is the other way round.
LIMITS: dict[str, Any] = {
    "pp": {"min": 4}, "cp": 1, "zero_stage": 1, "schedule": "1f1b", "recompute": "none",
    "micro_batch_size": [1, 2], "first_stage_layers": 0,
    "last_stage_layers": 0, "sequence_parallel": False, "overlap_tp": False,
}  # fmt: skip


def ask(batch: int, **search: Any) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b",
        "cluster": {"preset": "hgx-a100-1x200g", "nodes": 2},
        "training": {"seq_length": 2048, "global_batch_size": batch},
        "search": {**LIMITS, **search},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "inside"), [(1024, "pp"), (16, "dp")])
def test_the_search_finds_what_trying_all_finds(batch: int, inside: str) -> None:
    request = parse_request(ask(batch))
    model = cost_model(request)
    rows = [
        ParallelPlan(tp=tp, pp=pp, dp=16 // tp // pp, micro_batch_size=size, rank_order=order)
        for tp, pp, size, order in product(
            (1, 2, 4, 8, 16), (4, 8, 16), (1, 2), VOCABULARIES["rank_order"]
        )
        if tp * pp <= 16
    ]
    rows = [row for row in rows if not illegal(request, row)]
    found = model.evaluate(Plans.from_rows(rows))
    fits = found.peak_bytes <= request.cluster.groups[0].accelerator.memory_bytes
    fastest = min(float(t) for t, fit in zip(found.iteration_time_s, fits, strict=True) if fit)
    best = plan(ask(batch, open=["rank_order"])).best
    assert best is not None
    assert best.iteration_time_s == pytest.approx(fastest, rel=1e-12)
    assert best.plan.rank_order == f"tp-cp-ep-{'pp-dp' if inside == 'pp' else 'dp-pp'}"


@pytest.mark.slow
def test_the_answer_names_a_faster_order_that_was_not_searched() -> None:
    answer = plan(ask(1024))
    assert answer.best is not None
    assert answer.best.plan.rank_order == "tp-cp-ep-dp-pp"
    faster, own = answer.rank_orders
    assert faster.rank_order == "tp-cp-ep-pp-dp"
    assert faster.slower_by == 0
    assert own.iteration_time_s == pytest.approx(answer.best.iteration_time_s)
    assert own.slower_by == pytest.approx(own.iteration_time_s / faster.iteration_time_s - 1)
    assert "megatron" in faster.frameworks
    assert "torchtitan" not in faster.frameworks
    opened = plan(ask(1024, open=["rank_order"])).best
    assert opened is not None
    assert opened.iteration_time_s == pytest.approx(faster.iteration_time_s)


def test_ranks_says_each_order_and_what_it_puts_on_the_links() -> None:
    row = ParallelPlan(pp=2, dp=8)
    request = parse_request({**ask(1024), "plan": row.model_dump()})
    usual = ranks(request, row, "megatron")
    other = ranks(request, row.model_copy(update={"rank_order": "tp-cp-ep-pp-dp"}), "megatron")
    assert usual.rank_orders == other.rank_orders
    times = {order.rank_order: order.iteration_time_s for order in usual.rank_orders}
    assert usual.traffic.iteration_time_s == times["tp-cp-ep-dp-pp"]
    assert other.traffic.iteration_time_s == times["tp-cp-ep-pp-dp"]
    # The usual order has each stage on a node of its own: only messages leave it.
    sent = {g.name: {link.tier for link in g.links} for g in usual.traffic.groups}
    assert sent == {"shard": {"nvlink"}, "pp": {"network"}}
    sent = {g.name: {link.tier for link in g.links} for g in other.traffic.groups}
    assert sent == {"shard": {"nvlink", "network"}, "pp": {"nvlink"}}
    lone = ParallelPlan(pp=1, dp=16, zero_stage=3)
    assert ranks(request, lone, "megatron").rank_orders == ()


@pytest.mark.slow
def test_screens(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama-3.1-8b", "--cluster", "hgx-a100-1x200g", "--nodes", "2"]
    words += ["--seq-length", "2048", "--global-batch-size", "1024", "--pp", "4"]
    assert cli.run(["ranks", *words]) == 0
    shown = capsys.readouterr().out
    assert "Traffic of one iteration" in shown
    assert "busiest link" in shown
    assert "--rank-order tp-cp-ep-pp-dp has it" in shown
    assert cli.run(["plan", *words, "--schedule", "1f1b", "--zero-stage", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Ranks in the order tp-cp-ep-pp-dp: 3." in shown
    assert "--open rank_order searches both" in shown
