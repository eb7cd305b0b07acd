"""Plans in steps of different size, priced together: each as it is priced with its own training."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from planner.answers.plans.alike import plans_in_steps, shared
from planner.answers.plans.explain import report
from planner.answers.plans.plan_answers import IllegalPlan, estimates, illegal
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import cost_model

# Every way in which costs depend on the length of a sequence: the whole of it, windows, chunks,
# chosen and compressed keys, scans of recurrences, encoders, latents, experts.
MODELS = (
    "llama-3.1-8b", "falcon-40b", "gemma-3-27b", "llama-4-scout", "deepseek-v3.2",
    "deepseek-v4-flash", "glm-5", "nemotron-3-nano", "qwen3-next-80b-a3b",
    "kimi-linear-48b-a3b", "qwen3-vl-8b", "mixtral-8x7b",
)  # fmt: skip
PLANS: tuple[dict[str, Any], ...] = (
    {}, {"tp": 2, "sequence_parallel": True}, {"pp": 2}, {"cp": 2},
    {"recompute": "full", "recompute_num_layers": 1}, {"attention_kernel": "unfused"},
    {"tp": 8, "sequence_parallel": True}, {"zero_stage": 3}, {"micro_batch_size": 2},
    {"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"},
)  # fmt: skip


def drawn(model: str, training: dict[str, Any], several: int = 12) -> list[PlanRequest]:
    """Requests for one model that differ in the plan, the length and the batch."""
    random = Random(model)
    return [
        parse_request(
            {
                "model": model,
                "cluster": "2x8xh100-sxm",
                "training": {
                    "seq_length": random.choice((512, 1000, 2048, 4096, 8192, 32768)),
                    "global_batch_size": random.choice((64, 96, 250, 1024)),
                    **training,
                },
                "plan": random.choice(PLANS),
            }
        )
        for _ in range(several)
    ]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("training", [{}, {"precision": "fp8"}, {"frozen": ["embedding"]}], ids=str)
def test_together_they_are_what_each_is_alone(model: str, training: dict[str, Any]) -> None:
    asked = drawn(model, training)
    assert len({shared(request) for request in asked}) == 1
    found = estimates([(request, request.named_plan) for request in asked])
    priced = 0
    for request, answer in zip(asked, found, strict=True):
        reasons = illegal(request, request.named_plan)
        if isinstance(answer, IllegalPlan):
            assert answer.reasons == reasons
        else:
            assert not reasons
            alone = report(cost_model(request), request, request.named_plan)
            assert answer.estimate == alone
            priced += 1
    assert priced > 3


def test_samples_of_a_distribution_are_priced_with_their_own_training() -> None:
    asked = drawn("llama-3.1-8b", {"sample_lengths": [100, 900, 2000]})
    assert len({shared(request) for request in asked}) > 1
    request = asked[0]
    assert shared(request).training is request.training
    assert plans_in_steps([(request, request.named_plan)], request.training).seq_length is None
