"""The model, the adapters and the allocator of a recipe with the launch's overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cost_models.blocks.latent_attention import UP
from cost_models.catalog.names import UnknownName
from cost_models.spec import ModelSpec
from planner.frameworks.lora_settings import CANONICAL, adapter_fields
from planner.frameworks.megatron_bridge.attributes import RECIPE_OVERRIDES, SHAPES
from planner.frameworks.megatron_bridge.recipes import Recipe
from planner.frameworks.read_results import Setting, StatedValue, Unreadable
from planner.huggingface import named_models

ADAPTERS = ("LoRA", "CanonicalLoRA")
LORA_RANK = 32


def adapted(values: Mapping[str, StatedValue], model: ModelSpec) -> dict[str, Any]:
    """The TrainingSpec fields for LoRA, with the defaults of peft/lora.py."""
    kind = values.get("peft")
    if kind is None or kind.value is None:
        return {}
    if kind.value not in ADAPTERS:
        text = f"peft {str(kind.value)[:40]} is not costed; {' and '.join(ADAPTERS)} are"
        raise Unreadable(text, kind.file, kind.line)
    rank, targets = values.get("peft.dim"), values.get("peft.target_modules")
    dropout = values.get("peft.dropout")
    apart = (*CANONICAL, "linear_proj", "linear_fc2") if kind.value == "CanonicalLoRA" else None
    names, place = (targets.value, targets) if targets is not None else (apart, kind)
    stated = None
    if names is not None:
        stated = Setting(
            name="peft.target_modules", value=str(names), file=place.file, line=place.line
        )
    if dropout is not None and not isinstance(dropout.value, int | float):
        raise dropout.unreadable(f"peft.dropout must be a number, got {str(dropout.value)[:60]!r}")
    return adapter_fields(
        model,
        whole(rank, "peft.dim") if rank else LORA_RANK,
        stated,
        float(dropout.value) if dropout else 0.0,
    )


def drop_projection_recompute(
    values: dict[str, StatedValue], model: ModelSpec, notes: list[str]
) -> None:
    """Drops recompute of the up-projections for compressed attention, which has none here.

    Megatron-Core counts it as latent attention: DeepSeek-V4's provider sets multi_latent_attention
    (deepseek_v4_bridge.py).
    """
    one = values.get("model.recompute_modules")
    kinds = {block.kind for layer in model.layer_pattern for block in layer}
    if one is None or "compressed_attention" not in kinds or UP not in (one.value or ()):
        return
    values["model.recompute_modules"] = replace(one, value=[n for n in one.value if n != UP])
    notes.append(f"recompute of {UP} in compressed attention is not costed")


def expandable(values: Mapping[str, StatedValue], environment: Mapping[str, str]) -> bool:
    """Whether torch's allocator has expandable segments; the environment overrides the recipe."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        recipe = values.get(f"env_vars.{name}")
        said = environment.get(name, str(recipe.value) if recipe else "")
        if said:
            return "expandable_segments:true" in said.lower()
    return False


def whole(one: StatedValue, key: str) -> int:
    if not isinstance(one.value, int) or isinstance(one.value, bool):
        raise one.unreadable(f"{key} must be a whole number, got {str(one.value)[:60]!r}")
    return one.value


def _capacity(values: dict[str, StatedValue], model: ModelSpec) -> dict[str, Any]:
    """The model field with the experts' capacity factor, which it removes from the values."""
    key = "model.moe_expert_capacity_factor"
    one = values.get(key)
    if one is None or one.value is None or model.moe is None:
        return {}
    if not isinstance(one.value, int | float) or isinstance(one.value, bool):
        raise one.unreadable(f"{key} must be a number, got {str(one.value)[:60]!r}")
    del values[key]
    factor = float(one.value) if one.value > 0 else None
    return {"moe": {**model.moe.model_dump(), "capacity_factor": factor}}


def _null_vocabulary(values: Mapping[str, StatedValue]) -> int | None:
    """The vocabulary size that a recipe gives its NullTokenizer, if it trains with that."""
    names = ("tokenizer_type", "use_tokenizer_vocab_size", "vocab_size")
    kind, used, tokens = (values.get(f"tokenizer.{name}") for name in names)
    own = kind and kind.value == "NullTokenizer" and used and used.value is True
    # Some recipes give the name of the model's own vocabulary size.
    if not own or not tokens or tokens.value in (None, "vocab_size"):
        return None
    return whole(tokens, "tokenizer.vocab_size")


def model_of(values: dict[str, StatedValue], recipe: Recipe, notes: list[str]) -> ModelSpec:
    """The model that a recipe names, with the launch's overrides."""
    name = values["model"]
    try:
        model = named_models.find(str(name.value))
    except UnknownName:
        text = f"{recipe.name} trains {name.value}, which is no preset: give it (--model)"
        raise Unreadable(text, name.file, name.line) from None
    changes = _capacity(values, model)
    for key, one in values.items():
        about = key.removeprefix("model.")
        if not key.startswith("model."):
            continue
        if about in SHAPES and one.value is not None:
            if _has_value(model, about, one.value):
                continue
            text = (
                f"{key} {str(one.value)[:60]} makes {name.value} another model: give it (--model)"
            )
            raise Unreadable(text, one.file, one.line)
        if about in RECIPE_OVERRIDES:
            changes[about] = whole(one, key) if one.value is not None else 0
    if (tokens := _null_vocabulary(values)) is not None:
        changes["vocab_size"] = tokens
        notes.append(f"the vocabulary is that of the recipe's NullTokenizer, {tokens} tokens")
    if changes.get("num_layers", model.num_layers) != model.num_layers and model.layer_pattern:
        raise name.unreadable(f"num_layers cannot change the layer pattern of {name.value}")
    if changes.get("mtp_num_layers") == 0:
        changes["mtp_layer"] = ()
    return ModelSpec(**{**model.model_dump(), **changes})


def _has_value(model: ModelSpec, name: str, value: Any) -> bool:
    """Whether the model has the value of an attribute that a recipe sets."""
    if name == "position_embedding_type":
        return (value in ("rope", "yarn")) == (model.position == "rope")
    if name == "kv_channels":
        return model.mla is not None or model.head_dim == value
    if name in ("num_moe_experts", "num_experts"):
        return model.moe is not None and model.moe.num_experts == value
    if name == "normalization":
        return bool(model.norm == str(value).lower())
    return bool(getattr(model, name, None) == value)
