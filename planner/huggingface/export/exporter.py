"""Writes a ModelSpec as a config.json from which a family of transformers builds it, if one can.

Each family has a function for its keys; a config counts only if reading it gives the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from pydantic import ValidationError

from cost_models.spec import ModelSpec
from planner.huggingface.config import ModelImportError
from planner.huggingface.export.patterned import FORMS, Form, forms
from planner.huggingface.export.shared_keys import Fields, Keys, layers_of, usual
from planner.huggingface.families.registry import FAMILIES
from planner.huggingface.importer import model_from_config


def _llama(model: ModelSpec) -> Keys:
    return usual(model) | {
        "attention_bias": model.attention_output_bias,
        "mlp_bias": model.mlp_bias,
    }


def _window(model: ModelSpec) -> Keys:
    return {"sliding_window": model.sliding_window}


def _layer_types(model: ModelSpec) -> Keys:
    """The attention type of every layer, written out since families have different defaults."""
    period = model.full_attention_period
    slides = model.sliding_window is not None
    return {
        "layer_types": [
            "sliding_attention"
            if slides and (period is None or (layer + 1) % period)
            else "full_attention"
            for layer in range(model.num_layers)
        ]
    }


def _mistral(model: ModelSpec) -> Keys:
    return usual(model) | _window(model)


def _qwen(model: ModelSpec) -> Keys:
    if model.sliding_window is None:
        return usual(model) | {"use_sliding_window": False}
    window = {"use_sliding_window": True, **_window(model), **_layer_types(model)}
    return usual(model) | window


def _qwen3(model: ModelSpec) -> Keys:
    return _qwen(model) | {"attention_bias": model.attention_output_bias}


def _olmo2(model: ModelSpec) -> Keys:
    return usual(model) | {"attention_bias": model.attention_output_bias}


def _mixtral(model: ModelSpec) -> Keys:
    moe = model.moe
    if moe is None:
        return {}
    return _mistral(model) | {
        "intermediate_size": moe.expert_ffn_hidden_size,
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
    }


def _gpt_oss(model: ModelSpec) -> Keys:
    return _mixtral(model) | _layer_types(model) | {"attention_bias": model.attention_output_bias}


def _qwen2_moe(model: ModelSpec) -> Keys:
    moe = model.moe
    if moe is None:
        return {}
    return usual(model) | {
        "use_sliding_window": False,
        "qkv_bias": model.qkv_bias,
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_ffn_hidden_size,
        "shared_expert_intermediate_size": moe.shared_expert_ffn_hidden_size,
        "decoder_sparse_step": moe.layer_frequency,
        "mlp_only_layers": list(range(moe.num_dense_layers)),
        # As in the published models that share this code; without it the routing weights of a token
        # do not sum to one.
        "norm_topk_prob": True,
    }


def _qwen3_moe(model: ModelSpec) -> Keys:
    return _qwen2_moe(model) | {"attention_bias": model.attention_output_bias}


def _deepseek_v3(model: ModelSpec) -> Keys:
    moe, mla = model.moe, model.mla
    if moe is None or mla is None:
        return {}
    ffn = moe.expert_ffn_hidden_size
    return usual(model) | {
        "head_dim": mla.qk_rope_head_dim,
        "attention_bias": model.attention_output_bias,
        "kv_lora_rank": mla.kv_lora_rank,
        "q_lora_rank": mla.q_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": ffn,
        "n_shared_experts": moe.shared_expert_ffn_hidden_size // ffn,
        "first_k_dense_replace": moe.num_dense_layers,
        "n_group": moe.num_groups or 1,
        "topk_group": moe.top_k_groups or 1,
    }


def _gpt2(model: ModelSpec) -> Keys:
    return {
        "n_embd": model.hidden_size,
        "n_inner": model.ffn_hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_attention_heads,
        "n_positions": model.max_position_embeddings,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
    }


# Simplest first: a model is written as the first family that can represent it.
WRITERS: dict[str, Callable[[ModelSpec], Keys]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen,
    "qwen3": _qwen3,
    "olmo2": _olmo2,
    "gpt2": _gpt2,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
}
# Fields that do not change the weights of the model that transformers builds.
NO_WEIGHTS = {"name", "max_position_embeddings", "numerics"}
# Further such fields, for families without a key for them: a router's buffer, and the placement of
# experts, which the layer pattern gives.
WITHOUT_KEYS = {
    "moe.score_correction_bias",
    "moe.num_dense_layers",
    "moe.layer_frequency",
    "moe.layer_offset",
}


@lru_cache(maxsize=64)
def config_of(model: ModelSpec) -> Keys | None:
    """The config.json of the first family that builds exactly this model; None: there is none."""
    if model.layer_pattern:
        found = (config for _, config, differing in _patterned(model) if not differing)
        return next(found, None)
    for family in WRITERS:
        config = _config(model, family)
        if not _differences(model, config):
            return config
    return None


def has_buffers(config: Keys) -> bool:
    """Whether the family of a model with a layer pattern has buffers besides parameters."""
    form = FORMS.get(config["model_type"])
    return form is not None and form.buffers


def _patterned(model: ModelSpec) -> Iterator[tuple[str, Keys, tuple[str, ...]]]:
    """Families with layer patterns: (name, config of the model, fields that it gets wrong)."""
    for family, config, fields, form in forms(model):
        yield family, config, _wrong_fields(model, fields, form)


def _wrong_fields(model: ModelSpec, fields: Fields, form: Form) -> tuple[str, ...]:
    """Fields in which the model that a family builds differs; all fields if it builds none."""
    try:
        built = ModelSpec(**fields)
    except ValidationError:
        return tuple(ModelSpec.model_fields)
    one, other = (_comparable(each, form) for each in (model, built))
    return tuple(sorted(name for name in one if one[name] != other.get(name)))


def _comparable(model: ModelSpec, form: Form) -> Keys:
    """Every field that affects the weights or the layer pattern."""
    blocks = [[block.model_dump() for block in layer] for layer in layers_of(model)]
    kinds = {block["kind"] for layer in blocks for block in layer}
    for layer in blocks:
        for block in layer:
            if form.bare and "rope" in block:
                block["rope"] = False
            if block["kind"] in ("attention", "mlp"):
                _resolve(block, model)
    fields = _flat(model) | {"layer_pattern": blocks}
    unused = {"position"} if form.bare else set[str]()
    if not kinds & {"attention", "latent_attention"}:
        unused |= {"num_attention_heads", "num_query_groups", "head_dim"}
    if "mlp" not in kinds:
        unused |= {"ffn_hidden_size", "mlp_bias"}
    if not kinds & {"mlp", "experts"}:
        unused |= {"gated_mlp"}
    unused |= WITHOUT_KEYS
    return {name: value for name, value in fields.items() if name not in unused}


def _resolve(block: Keys, model: ModelSpec) -> None:
    """Fill in the options that a block takes from its model."""
    own = {
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "head_dim": model.head_dim,
        "sinks": model.attention_sinks,
        "qk_norm": model.qk_norm,
        "width": model.ffn_hidden_size,
        "gated": model.gated_mlp,
        "bias": model.mlp_bias,
    }
    block |= {name: own[name] for name in block if block[name] is None and name in own}


def nearest_family(model: ModelSpec) -> tuple[str, tuple[str, ...]]:
    """The closest family, and the fields in which its model differs from this one."""
    if model.layer_pattern:
        family, _, differing = min(_patterned(model), key=lambda found: len(found[2]))
        return family, differing
    distances = {family: _differences(model, _config(model, family)) for family in WRITERS}
    family = min(distances, key=lambda name: len(distances[name]))
    return family, distances[family]


def _config(model: ModelSpec, family: str) -> Keys:
    keys = WRITERS[family](model)
    architecture = FAMILIES[family].architectures[0]
    return {"model_type": family, "architectures": [architecture], **keys}


def _differences(model: ModelSpec, config: Keys) -> tuple[str, ...]:
    """Fields in which the config's model differs, nested ones as moe.FIELD or mla.FIELD."""
    try:
        read = model_from_config(config).model
    except ModelImportError as error:
        return tuple(problem.pointer for problem in error.problems) * 9
    return tuple(
        sorted(name for name, value in _flat(model).items() if _flat(read).get(name) != value)
    )


def _flat(model: ModelSpec) -> Keys:
    """Every field that affects the weights, by dotted name."""
    fields = model.model_dump(exclude=NO_WEIGHTS)
    if model.position == "learned":
        fields["max_position_embeddings"] = model.max_position_embeddings
    if "dense" not in model.feed_forwards:
        del fields["ffn_hidden_size"]
    if model.mla is not None:
        del fields["head_dim"]
    for part in ("moe", "mla"):
        inner = fields.pop(part)
        fields[part] = inner is not None
        fields |= {f"{part}.{name}": value for name, value in (inner or {}).items()}
    # The planner's assumption about the router's balance, not part of the model.
    fields.pop("moe.imbalance_factor", None)
    return fields
