"""Adapters in Megatron-Bridge: peft/lora.py, peft/canonical_lora.py (067f987)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from cost_models.spec import TrainingSpec
from planner.constraints import Context, Rule
from planner.frameworks.base import unsupported
from planner.frameworks.rules import PLACEHOLDER

# CanonicalLoRA's names.  LoRA adapts fused matrices by Megatron's names; CanonicalLoRA adapts q, k,
# v, gate and up separately.
CANONICAL = {
    "q_proj": "linear_q", "k_proj": "linear_k", "v_proj": "linear_v", "o_proj": "linear_proj",
    "gate_proj": "linear_fc1_gate", "up_proj": "linear_fc1_up", "down_proj": "linear_fc2",
}  # fmt: skip
_EXPERTS = {"gate_proj", "up_proj", "down_proj"}


def adapter_class(training: TrainingSpec) -> str:
    """The class of the recipe's `peft`; empty if all weights are trained."""
    if not training.lora_rank:
        return ""
    return "CanonicalLoRA" if set(training.lora_targets) <= set(CANONICAL) else "LoRA"


def _one_class(c: Context) -> bool:
    targets = set(c.training.lora_targets)
    return targets <= set(CANONICAL) or all(name.startswith("linear_") for name in targets)


def _names_match(c: Context) -> bool:
    """Whether the names of the targets match exactly the modules that the plan adapts."""
    canonical = set(c.training.lora_targets) <= set(CANONICAL)
    experts = c.model.moe is not None and bool(_EXPERTS & set(c.training.lora_targets))
    return not canonical or (not experts and c.model.mla is None)


PARTIAL_TRAINING: tuple[Rule, ...] = (
    unsupported(
        lambda c, p: not c.training.frozen,
        "no option freezes parts of a model: all weights are trained, or only adapters",
        "degrees",
    ),
    unsupported(
        lambda c, p: c.training.frozen_dtype == "as trained",
        "frozen weights keep the dtype of training, not {c.training.frozen_dtype}",
        "degrees",
    ),
    unsupported(
        lambda c, p: not c.training.lora_rank or _one_class(c),
        lambda c, p: (
            "LoRA takes Megatron's names, CanonicalLoRA q_proj to down_proj; they cannot be mixed: "
            + ", ".join(c.training.lora_targets)
        ),
        "degrees",
    ),
    unsupported(
        lambda c, p: not c.training.lora_rank or _names_match(c),
        "CanonicalLoRA also adapts routed experts by these names, and not latent attention: give "
        "Megatron's names",
        "degrees",
    ),
)


def tuning_settings(training: TrainingSpec) -> Iterator[tuple[str, str, str]]:
    """(setting, Python source, why) for training with adapters."""
    if not training.lora_rank:
        return
    names = [CANONICAL.get(name, name) for name in training.lora_targets]
    yield "peft.target_modules", json.dumps(names), "matrices with adapters"
    yield "peft.dim", str(training.lora_rank), "rank of the adapters"
    yield "peft.alpha", str(2 * training.lora_rank), PLACEHOLDER
    yield "peft.dropout", str(training.lora_dropout), "dropout before the adapters"
    yield (
        "checkpoint.pretrained_checkpoint",
        'os.environ.get("PRETRAINED_CHECKPOINT") or "pretrained"',
        "PLACEHOLDER: checkpoint of the base model",
    )
