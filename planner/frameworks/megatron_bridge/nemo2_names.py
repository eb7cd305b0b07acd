"""Names of NeMo 2, and those of Megatron-Bridge and of the presets for the same things."""

from __future__ import annotations

from typing import Any

from cost_models.package_files import table

_TABLE = table("planner.frameworks.megatron_bridge", "nemo2_names.json")
# The class of a model's configuration -> its preset.
MODELS: dict[str, str] = _TABLE["models"]
# Prefix of a launch's key -> the section of Bridge's container.
GROUPS: dict[str, str] = _TABLE["groups"]
KEYS: dict[str, str] = _TABLE["keys"]
# Argument of a recipe -> the key in Bridge's container; other arguments do not affect a step.
WORDS: dict[str, str] = _TABLE["words"]
# NeMo 2's function or class of mixed precision -> that of Bridge.
PRECISIONS: dict[str, str] = _TABLE["precisions"]
DEFAULTS: dict[str, Any] = _TABLE["defaults"]
