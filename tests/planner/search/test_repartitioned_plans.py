"""Searches that assign layers to stages: models whose layers differ, or do not divide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from cost_models.blocks.attention import Attention
from cost_models.blocks.mlp import MLP
from cost_models.catalog.hardware import node_group
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ClusterSpec, EncoderSpec, ModelSpec, MoESpec, TrainingSpec
from cost_models.stage_layers import forward_layers
from planner import frameworks
from planner.answers.plans.competition import prepared
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.evidence.uncertainty.memory_risk import room
from planner.search import repartitioned_plans as module
from planner.search.exhaustive import cost_model, search
from planner.search.repartitioned_plans import ShortList, repartitioned_plans
from tests.fixtures.small_requests import requests, with_usual_splits
from tests.fixtures.tiers import examples
from tests.planner.search.test_exhaustive import value_of

WIDE = ModelSpec(
    num_layers=32, hidden_size=4096, num_attention_heads=32, num_query_groups=8,
    ffn_hidden_size=14336, vocab_size=32000, gated_mlp=True,
)  # fmt: skip
# At this length a layer that sees everything takes several times one with a window.
LONG = {"seq_length": 65536, "global_batch_size": 64}


def asked(model: ModelSpec, training: dict[str, Any], **limits: Any) -> PlanRequest:
    """A search on 64 accelerators with some fields fixed."""
    cluster = ClusterSpec(groups=(node_group("h100-sxm-80gb", 8),))
    framework = limits.pop("framework", None)
    bounds = {name: Bounds(values=(value,)) for name, value in limits.items()}
    return PlanRequest(
        model=model,
        cluster=cluster,
        training=TrainingSpec(**training),
        search=SearchSpec(limits=bounds, framework=framework),
    )


def best(request: PlanRequest) -> tuple[ParallelPlan, float]:
    """The best plan and its seconds."""
    plan = search(*prepared(request), top_k=1).best[0]
    return plan, float(cost_model(request).evaluate(Plans.of(plan)).iteration_time_s[0])


@pytest.mark.slow
def test_a_large_encoder_gets_a_stage_of_its_own() -> None:
    encoder = EncoderSpec(
        num_layers=40, hidden_size=4096, num_attention_heads=32, ffn_hidden_size=14336,
        gated_mlp=True, bidirectional=True, norm="rmsnorm", tokens=2048, input_width=588,
        projector=({"inputs": 4096, "outputs": 4096},),
    )  # fmt: skip
    model = WIDE.model_copy(update={"encoders": (encoder,)})
    training = {"seq_length": 4096, "global_batch_size": 64}
    for framework in (None, "pytorch"):
        fields = {"tp": 8, "pp": 4, "cp": 1, "schedule": "1f1b", "micro_batch_size": 1}
        plan, _ = best(asked(model, training, framework=framework, **fields))
        assert forward_layers(32, plan)[0] == 0


def test_windows_first_and_full_attention_last() -> None:
    mixers = (*(Attention(window=1024),) * 24, *(Attention(),) * 8)
    pattern = tuple((mixer, MLP()) for mixer in mixers)
    model = WIDE.model_copy(update={"layer_pattern": pattern})
    request = asked(model, LONG, tp=8, pp=4, cp=1, schedule="1f1b")
    plan, seconds = best(request)
    even, even_s = best(with_usual_splits(request))
    assert even.stage_layers == ()
    layers = forward_layers(32, plan)
    assert layers[0] > 8 > layers[-1]
    assert seconds < 0.75 * even_s


@pytest.mark.one_in(1, quick=4)
@pytest.mark.parametrize(("layers", "pp"), [(61, 16), (62, 8), (67, 8), (61, 32)])
@pytest.mark.parametrize("framework", [None, "megatron"])
def test_layers_that_do_not_divide_get_a_plan(layers: int, pp: int, framework: str | None) -> None:
    model = WIDE.model_copy(update={"num_layers": layers})
    training = {"seq_length": 4096, "global_batch_size": 512}
    request = asked(model, training, pp=pp, framework=framework)
    plan, _ = best(request)
    assert plan.pp == pp
    assert sum(forward_layers(layers, plan)) == layers
    if framework:
        assert frameworks.get(framework).reasons(request, plan) == ()


@settings(max_examples=examples(25), deadline=None)
@given(request=requests(most_layers=9, worlds=((1, 2), (1, 4), (2, 2)), least_layers=4))
def test_a_partition_is_never_worse_than_the_usual_splits(request: PlanRequest) -> None:
    few = search(*prepared(with_usual_splits(request)), top_k=1).best
    more = search(*prepared(request), top_k=1).best
    if few:
        assert value_of(request, more[0]) <= value_of(request, few[0])


def test_what_is_recomputed_stays_all_of_it() -> None:
    model = WIDE.model_copy(update={"num_layers": 30, "vocab_size": 256_000})
    cost = CostModel(
        model,
        ClusterSpec(groups=(node_group("h100-sxm-80gb", 1),)),
        TrainingSpec(seq_length=4096, global_batch_size=64),
    )
    plan = ParallelPlan(
        pp=4, tp=2, sequence_parallel=True, stage_layers=(8, 8, 7, 7), recompute="full",
        recompute_num_layers=8,
    )  # fmt: skip
    asked = ShortList(Plans.from_rows([plan]), np.ones(1), 1.0)
    (found,) = repartitioned_plans(cost, [asked], room(80e9, 1.0))
    assert found
    for other in found:
        assert other.recompute_num_layers == max(forward_layers(30, other))
        assert forward_layers(30, other)[-1] < 7
    times = cost.evaluate(Plans.from_rows([plan, *found])).iteration_time_s
    assert np.all(times[1:] < times[0])


@pytest.mark.parametrize("kinds", [1, 2])
def test_none_is_left_out_whose_layers_could_be_partitioned_better(
    monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    """The bounds for all plans at once against the exact ones for each, at several goals."""
    update: dict[str, Any] = {"num_layers": 31, "vocab_size": 128_000}
    if kinds == 2:
        update |= {"moe": MoESpec(num_experts=2, top_k=1, expert_ffn_hidden_size=512)}
        update["moe"] = update["moe"].model_copy(update={"num_dense_layers": 3})
    model = WIDE.model_copy(update=update)
    training = TrainingSpec(seq_length=4096, global_batch_size=64)
    cost = CostModel(model, ClusterSpec(groups=(node_group("h100-sxm-80gb", 8),)), training)
    rows = [
        ParallelPlan.model_validate(fields)
        for pp, sizes in ((2, (16, 15)), (4, (8, 8, 8, 7)), (8, (4, 4, 4, 4, 4, 4, 4, 3)))
        for schedule in ("1f1b", "zb-h1")
        for redone in ({}, {"recompute": "full", "recompute_num_layers": 2})
        for fields in [{"pp": pp, "dp": 64 // pp // 4, "tp": 4, "stage_layers": sizes,
                        "schedule": schedule, "sequence_parallel": True, **redone}]
    ]  # fmt: skip
    plans = Plans.from_rows(rows)
    seconds = cost.evaluate(plans).iteration_time_s
    lists = [
        ShortList(plans.take(np.array([row])), seconds[[row]], share * seconds[row])
        for row in range(len(rows))
        for share in (0.5, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.995)
    ]
    left_out: list[int] = []
    are_hopeless = module._are_hopeless

    def counted(*given: Any) -> Any:
        found = are_hopeless(*given)
        left_out.append(int(found.sum()))
        return found

    monkeypatch.setattr(module, "_are_hopeless", counted)
    few = repartitioned_plans(cost, lists, room(80e9, 1.0))
    monkeypatch.setattr(module, "_are_hopeless", lambda *given: np.zeros_like(are_hopeless(*given)))
    every = repartitioned_plans(cost, lists, room(80e9, 1.0))
    assert few == every
    assert any(every)
    assert len(lists) > left_out[0] > 0.5 * sum(not one for one in every)
