"""Families of the GPT-2 and GPT-3 years: layer norms with biases, key names of their own."""

from __future__ import annotations

from planner.huggingface.config import HEADS, TOKENS, Config
from planner.huggingface.families import attention, rows
from planner.huggingface.families.attention import BIASED, DROPOUT, HIDDEN_DROPOUT, SHAPE, mha
from planner.huggingface.families.rows import Fields, FixedKey, Key, family

FOUR_TIMES = rows.Derived(lambda fields: 4 * fields["hidden_size"], "4 hidden_size")
ALIBI: Fields = {"position": "alibi"}
LEARNED: Fields = {"position": "learned"}


def _four_times(config: Config, fields: Fields) -> Fields:
    return {"ffn_hidden_size": 4 * fields["hidden_size"]}


# The keys of GPT-2, which may also be given under the usual names.
N_SHAPE = SHAPE.spelled(
    num_hidden_layers="n_layer num_hidden_layers",
    hidden_size="n_embd hidden_size",
    num_attention_heads="n_head num_attention_heads",
)
GPT2 = rows.Table(
    N_SHAPE,
    mha,
    Key("n_inner", "ffn_hidden_size", FOUR_TIMES),
    attention.RESIDUAL_DROPOUT,
    rows.Hook(keys=lambda model: {"embd_pdrop": model.hidden_dropout}),
    Key("attn_pdrop", "attention_dropout", 0.0),
)
GPT2_POSITIONS = rows.Table(
    LEARNED,
    Key("n_positions max_position_embeddings", "max_position_embeddings", 1024, null=False),
    BIASED,
)


def _opt_positions(config: Config, fields: Fields) -> Fields:
    """The first two rows of the table are for padding."""
    rows = config.count("max_position_embeddings", most=TOKENS - 2, default=2048)
    return {"position": "learned", "max_position_embeddings": rows + 2}


def _falcon(config: Config, fields: Fields) -> Fields:
    """7B shares one key/value head; 40B and 180B have groups and two parallel norms."""
    new = config.flag("new_decoder_architecture", False)
    found: Fields = {}
    if new:
        heads = fields["num_attention_heads"]
        found["num_query_groups"] = config.count(
            "num_kv_heads", most=HEADS, default=heads, because="num_attention_heads"
        )
    elif config.flag("multi_query", True, null=False):
        found["num_query_groups"] = 1
    parallel = config.flag("parallel_attn", True, null=False)
    norms = 2
    if parallel:
        norms = config.count("num_ln_in_parallel_attn", most=2, default=2 if new else 1)
    return found | {"norms_per_layer": norms, "parallel_residual": parallel}


FAMILIES: dict[str, rows.Family] = {
    "bloom": family(
        "BloomForCausalLM", N_SHAPE.spelled(n_embd="n_embed hidden_size"), mha, BIASED, _four_times,
        ALIBI, {"embedding_norm": True}, HIDDEN_DROPOUT, DROPOUT,
        tie_word_embeddings=True,
    ),
    "falcon": family(
        "FalconForCausalLM", SHAPE, mha, _falcon, Key("bias", attention.EVERY_BIAS, False),
        Key("ffn_hidden_size", "ffn_hidden_size", FOUR_TIMES),
        Key("alibi", "position", False, means=("alibi", "rope")), HIDDEN_DROPOUT, DROPOUT,
        tie_word_embeddings=True,
    ),
    "gpt2": family(
        "GPT2LMHeadModel", GPT2_POSITIONS, GPT2,
        tie_word_embeddings=True, resid_pdrop=0.1, attn_pdrop=0.1,
    ),
    "gpt_bigcode": family(
        "GPTBigCodeForCausalLM", GPT2_POSITIONS, GPT2,
        Key("multi_query", "num_query_groups", True, means=(1, None)),
        tie_word_embeddings=True, resid_pdrop=0.1, attn_pdrop=0.1,
    ),
    "gpt_neox": family(
        "GPTNeoXForCausalLM", SHAPE, mha, attention.ATTENTION_BIAS, attention.FFN,
        {"mlp_bias": True},
        Key("use_parallel_residual", "parallel_residual", True), HIDDEN_DROPOUT, DROPOUT,
        attention_bias=True,
    ),
    "gptj": family(
        "GPTJForCausalLM", GPT2, attention.PARALLEL, {"mlp_bias": True, "lm_head_bias": True},
    ),
    "mpt": family(
        "MptForCausalLM MPTForCausalLM",
        SHAPE.spelled(
            num_hidden_layers="n_layers", hidden_size="d_model", num_attention_heads="n_heads",
        ),
        mha, FixedKey("expansion_ratio", 4, "the MLP is 4 d_model wide"),
        FixedKey("no_bias", True, "no layer has a bias"),
        FixedKey("attn_config/alibi", True, "positions are ALiBi"),
        FixedKey("attn_config/attn_type", "multihead_attention", "key/value heads are not shared"),
        FixedKey("attn_config/qk_ln", False, "queries and keys are not normed"), _four_times, ALIBI,
        {"norm_bias": False}, attention.RESIDUAL_DROPOUT,
        Key("attn_config/attn_pdrop", "attention_dropout", 0.0),
        tie_word_embeddings=True,
    ),
    "opt": family(  # 350m is refused: it projects its embeddings and has no final norm
        "OPTForCausalLM", SHAPE, mha,
        FixedKey(
            "word_embed_proj_dim", lambda fields: fields["hidden_size"],
            "embeddings are as wide as the layers",
        ),
        FixedKey("do_layer_norm_before", True, "the final norm is always there"),
        FixedKey("_remove_final_layer_norm", False, "the final norm is always there"),
        FixedKey("layer_norm_elementwise_affine", True, "norms have parameters"), _opt_positions,
        Key("enable_bias", attention.EVERY_BIAS, True), Key("ffn_dim", "ffn_hidden_size"),
        Key("dropout", "hidden_dropout", 0.1), DROPOUT,
        tie_word_embeddings=True,
    ),
    "phi-msft": family(  # Phi-1.5 and Phi-2 as first published, with the key names of GPT-2
        "PhiForCausalLM MixFormerSequentialForCausalLM",
        SHAPE.spelled(
            num_hidden_layers="n_layer", hidden_size="n_embd", num_attention_heads="n_head",
        ),
        mha,
        Key(
            "n_head_kv", "num_query_groups",
            rows.Derived(lambda fields: fields["num_attention_heads"], "num_attention_heads"),
        ),
        Key("n_inner", "ffn_hidden_size", FOUR_TIMES), BIASED, attention.PARALLEL,
        {"lm_head_bias": True},
        attention.RESIDUAL_DROPOUT, Key("attn_pdrop", "attention_dropout", 0.0),
    ),
}  # fmt: skip
