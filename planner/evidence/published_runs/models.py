"""The model of a published run: a preset it names, or its family's conventions, with its dims.

What the row states always wins; what it does not state comes from the preset, else from the
family, and is listed as an assumption.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ValidationError

from cost_models.catalog.models import models
from cost_models.package_files import table
from cost_models.spec import ModelSpec
from planner.evidence.published_runs.runs import Run

_TABLE = table(__package__ or "", "families.json")
# Columns of the row and the fields of a ModelSpec they state.
DIMS: dict[str, str] = _TABLE["dims"]
# A run with its own depth or batch names the model it was cut from: "Llama3-70B [12 layers]".
_CUT = re.compile(r"\[[^\]]*\]|\([^)]*\)")


@dataclass(frozen=True)
class ReadValue:
    """What was read of a row, and what was assumed on the way."""

    value: Any
    assumptions: tuple[str, ...] = ()


def _name(run: Run) -> str:
    """What reaches logs and pages: printable, and never empty."""
    printed = "".join(c if c.isprintable() else " " for c in run["model"])
    return " ".join(_CUT.sub("", printed).split())[:200] or "model"


def model_of(run: Run) -> ReadValue:
    """The ModelSpec of a row.  Raises ValueError with what is missing or contradictory."""
    assumptions: list[str] = []
    name = _name(run)
    stated = {field: run.integer(column) for column, field in DIMS.items()}
    stated = _maxtext_scale(name, stated, assumptions)
    spec = {field: value for field, value in stated.items() if value}
    preset = _preset(name, stated)
    spec.update(_gate(run, preset, assumptions))
    base: dict[str, Any]
    if preset is not None:
        assumptions.append(f"what the row does not state of the model: preset {preset.name}")
        base = preset.model_dump(exclude={"name", "feed_forwards"})
        _cut_depth(base, spec)
    else:
        label, base = _family(name, run)
        assumptions.append(f"what the row does not state of the model: {label}")
        base = dict(base)
    base.update(spec)
    if (dropout := run.decimal("dropout")) is not None:
        base["hidden_dropout"] = base["attention_dropout"] = dropout
    if base.get("position") == "learned":
        base["max_position_embeddings"] = max(run.integer("seq_len") or 1, 1)
    missing = [f for f in ("num_layers", "hidden_size", "num_attention_heads") if not base.get(f)]
    if missing:
        raise ValueError(f"the model's {', '.join(missing)} are not stated and no preset is known")
    _unstated_widths(run, base, assumptions)
    _arch(run, base, assumptions)
    _experts(run, base, assumptions)
    if run.is_layer:
        base["num_layers"] = 1
        base["moe"] = base.get("moe") and {**base["moe"], "num_dense_layers": 0, "layer_offset": 0}
    return ReadValue(_spec(name, base), tuple(assumptions))


# MaxText's model of scale 1 (configs/base.yml): widths double in turn, from heads and MLP over the
# embedding to the layers (pyconfig.py get_individual_scales).
_MAXTEXT = {
    "num_attention_heads": (16, 2), "num_query_groups": (16, 2), "ffn_hidden_size": (7168, 2),
    "hidden_size": (2048, 1), "num_layers": (16, 0),
}  # fmt: skip


def _maxtext_scale(
    name: str, stated: dict[str, int | None], assumptions: list[str]
) -> dict[str, int | None]:
    """The dims that a model has which is named by MaxText's global_parameter_scale."""
    match = re.search(r"maxtext-(\d+)b\b", name.lower())
    if match is None or any(stated[field] for field in _MAXTEXT):
        return stated
    doublings = int(match.group(1)).bit_length() - 1
    assumptions.append(f"dims of global_parameter_scale {1 << doublings} (MaxText base.yml)")
    dims: dict[str, int | None] = {
        field: base << ((doublings + ahead) // 3) for field, (base, ahead) in _MAXTEXT.items()
    }
    return {**stated, **dims, "vocab_size": stated["vocab_size"] or 32000}


def _gate(run: Run, preset: ModelSpec | None, assumptions: list[str]) -> dict[str, bool]:
    """Whether the MLP is gated, where the row says so and the preset it names agrees."""
    gated = run.flag("gated")
    if gated is None:
        return {}
    if preset is not None and gated != preset.gated_mlp:
        assumptions.append(
            f"gated {int(preset.gated_mlp)}: of preset {preset.name}; the row prints {run['gated']}"
        )
        return {}
    return {"gated_mlp": gated}


def _spec(name: str, fields: Mapping[str, Any]) -> ModelSpec:
    try:
        return ModelSpec(name=name, **fields)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"no such model: {f'{location}: ' if location else ''}{message}") from None


def _unstated_widths(run: Run, base: dict[str, Any], assumptions: list[str]) -> None:
    """Vocabulary and MLP width by the conventions of the family's time."""
    gated = base.get("gated_mlp")
    if not base.get("vocab_size"):
        recent = 128256 if run.year >= 2024 else 32000  # Llama 3 and before
        base["vocab_size"] = recent if gated else 51200
        assumptions.append(f"vocabulary {base['vocab_size']}: not stated")
    if not base.get("ffn_hidden_size"):
        hidden = base["hidden_size"]
        # Gated MLPs of equal size: two thirds of 4h, in multiples of 256 (LLaMA).
        base["ffn_hidden_size"] = -(-8 * hidden // 768) * 256 if gated else 4 * hidden
        assumptions.append(f"MLP width {base['ffn_hidden_size']}: not stated")


def _key(name: str) -> str:
    """A name without its organisation, punctuation and case."""
    return re.sub(r"[^a-z0-9.]", "", name.rsplit("/", 1)[-1].lower())


def _preset(name: str, stated: dict[str, int | None]) -> ModelSpec | None:
    """The preset a name means: equal up to punctuation, else the longest that begins it.

    A preset counts only where the widths that the row states are its own.
    """
    key = _key(name)
    best: tuple[int, ModelSpec] | None = None
    for known, spec in _known_keys():
        fits = key == known or (len(known) >= 6 and key.startswith(known))
        if fits and _widths_agree(spec, stated) and (best is None or len(known) > best[0]):
            best = len(known), spec
    return best[1] if best else None


@cache
def _known_keys() -> tuple[tuple[str, ModelSpec], ...]:
    """The keys of every preset's names."""
    return tuple(
        (_key(alias), entry.spec) for entry in models() for alias in (entry.id, *entry.aliases)
    )


def _widths_agree(spec: ModelSpec, stated: dict[str, int | None]) -> bool:
    pairs = ((spec.hidden_size, "hidden_size"), (spec.num_attention_heads, "num_attention_heads"))
    return all(stated[field] in (None, value) for value, field in pairs)


def _cut_depth(base: dict[str, Any], spec: dict[str, Any]) -> None:
    """A shortened model keeps at most one layer less of dense ones than it has layers."""
    layers, moe = spec.get("num_layers"), base.get("moe")
    if moe and layers and moe["num_dense_layers"] >= layers:
        base["moe"] = {**moe, "num_dense_layers": layers - 1}
    if layers and layers < base["num_layers"]:
        base["mtp_num_layers"] = 0


def _family(name: str, run: Run) -> tuple[str, dict[str, Any]]:
    """The first family whose pattern the name has; sources are the families' own releases."""
    rows: list[dict[str, Any]] = _TABLE["families"]
    match = next(row for row in rows if re.search(row["name"], name.lower()))
    label, fields = match["label"], match["fields"]
    # Megatron-LM's functional tests of GPT leave its default of 0.1 (model_config.yaml).
    default = "functional_tests/test_cases/gpt/" in run["source"]
    if fields.get("hidden_dropout") and run.year >= 2024 and not default:
        # Benchmarks of Megatron-Core since 2024 train without dropout (its test scripts).
        modern = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
        return label.replace("dropout 0.1", "no dropout"), {**fields, **modern}
    return label, fields


def _arch(run: Run, base: dict[str, Any], assumptions: list[str]) -> None:
    """What the notes say of the architecture, in the table's own phrases."""
    notes = run.notes.lower()
    match = re.search(r"head[_ ]dim(?:ension)? (\d+)", f"head_dim {run['head_dim']} ; {notes}")
    if match and not base.get("mla"):
        base["head_dim"] = int(match.group(1))
    mla = re.search(r"mla \(q_lora (\d+|none), kv_lora (\d+), qk (\d+)\+(\d+), v (\d+)\)", notes)
    if mla:
        q, kv, nope, rope, v = mla.groups()
        base["mla"] = {
            "q_lora_rank": None if q == "none" else int(q), "kv_lora_rank": int(kv),
            "qk_nope_head_dim": int(nope), "qk_rope_head_dim": int(rope), "v_head_dim": int(v),
        }  # fmt: skip
        base["num_query_groups"] = base.get("num_attention_heads")
    # LitGPT copies the word table to its head (litgpt/model.py has two modules).
    if "untied" in notes or "litgpt" in run["stack"].lower():
        base["tied_embeddings"] = False
    if base.get("mla") is None and base.get("head_dim") is None and base.get("hidden_size"):
        heads = base.get("num_attention_heads")
        if heads and base["hidden_size"] % heads:
            base["head_dim"] = round(base["hidden_size"] / heads)
            assumptions.append(
                f"head dimension {base['head_dim']}: hidden size over heads, rounded"
            )


def _experts(run: Run, base: dict[str, Any], assumptions: list[str]) -> None:
    """The routed part, where the row or the preset has one."""
    columns = (("num_experts", "experts"), ("top_k", "topk"), ("expert_ffn_hidden_size", "moe_ffn"))
    stated = {field: value for field, column in columns if (value := run.integer(column))}
    notes = run.notes.lower()
    moe: dict[str, Any]
    if base.get("moe") is not None:
        moe = base["moe"] | stated
    elif stated.get("num_experts", 0) > 1:
        width = base.get("ffn_hidden_size") or 4 * (base.get("hidden_size") or 0)
        moe = {"top_k": 1, "expert_ffn_hidden_size": width} | stated
        for field, column in columns:
            if field not in stated:
                assumptions.append(f"{column} not stated: {moe[field]}")
    else:
        return
    if moe.get("num_groups") and moe["num_experts"] % moe["num_groups"]:
        moe["num_groups"] = moe["top_k_groups"] = None
    dense, layers = _dense_layers(notes), base.get("num_layers") or 1
    dense = moe.get("num_dense_layers", 0) if dense is None else dense
    moe["num_dense_layers"] = min(dense, layers - 1)
    if re.search(
        r"every (?:other|second) layer (?:is )?moe|moe (?:in )?every (?:other|second)", notes
    ):
        moe["layer_frequency"], moe["layer_offset"] = 2, 1
    moe |= _shared_expert(run, moe["expert_ffn_hidden_size"])
    base["moe"] = moe
    if moe.get("imbalance_factor", 1.0) == 1.0:
        assumptions.append("experts evenly loaded")


def _shared_expert(run: Run, width: int) -> dict[str, int]:
    """The shared experts, which count as one of their whole width."""
    if stated := run.integer("shared_ffn"):
        return {"shared_expert_ffn_hidden_size": stated}
    match = re.search(r"(\d+) shared experts?(?: \((\d+)\))?", run.notes.lower())
    if not match:
        return {}
    total = int(match.group(2)) if match.group(2) else int(match.group(1)) * width
    return {"shared_expert_ffn_hidden_size": total}


def _dense_layers(notes: str) -> int | None:
    """How many layers come before the experts; None where the notes do not say."""
    for pattern in (r"dense_layers=(\d+)", r"first (\d+) layers? dense"):
        if match := re.search(pattern, notes):
            return int(match.group(1))
    if "first layer dense" in notes:
        return 1
    return 0 if "all layers moe" in notes else None
