"""The composer: parts add up, and a plan costs the same alone as beside any other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.spec import ModelSpec, MoESpec, TrainingSpec
from planner.constraints import RULES, Context, violations

MODELS = ("gpt2", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma-2-27b", "gpt-oss-20b")
CLUSTERS = ("2x4xh100-sxm", "1x8xmi300x", "2x4xl40s", "1x8xb200")


@st.composite
def plans(draw: st.DrawFn, model: ModelSpec, context: Context) -> ParallelPlan:
    """A legal plan with any combination of switches."""
    world = context.cluster.accelerators
    degrees = [n for n in (1, 2, 4, 8) if n <= world]
    tp, cp, pp = (draw(st.sampled_from(degrees)) for _ in range(3))
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    modules = draw(st.sampled_from([("layernorm",), ("mlp",), ("moe",), ("core_attn", "moe_act")]))
    chunks = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    return ParallelPlan(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=max(1, world // (tp * cp * pp)),
        vpp=chunks,
        schedule="interleaved-1f1b" if chunks > 1 else draw(st.sampled_from(["1f1b", "gpipe"])),
        ep=draw(st.sampled_from([1, 2, 4])),
        etp=draw(st.sampled_from([1, 2])),
        dp_shard=draw(st.sampled_from([0, 0, 2])),
        sequence_parallel=draw(st.booleans()),
        zero_stage=draw(st.integers(0, 3)),
        reshard_after_forward=draw(st.booleans()),
        micro_batch_size=draw(st.sampled_from([1, 2, 4])),
        recompute=recompute,
        recompute_modules=modules if recompute == "selective" else (),
        recompute_num_layers=draw(st.integers(1, 4)) if recompute == "full" else 0,
        recompute_method=draw(st.sampled_from(["block", "uniform"])),
        attention_kernel=draw(st.sampled_from(["flash", "unfused"])),
        cross_entropy=draw(st.sampled_from(["fused", "in_place", "unfused"])),
        moe_dispatcher=draw(st.sampled_from(["alltoall", "allgather", "deepep"])),
        cp_kind=draw(st.sampled_from(["p2p", "all_gather", "a2a"])),
        rank_order=draw(st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])),
        offload_optimizer=draw(st.booleans()),
        offload_activations=draw(st.booleans()),
        overlap_grad_reduce=draw(st.booleans()),
        overlap_param_gather=draw(st.booleans()),
        overlap_tp=draw(st.booleans()),
        overlap_p2p=draw(st.booleans()),
        stack=draw(st.sampled_from(["megatron", "torch", "deepspeed", "megatron-2022"])),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_plan_costs_the_same_alone_as_in_a_batch(data: st.DataObject) -> None:
    model = preset(data.draw(st.sampled_from(MODELS)))
    cluster = parse_shorthand(data.draw(st.sampled_from(CLUSTERS)))
    training = TrainingSpec(seq_length=1024, global_batch_size=64)
    context = Context(model, cluster, training)
    drawn = data.draw(st.lists(plans(model, context), min_size=2, max_size=12))
    rows = [plan for plan in drawn if not violations(context, plan, RULES)]
    if not rows:
        return
    cost = CostModel(model, cluster, training)
    together = cost.evaluate(Plans.from_rows(rows))
    for i, row in enumerate(rows):
        alone = cost.evaluate(Plans.from_rows([row]))
        assert alone.iteration_time_s[0] == together.iteration_time_s[i]
        assert alone.peak_bytes[0] == together.peak_bytes[i]
        for name, part in alone.time_parts_s.items():
            assert part[0] == together.time_parts_s[name][i], name
            assert np.isfinite(part[0])
            assert part[0] >= 0, name
        parts = [part[:, i].max() for part in together.memory.parts.values()]
        assert np.all(np.isfinite(parts))
        assert min(parts) >= 0


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_worst_stage_is_among_those_priced(data: st.DataObject) -> None:
    model = preset(data.draw(st.sampled_from(MODELS)))
    cluster = parse_shorthand("2x4xh100-sxm")
    training = TrainingSpec(seq_length=1024, global_batch_size=64)
    context = Context(model, cluster, training)
    plan = data.draw(plans(model, context))
    if violations(context, plan, RULES):
        return
    cost = CostModel(model, cluster, training)
    row = Plans.from_rows([plan])
    few, every = cost.evaluate(row), cost.evaluate(row, all_stages=True)
    assert few.peak_bytes[0] == every.peak_bytes[0]
    assert few.iteration_time_s[0] == pytest.approx(every.iteration_time_s[0], rel=1e-12)


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


def peak_parts(plan: ParallelPlan, model: str, cluster: str) -> dict[str, float]:
    training = TrainingSpec(seq_length=8192, global_batch_size=256)
    cost = CostModel(preset(model), parse_shorthand(cluster), training)
    estimates = cost.evaluate(Plans.from_rows([plan]))
    return {name: float(part[:, 0].max()) for name, part in estimates.memory.parts.items()}


def test_weights_that_are_not_resharded_stay_gathered() -> None:
    """70B over 256 ranks: 2 bytes of every weight, beside the shards."""
    plan = ParallelPlan(dp=256, zero_stage=3, stack="torch", reshard_after_forward=False)
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
