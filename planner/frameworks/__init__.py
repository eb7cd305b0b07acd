"""The training frameworks that a plan can be written for: one file and one line here each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cost_models.catalog.names import resolve

if TYPE_CHECKING:
    from planner.frameworks.base import Framework

# Name -> module with a FRAMEWORK; imported when first asked for.
FRAMEWORKS: dict[str, str] = {
    "accelerate": "planner.frameworks.accelerate",
    "colossalai": "planner.frameworks.colossalai",
    "deepspeed": "planner.frameworks.deepspeed",
    "megatron": "planner.frameworks.megatron",
    "megatron-bridge": "planner.frameworks.megatron_bridge",
    "mindspeed": "planner.frameworks.mindspeed",
    "nanotron": "planner.frameworks.nanotron",
    "pytorch": "planner.frameworks.pytorch",
    "torchtitan": "planner.frameworks.torchtitan",
}
ALIASES: dict[str, str] = {
    "colossal-ai": "colossalai",
    "huggingface-accelerate": "accelerate",
    "megatron-deepspeed": "deepspeed",
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "nemo": "megatron-bridge",
    "bridge": "megatron-bridge",
    "titan": "torchtitan",
    "native": "pytorch",
    "torch": "pytorch",
}
# Taken where nobody names one and it can run the plan.
PREFERRED = "megatron"


def by_preference() -> list[str]:
    """All names, the preferred one first."""
    return [PREFERRED, *(name for name in FRAMEWORKS if name != PREFERRED)]


def get(name: str) -> Framework:
    """The framework of that name or alias.

    Raises cost_models.catalog.names.UnknownName with the nearest names.
    """
    known = {**{key: key for key in FRAMEWORKS}, **ALIASES}
    framework: Framework = import_module(FRAMEWORKS[resolve(name, known, "framework")]).FRAMEWORK
    return framework
