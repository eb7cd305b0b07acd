"""Primus's own keys, besides the attributes of Megatron-LM's parser, and the values of its presets.

Sources: primus/configs/modules and primus/configs/models/megatron (fd1eeab).
"""

from __future__ import annotations

from typing import Any

from cost_models.package_files import table

OVERRIDES = "modules.pre_trainer.overrides."
_TABLE = table("planner.frameworks.primus", "keys.json")
OWN = frozenset(_TABLE["own"])
# Those of them that change the model.
SHAPING = frozenset(_TABLE["shaping"])
# Values of presets that differ from Megatron-LM's defaults; TRAINER and MODEL are written.
TRAINER, MODEL = "pre_trainer.yaml", "language_model.yaml"
PRESETS: dict[str, dict[str, Any]] = _TABLE["presets"]
