"""The composer: parts add up, and a plan costs the same alone as beside any other."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.estimate import CostModel, _memo
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.schedules.waits import least_wait_share
from cost_models.spec import ModelSpec, MoESpec, TrainingSpec
from tests.fixtures.spaces import LEAST, some_plans

MODELS = ("gpt2", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma-2-27b", "gpt-oss-20b")
CLUSTERS = ("2x4xh100-sxm", "1x8xmi300x", "2x4xl40s", "1x8xb200")


TRAININGS = (
    {"seq_length": 4096},
    {"seq_length": 4096, "loss": "dpo", "lora_rank": 16},
    {"seq_length": 8192, "sample_lengths": (500, 3000, 8192), "optimizer": "muon"},
    {"seq_length": 8192, "precision": "fp8", "tokens": 1e12},
)


@pytest.mark.slow
@pytest.mark.parametrize("training", TRAININGS, ids=range(len(TRAININGS)))
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_what_is_kept_of_one_batch_holds_for_another(name: str, training: dict[str, Any]) -> None:
    """A cost model that finds what one of another batch has kept prices as one that finds none."""
    cluster = parse_shorthand("2x8xh100-sxm")
    first, second = (
        TrainingSpec(global_batch_size=size, **{"tokens": 1e9, **training}) for size in (256, 512)
    )
    plans = [
        Plans.from_rows([ParallelPlan(tp=tp, sequence_parallel=True, dp=16 // tp) for tp in each])
        for each in ((2,), (4, 8), (2, 4, 8))
    ]

    def numbers(asked: TrainingSpec) -> list[Any]:
        model = CostModel(preset(name), cluster, asked)
        found = [model.evaluate(each, all_stages=True) for each in plans]
        return [(one.time_parts_s, one.memory.parts) for one in found]

    _memo.cache_clear()
    alone = numbers(second)
    _memo.cache_clear()
    numbers(first.model_copy(update={"seq_length": 2048}))
    numbers(first)
    kept = _memo.cache_info().hits
    np.testing.assert_equal(numbers(second), alone)
    assert _memo.cache_info().hits == kept + 1


@pytest.mark.one_in(2, quick=2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "cluster", [CLUSTERS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in CLUSTERS[1:])]
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_plan_costs_the_same_alone_as_in_a_batch(name: str, cluster: str, seed: int) -> None:
    """At least 20 different plans in a batch, drawn from the space that is searched."""
    model, nodes = preset(name), parse_shorthand(cluster)
    training = TrainingSpec(seq_length=1024, global_batch_size=64)
    rows = some_plans(model, nodes, training, Random(f"{name} {cluster} {seed}"))
    assert len(set(rows)) >= LEAST
    cost = CostModel(model, nodes, training)
    together = cost.evaluate(Plans.from_rows(rows))
    for i, row in enumerate(rows):
        alone = cost.evaluate(Plans.from_rows([row]))
        assert alone.iteration_time_s[0] == together.iteration_time_s[i]
        assert alone.peak_bytes[0] == together.peak_bytes[i]
        for part, values in alone.time_parts_s.items():
            assert values[0] == together.time_parts_s[part][i], part
            assert np.isfinite(values[0])
            assert values[0] >= 0, part
        parts = [part[:, i].max() for part in together.memory.parts.values()]
        assert np.all(np.isfinite(parts))
        assert min(parts) >= 0


@pytest.mark.one_in(1, quick=3)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_the_worst_stage_is_among_those_priced(name: str, seed: int) -> None:
    """Of at least 20 different plans, with and without the stages that another one bounds."""
    model, nodes = preset(name), parse_shorthand("2x4xh100-sxm")
    training = TrainingSpec(seq_length=1024, global_batch_size=64)
    rows = some_plans(model, nodes, training, Random(f"{name} {seed}"))
    assert len(set(rows)) >= LEAST
    cost = CostModel(model, nodes, training)
    for row in rows:
        plans = Plans.from_rows([row])
        few, every = cost.evaluate(plans), cost.evaluate(plans, all_stages=True)
        assert few.peak_bytes[0] == every.peak_bytes[0]
        assert few.iteration_time_s[0] == pytest.approx(every.iteration_time_s[0], rel=1e-12)


@pytest.mark.one_in(1, quick=4)
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_the_worst_stage_is_among_those_priced_for_every_schedule(name: str) -> None:
    """What is in flight grows along Hanayo's ranks with few micro-batches, and falls elsewhere."""
    schedule = SCHEDULES[name]
    sizes = [(p, v) for p in (2, 4, 8) for v in schedule.chunk_counts or (2, 3)]
    for p, v in sizes:
        light = MoESpec(num_experts=2, top_k=1, expert_ffn_hidden_size=16, num_dense_layers=p)
        shape = ModelSpec(
            num_layers=2 * p * v, hidden_size=256, num_attention_heads=4, vocab_size=512, moe=light
        )
        plan = ParallelPlan.model_validate({"pp": p, "vpp": v, "schedule": name})
        for m in (p - 1, p, p + 1, 2 * p, 4 * p):
            if not schedule.allowed(p, v, m):
                training = TrainingSpec(seq_length=1024, global_batch_size=m)
                cost = CostModel(shape, parse_shorthand(f"{p}x1xh100-sxm"), training)
                row = Plans.from_rows([plan])
                few, every = cost.evaluate(row), cost.evaluate(row, all_stages=True)
                assert few.peak_bytes[0] == every.peak_bytes[0], (p, v, m)


@pytest.mark.one_in(1, quick=3)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 9))]
)
def test_no_layout_takes_less_than_the_least(name: str, optimizer: str, seed: int) -> None:
    """Time and memory of whole plans, against what is known before layers fall on stages."""
    model, nodes = preset(name), parse_shorthand("2x4xh100-sxm")
    training = TrainingSpec.model_validate(
        {"seq_length": 1024, "global_batch_size": 64, "optimizer": optimizer}
    )
    cost = CostModel(model, nodes, training)
    plans = Plans.from_rows(some_plans(model, nodes, training, Random(f"{name} {seed}"), 200))
    estimates = cost.evaluate(plans)
    least_bytes, least_s = cost.least(plans)
    least_s = least_s * (1.0 + least_wait_share(plans, training.global_batch_size))
    assert np.all(least_s <= estimates.iteration_time_s * (1 + 1e-12))
    assert np.all(least_bytes <= estimates.needed_bytes * (1 + 1e-12))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_no_schedule_waits_less_than_the_least(name: str) -> None:
    """Of stages that are equal but for a head as heavy as three layers, or uneven to make up."""
    schedule = SCHEDULES[name]
    waits = []
    for p, v in [(p, v) for p in (2, 4) for v in schedule.chunk_counts or (2, 3)]:
        shape = ModelSpec(
            num_layers=6 * p * v, hidden_size=512, num_attention_heads=4, vocab_size=30_000
        )
        ends = [{}] if v > 1 or schedule.placement != "loop" else [{}, {"last_stage_layers": 3}]
        rows = [
            ParallelPlan.model_validate({"pp": p, "vpp": v, "schedule": name, **own})
            for own in ends
            if not own or (shape.num_layers - 3) % (p - 1) == 0
        ]
        for m in (1, p - 1, p, p + 1, 4 * p):
            if schedule.allowed(p, v, m):
                continue
            training = TrainingSpec(seq_length=1024, global_batch_size=m)
            cost = CostModel(shape, parse_shorthand(f"{p}x1xh100-sxm"), training)
            plans = Plans.from_rows(rows)
            share = least_wait_share(plans, m)
            least_s = cost.least(plans)[1] * (1.0 + share)
            assert np.all(least_s <= cost.evaluate(plans).iteration_time_s * (1 + 1e-12))
            waits.append(float(share.max()))
    assert max(waits, default=0.0) > 0.5 or name not in ("1f1b", "gpipe", "interleaved-1f1b")


@pytest.mark.parametrize("name", MODELS)
def test_the_least_is_near_what_a_plain_layout_takes(name: str) -> None:
    """The bounds prune: they are not simply small."""
    training = TrainingSpec(seq_length=1024, global_batch_size=64)
    cost = CostModel(preset(name), parse_shorthand("2x4xh100-sxm"), training)
    plans = Plans.from_rows(
        [ParallelPlan(tp=tp, pp=pp, dp=8 // tp // pp) for tp in (1, 2, 4) for pp in (1, 2)]
    )
    estimates = cost.evaluate(plans)
    least_bytes, least_s = cost.least(plans)
    assert np.all(least_s > 0.5 * estimates.iteration_time_s)
    assert np.all(least_bytes > 0.5 * estimates.needed_bytes)


def peak_parts(plan: ParallelPlan, model: str, cluster: str) -> dict[str, float]:
    training = TrainingSpec(seq_length=8192, global_batch_size=256)
    cost = CostModel(preset(model), parse_shorthand(cluster), training)
    estimates = cost.evaluate(Plans.from_rows([plan]))
    return {name: float(part[:, 0].max()) for name, part in estimates.memory.parts.items()}


def test_weights_that_are_not_resharded_stay_gathered() -> None:
    """70B over 256 ranks: 2 bytes of every weight, beside the shards."""
    plan = ParallelPlan(dp=256, zero_stage=3, runtime="torch", reshard_after_forward=False)
    kept = peak_parts(plan, "llama-3.1-70b", "32x8xh100-sxm")
    freed = peak_parts(
        plan.model_copy(update={"reshard_after_forward": True}), "llama-3.1-70b", "32x8xh100-sxm"
    )
    assert kept["communication"] > 140e9
    assert freed["communication"] < 20e9


def test_selective_recompute_brings_one_layer_back() -> None:
    """Recomputing the MLP: 3 x 28672 x 2 bytes per token exist again in one layer."""
    # With the loss in place the fullest moment is the backward pass of a layer.
    base = ParallelPlan(dp=8, cross_entropy="in_place")
    model, cluster = "llama-2-70b", "1x8xh200-sxm"
    plain = peak_parts(base, model, cluster)["working"]
    redone = base.model_copy(update={"recompute": "selective", "recompute_modules": ("mlp",)})
    extra = peak_parts(redone, model, cluster)["working"] - plain
    assert extra == pytest.approx(3 * 28672 * 2 * 8192)


def test_the_head_keeps_one_micro_batch_under_interleaving() -> None:
    interleaved = ParallelPlan(pp=4, dp=2, vpp=8, schedule="interleaved-1f1b")
    plain = ParallelPlan(pp=4, dp=2)
    assert (
        peak_parts(interleaved, "llama-3.1-8b", "1x8xh100-sxm")["logits"]
        == peak_parts(plain, "llama-3.1-8b", "1x8xh100-sxm")["logits"]
    )
