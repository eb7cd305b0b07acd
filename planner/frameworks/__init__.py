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
    name: f"planner.frameworks.{name.replace('-', '_')}"
    for name in (
        "megatron", "torchtitan", "megatron-bridge", "deepspeed", "pytorch", "nanotron",
        "colossalai", "accelerate", "mindspeed", "primus", "gpt-neox", "maxtext", "slime", "verl",
        "llama-factory", "trl", "axolotl", "torchtune", "unsloth",
    )
}  # fmt: skip
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
