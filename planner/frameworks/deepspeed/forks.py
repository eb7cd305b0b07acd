"""Options of Megatron-DeepSpeed's forks that describe the training: BigScience's for BLOOM."""

from __future__ import annotations

from typing import Any

from cost_models.package_files import table
from planner.frameworks.arguments import known_arguments

_PACKAGE = "planner.frameworks.deepspeed"
_TABLE = table(_PACKAGE, "forks.json")
_TOKENIZERS = known_arguments(_PACKAGE)["flags"]["--tokenizer-type"]
OPTIONS: dict[str, dict[str, Any]] = {
    "--tokenizer-type": _TOKENIZERS | {"choices": [*_TOKENIZERS["choices"], *_TABLE["tokenizers"]]},
    **_TABLE["flags"],
}
# Options that only BigScience's launches have.
BIGSCIENCE: list[str] = _TABLE["bigscience"]
# --position-embedding-type -> position of the model spec.
POSITIONS = {
    "rotary": "rope",
    "rope": "rope",
    "absolute": "learned",
    "learned_absolute": "learned",
    "alibi": "none",
}
