"""Engines that do not fit: how much they need and have, in GiB, and what can make room for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

import planner
from planner.answers.plans.emission import NothingFits

GIB = 2**30
STEP = {"prompts": 64, "samples": 8, "prompt_tokens": 512, "max_response_tokens": 1536}
LARGER_TP, LARGER_SHARE, OTHER = (
    "a larger generation_tp", "a larger gpu_memory_utilization", "generation: other",
)  # fmt: skip
# What makes the room that each way promises, in these cases.
TAKEN: dict[str, dict[str, Any]] = {
    LARGER_TP: {"generation_tp": 2},
    LARGER_SHARE: {"gpu_memory_utilization": 0.4},
    OTHER: {"generation": "other", "generation_nodes": 1},
}
SMALL_SHARE = {"gpu_memory_utilization": 0.15}
LORA = {"trainer": "trl", "lora_rank": 16}


def asked(model: str, cluster: str, step: dict[str, Any]) -> dict[str, Any]:
    """A step; lora_rank is of its training."""
    rest = {name: value for name, value in step.items() if name != "lora_rank"}
    training = {"lora_rank": step["lora_rank"]} if "lora_rank" in step else {}
    document = {"model": model, "cluster": cluster, "reinforcement": {**STEP, **rest}}
    return {**document, "training": training}


def refusal(model: str, cluster: str, step: dict[str, Any]) -> NothingFits:
    with pytest.raises(NothingFits, match="no engine fits") as error:
        planner.rl(asked(model, cluster, step))
    return error.value


def detail(error: NothingFits) -> str:
    (found,) = error.problems
    return found.detail


@pytest.mark.parametrize(
    ("model", "cluster", "step", "ways"),
    [
        # One accelerator, and nothing that was stated: there is no way.
        ("qwen3-8b", "1x1xrtx-4090", LORA, []),
        ("qwen2.5-0.5b", "1x1xrtx-4090", {"trainer": "trl", **SMALL_SHARE, "generation_tp": 1},
         [LARGER_SHARE]),
        # One node: nothing generates beside it.
        ("llama-3.1-8b", "1x8xh100-sxm", {**SMALL_SHARE, "generation_tp": 1},
         [LARGER_TP, LARGER_SHARE]),
        # Two, of which one generates already.
        ("llama-3.1-8b", "2x8xh100-sxm", {**SMALL_SHARE, "generation_tp": 1, **TAKEN[OTHER]},
         [LARGER_TP, LARGER_SHARE]),
        # More accelerators would not split the heads; a stated share is the same elsewhere.
        ("qwen2.5-7b", "2x8xh100-sxm",
         {"gpu_memory_utilization": 0.05, "generation_tp": 4, "generation": "same"},
         [LARGER_SHARE]),
        # All that generate are one engine.
        ("qwen2.5-0.5b", "2x1xh100-sxm",
         {"gpu_memory_utilization": 0.03, "generation_tp": 1, **TAKEN[OTHER]}, [LARGER_SHARE]),
        # Beside the policy that stays in memory.
        ("qwen3-8b", "2x1xrtx-4090", {**LORA, "generation": "same", "generation_tp": 1},
         [LARGER_TP, OTHER]),
    ],
)  # fmt: skip
def test_only_ways_that_there_are_are_named_and_they_make_room(
    model: str, cluster: str, step: dict[str, Any], ways: list[str]
) -> None:
    said = detail(refusal(model, cluster, step))
    promise = f"; {' or '.join(ways)} may make room" if ways else ""
    assert said.endswith(f"GiB for it{promise}")
    assert "may make room" not in said.removesuffix(promise)
    for way in ways:
        answer = planner.rl(asked(model, cluster, {**step, **TAKEN[way]}))
        assert answer.generated is not None


def test_what_is_needed_and_there_is_in_gib() -> None:
    """8 B weights in bf16, 3 GB to work in and 512 tokens of 128 KiB, in 15 % of an H100."""
    error = refusal("llama-3.1-8b", "1x8xh100-sxm", {**SMALL_SHARE, "generation_tp": 1})
    found = re.search(
        r"need (\S+) GiB of an accelerator, which has (\S+) GiB for it", detail(error)
    )
    assert found is not None
    need, has = map(float, found.groups())
    capacity, weights, cache = 85_520_809_984, 2 * 8_030_261_248, 128 * 2**10
    assert need == pytest.approx((weights + 3e9 + 512 * cache) / GIB, abs=0.06)
    assert has == pytest.approx(0.15 * capacity / GIB, abs=0.06)
    (problem,) = error.problems
    assert (problem.pointer, problem.got) == ("/reinforcement/generation_tp", 1)
    # With its longest sequence.
    missing = weights + 3e9 + 2048 * cache - 0.15 * capacity
    assert error.missing_bytes == pytest.approx(missing, rel=0.01)


def test_a_sequence_that_is_too_long_is_said_in_gib() -> None:
    step = {"generation_tp": 1, "max_response_tokens": 2**19}
    document = asked("llama-3.1-8b", "2x8xh100-sxm", step) | {"search": {"cp": 16, "tp": 1}}
    with pytest.raises(NothingFits) as error:
        planner.rl(document)
    said = detail(error.value)
    assert re.search(r" of 524,800 tokens need 8\d\.\d GiB of an accelerator, which has 6\d", said)
    assert re.search(r"GiB for it: at most [\d,]+ tokens of a response; a larger gen", said)
