"""LoRA settings of trainers on Megatron-Core and transformers, as fields of a TrainingSpec."""

from __future__ import annotations

import re
from typing import Any, get_args

from cost_models.adapters import AdapterTarget
from cost_models.spec import ModelSpec
from planner.frameworks.read_results import Setting, Unreadable

ALL = "all-linear"
# Module name in Megatron-Bridge's CanonicalLoRA -> module name in transformers.
CANONICAL = {
    "linear_q": "q_proj", "linear_k": "k_proj", "linear_v": "v_proj",
    "linear_fc1_gate": "gate_proj", "linear_fc1_up": "up_proj",
}  # fmt: skip
_LATENT = (
    "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj",
    "linear_proj", "linear_fc1", "linear_fc2",
)  # fmt: skip
_PLAIN = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def adapter_fields(
    model: ModelSpec, rank: int, targets: Setting | None, dropout: float
) -> dict[str, Any]:
    """The TrainingSpec fields for LoRA of this rank; empty for rank 0.

    targets: names of modules, or all-linear; None: every linear layer.  Raises Unreadable for a
    module whose adapters have no cost model.
    """
    if not rank:
        return {}
    every = _LATENT if model.mla is not None else _PLAIN
    said = re.findall(r"[\w-]+", str(targets.value)) if targets is not None else [ALL]
    names = list(every) if said == [ALL] else [CANONICAL.get(name, name) for name in said]
    known = get_args(AdapterTarget)
    for name in names:
        if name not in known and targets is not None:
            text = (
                f"{targets.name}: adapters at {name[:60]!r} are not costed, only {', '.join(known)}"
            )
            raise Unreadable(text, targets.file, targets.line)
    return {"lora_rank": rank, "lora_targets": tuple(names), "lora_dropout": dropout}
