"""Registry of the training frameworks that a plan can be written for."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from cost_models.catalog.names import resolve

if TYPE_CHECKING:
    from planner.frameworks.base import Framework

# Name -> module that defines FRAMEWORK, imported on first use.  In order of preference if the user
# names none: frameworks for training at scale, then those that are easy to start.
FRAMEWORKS: dict[str, str] = {
    "megatron": "planner.frameworks.megatron",
    "torchtitan": "planner.frameworks.torchtitan",
    "megatron-bridge": "planner.frameworks.megatron_bridge",
    "deepspeed": "planner.frameworks.deepspeed",
    "pytorch": "planner.frameworks.pytorch",
    "nanotron": "planner.frameworks.nanotron",
    "colossalai": "planner.frameworks.colossalai",
    "accelerate": "planner.frameworks.accelerate",
    "mindspeed": "planner.frameworks.mindspeed",
    "primus": "planner.frameworks.primus",
    "gpt-neox": "planner.frameworks.gpt_neox",
    "maxtext": "planner.frameworks.maxtext",
    "slime": "planner.frameworks.slime",
    "verl": "planner.frameworks.verl",
    "llama-factory": "planner.frameworks.llama_factory",
    "trl": "planner.frameworks.trl",
}
ALIASES: dict[str, str] = {
    "bridge": "megatron-bridge",
    "colossal-ai": "colossalai",
    "huggingface-accelerate": "accelerate",
    "llamafactory": "llama-factory",
    "megatron-core": "megatron",
    "megatron-deepspeed": "deepspeed",
    "megatron-lm": "megatron",
    "native": "pytorch",
    "nemo": "megatron-bridge",
    "neox": "gpt-neox",
    "titan": "torchtitan",
    "torch": "pytorch",
}
PREFERRED = next(iter(FRAMEWORKS))


@cache
def running(schedule: str) -> tuple[str, ...]:
    """The frameworks that can run a pipeline schedule."""
    return tuple(name for name in FRAMEWORKS if schedule in get(name).axes.get("schedule", ()))


def get(name: str) -> Framework:
    """The framework of that name or alias.

    Raises cost_models.catalog.names.UnknownName with the nearest names.
    """
    known = {**{key: key for key in FRAMEWORKS}, **ALIASES}
    framework: Framework = import_module(FRAMEWORKS[resolve(name, known, "framework")]).FRAMEWORK
    return framework
