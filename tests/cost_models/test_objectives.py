"""Preferences, scores and teachers: what runs and stands beside the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.catalog.models import model
from cost_models.estimate import CostModel, Estimates
from cost_models.flops import forward_flop, step_flop
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec
from planner.inputs.requests.parser import parse_cluster

LLAMA = model("llama-3.1-8b")
PARAMETERS = total_parameters(LLAMA)
LORA = {"lora_rank": 16}


def training(**fields: Any) -> TrainingSpec:
    return TrainingSpec(**{"seq_length": 4096, "global_batch_size": 64, **fields})


def estimate(plan: dict[str, Any], **fields: Any) -> Estimates:
    cost = CostModel(LLAMA, parse_cluster("1x8xh100-sxm"), training(**fields))
    return cost.evaluate(Plans.from_rows([ParallelPlan(**plan)]))


def seconds(found: Estimates, part: str) -> float:
    return float(np.max(found.time_parts_s[part]))


def weights(found: Estimates) -> float:
    return float(found.memory.parts["weights"].max())


@pytest.mark.parametrize("plan", [{"dp": 8, "zero_stage": 3}, {"tp": 8}, {"pp": 2, "tp": 4}])
def test_a_reference_is_one_forward_pass_and_one_copy_more(plan: dict[str, Any]) -> None:
    alone, pairs = estimate(plan), estimate(plan, loss="dpo")
    assert seconds(pairs, "forward") == pytest.approx(2 * seconds(alone, "forward"))
    assert seconds(pairs, "backward") == seconds(alone, "backward")
    assert alone.iteration_time_s < pairs.iteration_time_s
    assert weights(pairs) == pytest.approx(2 * weights(alone))
    for part in ("gradients", "optimizer", "activations"):
        assert np.array_equal(pairs.memory.parts[part], alone.memory.parts[part])
    tokens = float(training().tokens_per_iteration)
    more = step_flop(LLAMA, training(loss="dpo")) - step_flop(LLAMA, training())
    assert more == pytest.approx(forward_flop(LLAMA, tokens, 4096.0, causal=False))


def test_with_adapters_the_reference_is_the_model_without_them() -> None:
    plan = {"tp": 8}
    alone, pairs = estimate(plan, **LORA), estimate(plan, loss="dpo", **LORA)
    assert weights(pairs) == weights(alone)
    assert seconds(pairs, "forward") > 1.9 * seconds(alone, "forward")


def test_a_teacher_counts_by_its_size() -> None:
    plan = {"tp": 8}
    alone, same, large = (
        estimate(plan),
        estimate(plan, loss="distillation"),
        estimate(plan, loss="distillation", teacher_parameters=3.0 * PARAMETERS),
    )
    copies = (weights(large) - weights(alone)) / (weights(same) - weights(alone))
    assert copies == pytest.approx(3.0)
    # The vocabulary is padded to 129,024 rows for 8 ranks, each of which has all 65 norms.
    padding, norms = 2 * 768 * LLAMA.hidden_size, 65 * LLAMA.hidden_size
    assert weights(same) == 4 * (PARAMETERS + padding + 7 * norms) / 8
    assert seconds(large, "forward") == pytest.approx(2 * seconds(same, "forward"), rel=0.02)
    # The teacher's logits stand beside the model's.
    assert same.memory.parts["logits"].max() > 1.5 * alone.memory.parts["logits"].max()


def test_a_score_needs_no_logits() -> None:
    plan = {"dp": 8, "zero_stage": 3}
    alone, score = estimate(plan), estimate(plan, loss="reward")
    assert score.iteration_time_s < alone.iteration_time_s
    assert score.memory.parts["logits"].max() < 0.1 * alone.memory.parts["logits"].max()
    missing = weights(alone) - weights(score)
    head = 4 * LLAMA.hidden_size * (LLAMA.vocab_size - 1) / 8
    assert missing == pytest.approx(head / 2, rel=0.01)
    tokens = float(training().tokens_per_iteration)
    less = step_flop(LLAMA, training()) - step_flop(LLAMA, training(loss="reward"))
    assert less == pytest.approx(6 * tokens * LLAMA.hidden_size * (LLAMA.vocab_size - 1))
    frozen = step_flop(LLAMA, training(**LORA)) - step_flop(LLAMA, training(loss="reward", **LORA))
    # Frozen logits have two products, the score that is new all three.
    assert frozen == pytest.approx(tokens * LLAMA.hidden_size * (4 * LLAMA.vocab_size - 6))


def test_pairs_are_whole() -> None:
    with pytest.raises(ValueError, match="not made of pairs"):
        training(loss="dpo", global_batch_size=63)
