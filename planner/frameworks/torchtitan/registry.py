"""torchtitan's own registries: model sizes of its flavors, settings of its config functions.

registry.json was read from torchtitan 0.3.0 (models/*/__init__.py and config_registry.py); a test
compares it with the installed package.
"""

from __future__ import annotations

from typing import Any

from cost_models.package_files import table
from planner.frameworks.python.static_values import Call, Value

# Section of Trainer.Config -> its class, created when a statement sets one of its fields.
SECTIONS: dict[str, str] = table("planner.frameworks.torchtitan", "fields.json")["sections"]


def document() -> dict[str, Any]:
    """registry.json: fields with their defaults, flavors, and config functions by package."""
    return table("planner.frameworks.torchtitan", "registry.json")


def hidden_dim(call: Call) -> Value:
    """compute_ffn_hidden_dim of torchtitan.models.common.feed_forward."""
    words: dict[str, Value] = {
        "dim": None,
        "multiple_of": 1,
        "ffn_dim_multiplier": None,
        **call.kwargs,
    }
    width = call.args[0] if call.args else words["dim"]
    factor, multiple = words["ffn_dim_multiplier"], words["multiple_of"]
    numbers = (width, multiple, 1 if factor is None else factor)
    if not all(isinstance(n, int | float) and 0 < n < 1e9 for n in numbers):
        return call
    found = int(2 * 4 * width / 3)
    if factor is not None:
        found = int(factor * found)
    return multiple * ((found + multiple - 1) // multiple)


def library(call: Call) -> Value:
    """The value of a call: a Trainer.Config, the width of an MLP, or else the call itself."""
    parts = call.name.split(".")
    if parts[-1] == "compute_ffn_hidden_dim":
        return hidden_dim(call)
    if parts[:2] == ["torchtitan", "models"] and parts[3:-1] == ["config_registry"]:
        found = document()["configs"].get(parts[2], {}).get(parts[-1])
        if found is not None:
            return config(parts[2], found, call.line)
    return call


def config(package: str, stored: dict[str, Any], line: int) -> Call:
    """The Trainer.Config that a config function returns."""
    registry = Call(f"torchtitan.models.{package}.model_registry", line)
    registry.args = (stored["flavor"],)
    for name, value in stored.get("model", {}).items():
        if name == "converters":
            value = [
                Call(f"torchtitan.components.quantization.{one}", line, kwargs=dict(words))
                for one, words in value
            ]
        registry.set(name, value, line)
    result = Call("torchtitan.trainer.Trainer.Config", line)
    result.set("model_spec", registry, line)
    checkpoint = stored["activation_checkpoint"]
    result.set(
        "activation_checkpoint", None if checkpoint is None else Call(checkpoint, line), line
    )
    result.set("loss", Call(stored["loss"], line), line)
    for section, words in stored["settings"].items():
        result.set(section, Call(SECTIONS[section], line, kwargs=dict(words)), line)
        for name in words:
            result.kwargs[section].lines[name] = line
    return result


def missing(call: Call, name: str) -> Value:
    """A new section for a Trainer.Config that lacks it; None for other attributes."""
    if call.short == "Trainer.Config" and name in SECTIONS:
        return Call(SECTIONS[name], call.line)
    return None
