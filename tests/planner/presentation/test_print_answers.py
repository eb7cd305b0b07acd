"""In Python an answer prints its screen, and the module shows what is to be called."""

from __future__ import annotations

import pytest

import planner
from planner.documents.answer import EstimateAnswer

ASKED = {
    "model": "llama-3.2-1b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 64},
    "search": {"tp": 1, "pp": 1, "cp": 1},
}


@pytest.mark.slow
def test_an_answer_prints_its_screen() -> None:
    answer = planner.plan(ASKED)
    text = str(answer)
    assert "Best plan" in text
    assert len(text) < 4000
    assert len(repr(answer)) < 100
    assert all(line == line.rstrip() for line in text.splitlines())
    estimate = planner.estimate({**ASKED, "plan": {"tp": 1}})
    assert isinstance(estimate, EstimateAnswer)
    assert str(estimate).count("tokens/s") == 1
    assert "The plan" in str(planner.why({**ASKED, "plan": {"tp": 2}}))
    fits = planner.fit(
        {"model": "llama-3.2-1b", "cluster": "1x1xrtx-4090", "fit": {"methods": ["lora"]}}
    )
    assert "LoRA  " in str(fits)
    files = planner.emit({**ASKED, "plan": {"tp": 1}})
    assert "torchrun" in str(files)


def test_the_module_lists_its_functions() -> None:
    assert dir(planner) == sorted(planner.__all__)
    assert {"plan", "estimate", "why", "emit"} <= set(dir(planner))
