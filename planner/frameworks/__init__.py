"""Registry of the training frameworks that a plan can be written for."""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

from cost_models import plugins
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


def _added(module: plugins.Module) -> str:
    """The name of a plugin's framework.  Raises where it is none."""
    from cost_models.runtimes import RUNTIMES
    from planner.frameworks.base import Framework

    found = plugins.attribute(module, "FRAMEWORK", Framework)
    plugins.require_unused_names([found.name], {**FRAMEWORKS, **ALIASES})
    if found.runtime not in RUNTIMES:
        raise ValueError(f"no runtime {found.runtime!r}")
    return found.name


# At the end, since they import what stands above.
for _module in plugins.modules("frameworks"):
    _name = plugins.attempt(_module.plugin.name, _module.path, partial(_added, _module))
    if _name is not None:
        FRAMEWORKS[_name] = _module.path
