"""Seconds of a layer: what the host hides, and how torch goes around a context-parallel ring."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.estimate import CostModel
from cost_models.layer_costs import launch_bound_s
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec


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
