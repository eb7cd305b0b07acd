"""The adapters (LoRA) of a published run: from its columns, else its model's name and its notes."""

from __future__ import annotations

import re
from typing import Any

from planner.evidence.published_runs.runs import Run

# "q_lora 1536" is a dimension of latent attention, which the underscore tells apart.
_LORA = re.compile(r"\b(q?)lora\b", re.IGNORECASE)
_RANK = re.compile(r"\b(?:rank|dim|r)\s*[:=]?\s*(\d{1,4})\b", re.IGNORECASE)
_DROPOUT = re.compile(r"\bdropout (0?\.\d+)")
# "targets ['q_proj', 'v_proj']", "default target q,v"; "targets all" names none.
_TARGETS = re.compile(r"\btargets? (?:modules )?\[?((?:[\"']?[a-z]\w*[\"']?,? ?)+)")
_ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# LitGPT configurations that adapt all matrices (config_hub/finetune); the others its defaults.
_ADAPTS_ALL = re.compile(r"gemma|phi-[23]\b|tinyllama")
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
    ("litgpt|lit-gpt", "LitGPT's defaults: queries and values", {
        "lora_rank": 8, "lora_targets": ("q_proj", "v_proj")}),
    ("torchtune", "torchtune's configurations", {
        "lora_rank": 8, "lora_targets": (*(name for name in _ALL if name != "k_proj"),)}),
    ("", "PEFT's defaults on all matrices", {"lora_rank": 8, "lora_targets": _ALL}),
)  # fmt: skip


# What PEFT's other methods train: norms (tuners/ln_tuning), or keys and values before those of the
# sequence, which adapters of their matrices are the nearest to (tuners/prefix_tuning).
_ALL_BUT_NORMS = ("embedding", "mixers", "feed_forwards", "routers", "head")
_PREFIX = {"lora_rank": 8, "lora_targets": ("k_proj", "v_proj")}


def _other_method(model: str) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """What a method trains that is no kind of adapter of matrices; None where it is one."""
    if re.search(r"\bln_tuning\b", model):
        return {"frozen": _ALL_BUT_NORMS}, ("norms alone are trained",)
    if re.search(r"\bprefix", model):
        return dict(_PREFIX), ("prefix tuning: taken as adapters of keys and values",)
    return None


def adapters_of(run: Run) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The training fields of a run's adapters (none if it trains all weights), and assumptions."""
    text = f"{run['model']} ; {run.notes}"
    method, lora = run["method"].lower(), _LORA.search(text)
    # Tables say "full" also of what they call "[LoRA]": the name wins.
    named = _LORA.search(run["model"])
    if (method == "full" and not named) or (not method and lora is None):
        return {}, ()
    if other := _other_method(run["model"].lower()):
        return other
    label, fields = _recipe(run)
    fields.update(_stated_fields(run, text[lora.start() :] if lora else ""))
    quantized = f"{run['quantization']} {text}"
    if method == "qlora" or (lora and lora.group(1)) or re.search(r"nf4|int4|4-bit", quantized):
        fields["frozen_dtype"] = "nf4"
    notes = [f"adapters of rank {fields['lora_rank']}: {label} where not stated"]
    if method not in ("", "full", "lora", "qlora"):
        notes.append(f"{method}: taken as LoRA, whose weights are frozen too")
    return fields, tuple(notes)


def _recipe(run: Run) -> tuple[str, dict[str, Any]]:
    """What the software adapts by itself, and how that is called."""
    software = f"{run['stack']} {run.source_key}".lower()
    label, fields = next(
        (label, dict(fields)) for pattern, label, fields in _RECIPES if re.search(pattern, software)
    )
    if "config_hub/finetune" in run["source"] and _ADAPTS_ALL.search(run["model"].lower()):
        label, fields["lora_targets"] = "LitGPT's configuration: all matrices", _ALL
    return label, fields


def _stated_fields(run: Run, text: str) -> dict[str, Any]:
    """What the row states of its adapters; text: its notes from where it names them."""
    rank, dropout = _RANK.search(text), _DROPOUT.search(run.notes)
    stated = {
        "lora_rank": run.integer("lora_rank") or (rank and int(rank.group(1))),
        "lora_targets": _named_targets(run.notes),
        "lora_dropout": dropout and float(dropout.group(1)),
    }
    return {field: value for field, value in stated.items() if value}


def _named_targets(notes: str) -> tuple[str, ...]:
    """The matrices that the notes name, by Hugging Face's names."""
    match = _TARGETS.search(notes.lower())
    names = re.findall(r"\w+", match.group(1)) if match else []
    named = (name if name.endswith("_proj") else f"{name}_proj" for name in names)
    return tuple(dict.fromkeys(name for name in named if name in _ALL))
