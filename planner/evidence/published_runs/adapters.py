"""The adapters (LoRA) of a published run, from its model's name and its notes."""

from __future__ import annotations

import re
from typing import Any

from planner.evidence.published_runs.runs import Run

# "q_lora 1536" is a dimension of latent attention, which the underscore tells apart.
_LORA = re.compile(r"\b(q?)lora\b", re.IGNORECASE)
_RANK = re.compile(r"\b(?:rank|dim|r)\s*[:=]?\s*(\d{1,4})\b", re.IGNORECASE)
_ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_ATTENTION = ("linear_qkv", "linear_proj")
# Adapters by software, where the row does not say: MLPerf's reference of llama2_70b_lora (rules:
# rank 16, dropout 0.1, attention's matrices); Automodel's benchmark recipes (llm_benchmark/*peft*);
# NeMo's and Bridge's LoRA class (32); PEFT's own rank is 8, its common targets all matrices.
_RECIPES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("mlperf", "MLPerf's reference", {
        "lora_rank": 16, "lora_targets": _ATTENTION, "lora_dropout": 0.1}),
    ("automodel|fsdp2-te", "Automodel's recipes", {
        "lora_rank": 16, "lora_targets": _ALL}),
    ("nemo|bridge|megatron|pax", "NeMo's defaults", {"lora_rank": 32}),
    ("", "PEFT's defaults on all matrices", {"lora_rank": 8, "lora_targets": _ALL}),
)  # fmt: skip


def adapters_of(run: Run) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The training fields of a run's adapters (none if it trains all weights), and assumptions."""
    said = f"{run['model']} ; {run.notes}"
    lora = _LORA.search(said)
    if lora is None:
        return {}, ()
    software = f"{run['stack']} {run.source_key}".lower()
    label, fields = next(
        (label, dict(fields)) for pattern, label, fields in _RECIPES if re.search(pattern, software)
    )
    if rank := _RANK.search(said[lora.start() :]):
        fields["lora_rank"] = int(rank.group(1))
    if lora.group(1) or re.search(r"nf4|4-bit", said, re.IGNORECASE):
        fields["frozen_dtype"] = "nf4"
    return fields, (f"adapters of rank {fields['lora_rank']}: {label} where not stated",)
