"""Models of LLM Foundry: its own MPT by its widths, and those of the hub by their names.

Keys and defaults of llmfoundry/models/mpt/configuration_mpt.py, models/utils/config_defaults.py
and models/hf/hf_base.py (8c8dd48).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.spec import ModelSpec
from planner.frameworks import post_training
from planner.frameworks.accelerate import tuning
from planner.frameworks.given_values import LaunchValues, Values

MODEL = "model."
_ATTENTION, _FFN = "model.attn_config.", "model.ffn_config."
_OVERRIDES = "model.config_overrides."
_ROWS = (f"{_OVERRIDES}max_position_embeddings", f"{_OVERRIDES}n_positions")
NAME, LENGTH = "model.pretrained_model_name_or_path", "model.max_seq_len"
# Kinds of models; the older names of the first are of 2023.
_OWN, _HUB = ("mpt_causal_lm", "mosaic_gpt"), ("hf_causal_lm",)
_KERNELS = {"flash": "flash2", "triton": "flash1", "torch": "unfused"}
_FROM_HUB = {"flash_attention_2": "flash2", "sdpa": "flash", "eager": "unfused"}
# Keys of a model, also of its groups, that change neither time nor memory here.
_SAME = {
    "init_device", "init_config", "embedding_fraction", "emb_pdrop", "norm_eps", "use_cache",
    "fc_type",
    "loss_fn", "logit_scale", "softmax_scale", "clip_qkv", "alibi_bias_max", "rope_theta",
    "rope_impl", "rope_dail_config", "rope_hf_config", "pretrained", "use_auth_token",
    "trust_remote_code", "use_logits", "use_train_metrics", "add_exact_match",
    "attn_uses_sequence_id", "fused_qkv", "verbose", "tokenizer_name", "fused_moe", "cfg",
    "additional_train_metrics", "additional_eval_metrics", "should_save_peft_only",
    "shift_labels", "name", "use_pad_tok_in_ffn", "learned_pos_emb", "fc_kwargs", "task_type",
    "lora_alpha", "use_rslora", "bias", "inference_mode", "allow_embedding_resizing", "peft_type",
    "prefix_lm",
    "torch_dtype", "final_logit_softcapping", "attn_logit_softcapping",
}  # fmt: skip
_RANK = ("model.peft_config.r", "lora.args.r")
_PLACES = ("model.peft_config.target_modules", "lora.args.target_modules")
_DROPOUT = ("model.peft_config.lora_dropout", "lora.args.lora_dropout")


def model_of(values: LaunchValues, given: ModelSpec | None) -> ModelSpec:
    """The model by its kind; raises Unreadable."""
    kind = values.choice("model.name", choices=(*_OWN, *_HUB), default=_OWN[0])
    if given is not None:
        return given
    if kind in _OWN:
        return _own(values)
    named = values.path(NAME)
    model = post_training.preset(named, f"{NAME} is missing", (values.file, 0), values.assumed)
    if model.position == "learned" and values.has(*_ROWS):
        return model.model_copy(update={"max_position_embeddings": values.integer(*_ROWS)})
    return model


def own(values: Values) -> bool:
    """Whether the model's code is LLM Foundry's."""
    return (values.text("model.name") or _OWN[0]) in _OWN


def kernel(values: Values) -> str:
    """The attention kernel of the plan."""
    if own(values):
        return _KERNELS[values.choice(f"{_ATTENTION}attn_impl", choices=_KERNELS, default="flash")]
    overridden = f"{_OVERRIDES}attn_config.attn_impl"
    if values.has(overridden):
        return _KERNELS[values.choice(overridden, choices=_KERNELS)]
    if values.boolean("model.use_flash_attention_2"):
        return "flash2"
    stated = values.choice("model.attn_implementation", choices=_FROM_HUB, default="")
    if not stated and values.has("model.use_flash_attention_2"):
        # Before #1801 (April 2025) the one option chose between the two.
        values.assume("use_flash_attention_2 is off: eager attention, as before release 0.20")
        return "unfused"
    if not stated:
        values.assume("model.attn_implementation: not set, transformers takes torch's attention")
    return _FROM_HUB[stated or "sdpa"]


def adapters(values: Values) -> dict[str, Any]:
    """Fields of the training for adapters of PEFT; empty without them."""
    kind = values.text("model.peft_config.peft_type")
    if not values.has(*_RANK) and kind is None:
        return {}
    if kind is not None and kind.upper() != "LORA":
        found = values.settings["model.peft_config.peft_type"]
        raise found.unreadable(f"adapters of {kind[:40]} are not read: only those of LORA")
    listed = next((values.settings[one].value for one in _PLACES if one in values.settings), None)
    values.asked.update(_PLACES)
    return {
        "lora_rank": values.integer(*_RANK, default=8),
        "lora_targets": tuning.targets(values, listed),
        "lora_dropout": values.probability(*_DROPOUT),
    }


def _own(values: LaunchValues) -> ModelSpec:
    """MPT, whose widths are all there."""
    hidden = values.integer("model.d_model", default=2048)
    heads = values.integer("model.n_heads", default=16)
    biased = not values.boolean("model.no_bias")
    gated = values.choice(
        f"{_FFN}ffn_type", choices=("mptmlp", "mptglu", "te_ln_mlp"), default="mptmlp"
    )
    width = values.number("model.expansion_ratio", default=4.0)
    normed = "rmsnorm" if "rms" in (values.text("model.norm_type") or "") else "layernorm"
    window = values.text(f"{_ATTENTION}sliding_window_size")
    return ModelSpec(
        num_layers=values.integer("model.n_layers", default=24),
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=values.integer("model.head_dim", default=max(hidden // heads, 1)),
        num_query_groups=_groups(values, heads),
        ffn_hidden_size=values.integer(f"{_FFN}ffn_hidden_size", default=int(hidden * width)),
        gated_mlp=gated == "mptglu",
        vocab_size=values.integer("model.vocab_size", default=50_368),
        tied_embeddings=values.boolean("model.tie_word_embeddings", default=True),
        qkv_bias=values.boolean("model.attention_bias", default=biased),
        attention_output_bias=biased,
        mlp_bias=biased,
        norm=normed,
        norm_bias=biased and normed == "layernorm",
        qk_norm="full" if values.boolean(f"{_ATTENTION}qk_ln") else "none",
        hidden_dropout=values.probability("model.resid_pdrop"),
        attention_dropout=values.probability(f"{_ATTENTION}attn_pdrop"),
        sliding_window=None
        if window in (None, "-1")
        else values.integer(f"{_ATTENTION}sliding_window_size"),
        **_positions(values),
    )


def _groups(values: Values, heads: int) -> int:
    """Heads of keys and values."""
    kind = values.choice(
        f"{_ATTENTION}attn_type",
        choices=("multihead_attention", "multiquery_attention", "grouped_query_attention"),
        default="multihead_attention",
    )
    if kind.startswith("multiquery"):
        return 1
    return values.integer(f"{_ATTENTION}kv_n_heads", default=heads)


def _positions(values: Values) -> Mapping[str, Any]:
    if values.boolean(f"{_ATTENTION}alibi", "model.alibi"):
        return {"position": "alibi"}
    if values.boolean(f"{_ATTENTION}rope"):
        return {"position": "rope"}
    if not values.boolean("model.learned_pos_emb", default=True):
        return {"position": "none"}
    rows = values.integer(LENGTH, "max_seq_len", default=2048)
    return {"position": "learned", "max_position_embeddings": rows}


def refuse_others(values: Values) -> None:
    """Raise Unreadable for keys of the model that nothing has read and that may change it."""
    values.asked.update((LENGTH, f"{_OVERRIDES}max_seq_len", *_ROWS))  # the samples' length counts
    others = [
        one
        for one in values.settings.values()
        if one.name.startswith(MODEL)
        and one.name not in values.asked
        and not _SAME & set(one.name.split(".")[1:])
        and str(one.value).lower() not in ("none", "null", "false", "", "0", "0.0", "{}")
    ]
    if others:
        names = ", ".join(f"{one.name} {one.value}"[:60] for one in others[:4])
        raise others[0].unreadable(
            f"{names}: not understood, and may change what is trained; give the model (--model)"
        )
