"""Families of the GPT-2 and GPT-3 years: layer norms with biases, key names of their own."""

from __future__ import annotations

from planner.huggingface.config import HEADS, TOKENS, WIDTH, Config
from planner.huggingface.families.shared_fields import (
    Fields,
    attention_bias,
    linear_biases,
    mha,
    shape,
)


def _gpt2_shape(config: Config, *, tied: bool, dropout: float) -> Fields:
    """The keys of GPT-2, which may also be given under the usual names."""
    fields = shape(
        config,
        tied=tied,
        hidden=("n_embd", "hidden_size"),
        layers=("n_layer", "num_hidden_layers"),
        heads=("n_head", "num_attention_heads"),
    )
    fields = mha(config, fields)
    fields["ffn_hidden_size"] = _four_times(config, "n_inner", fields["hidden_size"])
    fields["hidden_dropout"] = config.probability("resid_pdrop", dropout)
    fields["attention_dropout"] = config.probability("attn_pdrop", dropout)
    return fields


def _four_times(config: Config, name: str, hidden: int) -> int:
    return config.count(name, most=WIDTH, default=4 * hidden, because="4 hidden_size")


def _learned(config: Config, *names: str, default: int, extra_rows: int = 0) -> Fields:
    rows = config.count(*names, most=TOKENS - extra_rows, default=default)
    return {"position": "learned", "max_position_embeddings": rows + extra_rows}


def gpt2(config: Config) -> Fields:
    positions = _learned(config, "n_positions", "max_position_embeddings", default=1024)
    return _gpt2_shape(config, tied=True, dropout=0.1) | linear_biases(True) | positions


def gpt_bigcode(config: Config) -> Fields:
    fields = gpt2(config)
    if config.flag("multi_query", True):
        fields["num_query_groups"] = 1
    return fields


def gptj(config: Config) -> Fields:
    return _gpt2_shape(config, tied=False, dropout=0.0) | {
        "mlp_bias": True,
        "lm_head_bias": True,
        "norms_per_layer": 1,
        "parallel_residual": True,
    }


def gpt_neox(config: Config) -> Fields:
    fields = mha(config, shape(config, tied=False)) | attention_bias(config, True)
    return fields | {
        "ffn_hidden_size": config.count("intermediate_size", most=WIDTH),
        "mlp_bias": True,
        "parallel_residual": config.flag("use_parallel_residual", True),
        "hidden_dropout": config.probability("hidden_dropout", 0.0),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def opt(config: Config) -> Fields:
    """OPT; 350m is refused: it projects its embeddings and has no final norm."""
    fields = mha(config, shape(config, tied=True))
    hidden = fields["hidden_size"]
    config.require("word_embed_proj_dim", hidden, "embeddings are as wide as the layers")
    config.require("do_layer_norm_before", True, "the final norm is always there")
    config.require("_remove_final_layer_norm", False, "the final norm is always there")
    config.require("layer_norm_elementwise_affine", True, "norms have parameters")
    return {
        **fields,
        # The first two rows of the table are for padding.
        **_learned(config, "max_position_embeddings", default=2048, extra_rows=2),
        **linear_biases(config.flag("enable_bias", True)),
        "ffn_hidden_size": config.count("ffn_dim", most=WIDTH),
        "hidden_dropout": config.probability("dropout", 0.1),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def bloom(config: Config) -> Fields:
    fields = shape(
        config,
        tied=True,
        hidden=("n_embed", "hidden_size"),
        layers=("n_layer", "num_hidden_layers"),
        heads=("n_head", "num_attention_heads"),
    )
    return {
        **mha(config, fields),
        **linear_biases(True),
        "ffn_hidden_size": 4 * fields["hidden_size"],
        "embedding_norm": True,
        "position": "alibi",
        "hidden_dropout": config.probability("hidden_dropout", 0.0),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def falcon(config: Config) -> Fields:
    """Falcon: 7B shares one key/value head; 40B and 180B have groups and two parallel norms."""
    fields = mha(config, shape(config, tied=True))
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    new = config.flag("new_decoder_architecture", False)
    if new:
        fields["num_query_groups"] = config.count(
            "num_kv_heads", most=HEADS, default=heads, because="num_attention_heads"
        )
    elif config.flag("multi_query", True, null=False):
        fields["num_query_groups"] = 1
    parallel = config.flag("parallel_attn", True, null=False)
    norms = 2
    if parallel:
        norms = config.count("num_ln_in_parallel_attn", most=2, default=2 if new else 1)
    return fields | {
        **linear_biases(config.flag("bias", False)),
        "ffn_hidden_size": _four_times(config, "ffn_hidden_size", hidden),
        "norms_per_layer": norms,
        "parallel_residual": parallel,
        "position": "alibi" if config.flag("alibi", False) else "rope",
        "hidden_dropout": config.probability("hidden_dropout", 0.0),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def mpt(config: Config) -> Fields:
    fields = mha(
        config,
        shape(config, tied=True, hidden=("d_model",), layers=("n_layers",), heads=("n_heads",)),
    )
    config.require("expansion_ratio", 4, "the MLP is 4 d_model wide")
    config.require("no_bias", True, "no layer has a bias")
    attention = config.nested("attn_config")
    attention.require("alibi", True, "positions are ALiBi")
    attention.require("attn_type", "multihead_attention", "key/value heads are not shared")
    attention.require("qk_ln", False, "queries and keys are not normed")
    return fields | {
        "ffn_hidden_size": 4 * fields["hidden_size"],
        "norm_bias": False,
        "position": "alibi",
        "hidden_dropout": config.probability("resid_pdrop", 0.0),
        "attention_dropout": attention.probability("attn_pdrop", 0.0),
    }
