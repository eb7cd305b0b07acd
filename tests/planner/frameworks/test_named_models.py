"""Models by the names that launch files have for them."""

from __future__ import annotations

import pytest

from cost_models.catalog.names import UnknownName
from planner.frameworks.named_models import find


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("qwen2.5-coder-0.5b", "qwen2.5-0.5b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-14b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
    ],
)
def test_models_trained_further_have_the_shape_of_their_base(name: str, preset: str) -> None:
    assert find(name) == find(preset)


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-coder-9b"])
def test_another_base_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(UnknownName):
        find(name)
