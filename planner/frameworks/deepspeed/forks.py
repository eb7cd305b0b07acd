"""Options of Megatron-DeepSpeed's forks that describe the training: BigScience's for BLOOM."""

from __future__ import annotations

from typing import Any

from planner.frameworks.arguments import known_arguments

_TOKENIZERS = known_arguments("planner.frameworks.deepspeed")["flags"]["--tokenizer-type"]
OPTIONS: dict[str, dict[str, Any]] = {
    "--tokenizer-type": _TOKENIZERS
    | {"choices": [*_TOKENIZERS["choices"], "PretrainedFromHF", "Llama2Tokenizer"]},
    "--tokenizer-name-or-path": {"kind": "store", "type": "str"},
    "--pad-vocab-size-to": {"kind": "store", "type": "int"},
    "--position-embedding-type": {
        "kind": "store",
        "type": "str",
        "choices": ["rotary", "absolute", "alibi", "learned_absolute", "rope"],
    },
    "--embed-layernorm": {"kind": "switch"},
    "--glu-activation": {"kind": "store", "type": "str"},
    "--pp-partition-method": {"kind": "store", "type": "str"},
    "--sync-tp-duplicated-parameters": {"kind": "switch"},
    "--abort-on-unmet-fused-kernel-constraints": {"kind": "switch"},
    "--kill-switch-path": {"kind": "store", "type": "str"},
}
# Options that only BigScience's launches have.
BIGSCIENCE = (
    "--pp-partition-method",
    "--embed-layernorm",
    "--sync-tp-duplicated-parameters",
    "--abort-on-unmet-fused-kernel-constraints",
    "--kill-switch-path",
)
# --position-embedding-type -> position of the model spec.
POSITIONS = {
    "rotary": "rope",
    "rope": "rope",
    "absolute": "learned",
    "learned_absolute": "learned",
    "alibi": "none",
}
