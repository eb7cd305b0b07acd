"""Seconds of a layer: what the host hides, and how torch goes around a context-parallel ring."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.estimate import CostModel
from cost_models.layer_costs import launch_bound_s
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, MoESpec, TrainingSpec
from cost_models.step_time import unoverlapped_micro_batches


def parts(model: ModelSpec, cluster: str, seq_length: int, **plan: object) -> dict[str, float]:
    training = TrainingSpec(seq_length=seq_length, global_batch_size=8)
    estimates = CostModel(model, parse_shorthand(cluster), training).evaluate(
        Plans.from_rows([ParallelPlan.model_validate(plan)])
    )
    return {name: float(value[0]) for name, value in estimates.time_parts_s.items()}


@pytest.mark.parametrize("kernels", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("exposed", [0.0, 1.0, 8.0])
def test_a_pass_takes_as_long_as_the_longer_of_host_and_device(
    kernels: float, exposed: float
) -> None:
    total = launch_bound_s(kernels, exposed, 5.0) + exposed
    assert total == max(kernels + exposed, 5.0)


def llama(groups: int) -> ModelSpec:
    return ModelSpec(
        num_layers=4,
        hidden_size=4096,
        num_attention_heads=32,
        num_query_groups=groups,
        vocab_size=32000,
        norm="rmsnorm",
        position="rope",
    )


def test_jax_leaves_the_last_product_out_of_a_recomputed_layer() -> None:
    """8 of the 24 h^2 FLOP a token, unless a norm reads it; torch runs the whole layer again."""
    model = llama(32).model_copy(update={"gated_mlp": False, "ffn_hidden_size": 16384})
    normed = model.model_copy(update={"norms_per_layer": 4.0})
    plan = {"recompute": "full", "recompute_num_layers": 1, "compile": True}
    whole, some, all_normed = (
        parts(model, "8xh100-sxm", 4096, runtime=runtime, **plan)["recompute"]
        for model, runtime in ((model, "torch"), (model, "jax"), (normed, "jax"))
    )
    assert some == pytest.approx(whole * 2 / 3, rel=0.1)
    assert all_normed > whole


def test_torch_carries_a_key_for_every_query_around_the_ring() -> None:
    """Repeated before they go around, few key heads save nothing; Megatron sends what there is."""
    plan = {"cp": 8, "cp_kind": "all_gather"}
    for runtime, saves in (("torch", False), ("megatron", True)):
        few, many = (
            parts(llama(groups), "8x1xh100-sxm", 65536, runtime=runtime, **plan)["cp_comm"]
            for groups in (4, 32)
        )
        assert (few < 0.5 * many) if saves else few == pytest.approx(many, rel=0.05)


def test_what_no_one_waits_for_is_hidden_by_longer_attention() -> None:
    """The gather of torch's ring runs under the first chunk: longer sequences show less of it."""
    shares = []
    for seq_length in (16384, 131072):
        found = parts(
            llama(8), "8x1xh100-sxm", seq_length, cp=8, cp_kind="all_gather", runtime="torch"
        )
        shares.append(found["cp_comm"] / sum(found.values()))
    assert np.all(np.diff(shares) < 0)


def experts(**fields: object) -> ModelSpec:
    moe = MoESpec.model_validate(
        {"num_experts": 32, "top_k": 4, "expert_ffn_hidden_size": 2048, **fields}
    )
    return llama(8).model_copy(update={"moe": moe, "gated_mlp": True})


def forward(model: ModelSpec, **plan: object) -> float:
    return parts(model, "1x8xh100-sxm", 4096, dp=8, ep=8, **plan)["forward"]


def test_a_dispatcher_that_makes_the_copies_leaves_no_pass_for_them() -> None:
    alltoall, deepep, hybridep = (
        forward(experts(), moe_dispatcher=name) for name in ("alltoall", "deepep", "hybridep")
    )
    assert hybridep < deepep < alltoall


def test_biases_of_experts_cost_passes_until_they_are_fused() -> None:
    for runtime, costs in (("megatron", True), ("megatron-graphs", False)):
        with_bias, without = (
            forward(experts(expert_bias=bias), runtime=runtime) for bias in (True, False)
        )
        assert (with_bias > 1.05 * without) if costs else with_bias == without


def test_graphs_take_the_host_out() -> None:
    small = llama(8).model_copy(update={"hidden_size": 256, "head_dim": 8, "ffn_hidden_size": 256})
    eager, graphs = (
        parts(small, "1x1xh100-sxm", 512, runtime=runtime)["forward"]
        for runtime in ("megatron-2026", "megatron-graphs")
    )
    assert graphs < 0.5 * eager


def test_nothing_hides_an_exchange_while_the_pipeline_fills() -> None:
    """One micro-batch has no other beside it; the more there are, the more of it hides."""
    exposed = [
        parts(experts(), "1x8xh100-sxm", 4096, dp=8, ep=8, micro_batch_size=1, overlap_ep=overlap)
        for overlap in (False, True)
    ]
    assert exposed[1]["ep_comm"] == pytest.approx(exposed[0]["ep_comm"])
    plans = Plans.from_rows([ParallelPlan(pp=4, vpp=2, schedule="interleaved-1f1b")])
    assert [float(unoverlapped_micro_batches(plans, m)[0]) for m in (2.0, 64.0)] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("cluster", "in_order"), [("8xh100-sxm", False), ("8xa100-sxm", False), ("8xb200", True)]
)
def test_one_queue_hides_tensor_parallel_traffic_or_several_the_exchange(
    cluster: str, in_order: bool
) -> None:
    """Megatron-LM's warning for Hopper and before, where both cannot be had."""
    plan = {"tp": 4, "ep": 2, "dp": 2, "sequence_parallel": True}
    with_tp, both, alone = (
        parts(experts(), cluster, 4096, **plan, **more)
        for more in (
            {"overlap_tp": True}, {"overlap_tp": True, "overlap_ep": True}, {"overlap_ep": True},
        )
    )  # fmt: skip
    assert both["ep_comm"] < with_tp["ep_comm"]
    same = both["tp_comm"] == pytest.approx(with_tp["tp_comm"])
    assert same == in_order
    # Without order no chunk hides, whether or not the plan cuts its collectives into chunks.
    assert (both["tp_comm"] == pytest.approx(alone["tp_comm"])) != in_order
