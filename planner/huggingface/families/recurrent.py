"""Families with other recurrences or short convolutions in most of their layers."""

from __future__ import annotations

from cost_models.spec import ModelSpec
from planner.huggingface.config import LAYERS, WIDTH, Config
from planner.huggingface.families import attention, experts, layers, mixers, rows
from planner.huggingface.families.attention import FULL, GATED
from planner.huggingface.families.experts import SAME_WIDTH, Sparse, prediction, routed
from planner.huggingface.families.layers import LINEAR, MLP, FeedForwardLayout, Kinds, Layers
from planner.huggingface.families.rows import Block, Derived, Fields, Key, Keys, Part, Table, family

# Gated delta nets, and gated attention in every fourth layer: Qwen3-Next and Qwen3.5.


def _next_feeds(config: Config, fields: Fields) -> list[Fields]:
    step = config.count("decoder_sparse_step", most=LAYERS, default=1)
    dense = layers.numbered(config, "mlp_only_layers") or set()
    places = range(fields["num_layers"])
    return [MLP if i in dense or (i + 1) % step else layers.EXPERTS for i in places]


def _next_keys(model: ModelSpec) -> Keys:
    dense = [i for i, layer in enumerate(layers.each_layer(model)) if not layers.is_sparse(layer)]
    return {"decoder_sparse_step": 1, "mlp_only_layers": dense, "norm_topk_prob": True}


def _qwen(feeds: FeedForwardLayout) -> Table:
    delta = {LINEAR: mixers.DELTA_NET, FULL: Block("attention", {"gate": "element"})}
    usual = layers.every(4, key="full_attention_interval", others=LINEAR)
    return Table(
        attention.ATTENTION_BIAS,
        attention.QK_NORM_HEAD,
        Layers(delta, usual, feeds),
        Sparse(
            Key("num_experts", "moe.num_experts"),
            Key("num_experts_per_tok", "moe.top_k"),
            experts.WIDTH,
            Key("shared_expert_intermediate_size", "moe.shared_expert_ffn_hidden_size", 512),
            {"moe.shared_expert_gate": True},
        ),
        prediction("mtp_num_hidden_layers", "num_nextn_predict_layers"),
    )


# LFM2: short convolutions, and attention in the layers that are listed.


def _lfm2_kinds(config: Config, depth: int) -> Kinds:
    full = layers.numbered(config, "full_attn_idxs")
    return [FULL if full is None or i in full else "conv" for i in range(depth)], "attention"


def _lfm2_width(config: Config, fields: Fields) -> Fields:
    """MLPs are two thirds of the stated width, rounded up, unless the file says otherwise."""
    name = "block_ff_dim" if config.states("block_ff_dim") else "intermediate_size"
    width = config.count(name, most=WIDTH)
    multiple = config.count("block_multiple_of", most=WIDTH, default=256)
    factor = config.data.get("block_ffn_dim_multiplier", 1.0)
    if factor is not None and not (type(factor) in (int, float) and 0 < factor < WIDTH):
        config.refuse("block_ffn_dim_multiplier", "must be a number above 0, or null")
        factor = None
    if config.flag("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        if factor is not None:
            width = -(-int(factor * width) // multiple) * multiple
    return {"ffn_hidden_size": width}


def _lfm2_width_keys(model: ModelSpec) -> Keys:
    return {"intermediate_size": model.ffn_hidden_size, "block_auto_adjust_ff_dim": False}


def _lfm2_feeds(config: Config, fields: Fields) -> list[Fields]:
    dense = config.count("num_dense_layers", least=0, most=LAYERS, default=2)
    return [MLP if i < dense else layers.EXPERTS for i in range(fields["num_layers"])]


def _lfm2_dense(model: ModelSpec) -> Keys:
    """The number of layers before the first with experts."""
    sparse = [layers.is_sparse(layer) for layer in layers.each_layer(model)]
    return {"num_dense_layers": (*sparse, True).index(True)}


def _lfm2(*rows: Part, feeds: FeedForwardLayout) -> Table:
    convolution = Block(
        "short_convolution", Key("conv_L_cache", "taps", 3), Key("conv_bias", "bias", False)
    )
    return Table(
        attention.SHAPE.spelled(tie_word_embeddings="tie_word_embeddings tie_embedding"),
        attention.Heads(),
        attention.RMSNORM_GATED,
        attention.QK_NORM_HEAD,
        *rows,
        Layers({"conv": convolution, FULL: layers.ATTENTION}, _lfm2_kinds, feeds),
    )


# MiniMax-Text-01: lightning attention, and full attention in some layers.


MINIMAX_MIXERS: dict[str, Fields | Block] = {
    LINEAR: Block("lightning_attention"), FULL: attention.local(None),
}  # fmt: skip


def _minimax_kinds(config: Config, depth: int) -> Kinds:
    stated = config.data.get("attn_type_list")
    default = [LINEAR if i % 2 else FULL for i in range(depth)]
    if isinstance(stated, list) and len(stated) == depth:
        default = [FULL if flag else LINEAR for flag in stated]
    return default, "both take turns"


def _rwkv(config: Config, fields: Fields) -> Fields:
    """RWKV-4, with an additional norm before the first layer."""
    hidden = fields["hidden_size"]
    own = config.optional("attention_hidden_size", most=WIDTH, default=None) or hidden
    width = config.optional("intermediate_size", most=WIDTH, default=None) or 4 * hidden
    blocks: layers.Layer = [
        {"kind": "rwkv_time_mix", "width": own},
        {"kind": "rwkv_channel_mix", "width": width},
    ]
    first: Fields = {"kind": "products", "parameters": 2 * hidden}
    return layers.pattern([[*blocks, first], *[blocks] * (fields["num_layers"] - 1)])


GRIFFIN: dict[str, Block] = {
    "recurrent": Block(
        "linear_recurrent_unit",
        Key(
            "lru_width", "width", Derived(lambda fields: fields["hidden_size"], "hidden_size")
        ),
        lambda config, fields: {"num_blocks": fields["num_attention_heads"]},
        Key("conv1d_width", "convolution", 4),
    ),
    "attention": Block(
        "attention", Key("attention_window_size sliding_window", "window", 2048, null=False)
    ),
}  # fmt: skip


def _griffin(config: Config, fields: Fields) -> Fields:
    """Recurrent units, and sliding-window attention in every third layer."""
    listed = config.data.get("block_types") or ["recurrent", "recurrent", "attention"]
    known = isinstance(listed, list | tuple) and all(isinstance(kind, str) for kind in listed)
    if not known or any(kind not in GRIFFIN for kind in listed):
        config.refuse("block_types", "may hold only recurrent and attention")
        listed = ["attention"]
    blocks = {kind: block(config, fields) for kind, block in GRIFFIN.items()}
    width = max(config.count("intermediate_size", most=WIDTH) // 2, 1)
    found = [[blocks[listed[i % len(listed)]], MLP] for i in range(fields["num_layers"])]
    return {"ffn_hidden_size": width, **layers.pattern(found)}


# OLMo-Hybrid: gated delta nets, and full attention in every fourth layer.


def _olmo_kinds(config: Config, depth: int) -> Kinds:
    listed, because = layers.every(4, others=LINEAR)(config, depth)
    return [*listed[:-1], listed[-1] if FULL in listed else FULL], because


HEADS_ALIKE = Derived(lambda fields: fields["num_attention_heads"], "num_attention_heads")
OLMO_DELTA = Block(
    "gated_delta_net",
    mixers.CONVOLUTION,
    Key("linear_num_key_heads", "num_key_heads", HEADS_ALIKE),
    Key("linear_num_value_heads", "num_value_heads", HEADS_ALIKE),
    Key(
        "linear_key_head_dim", "key_head_dim",
        Derived(
            lambda fields: max(int(0.75 * fields["hidden_size"] / fields["num_key_heads"]), 1),
            "3/4 of hidden_size / linear_num_key_heads",
        ),
    ),
    Key(
        "linear_value_head_dim", "value_head_dim",
        Derived(lambda fields: 2 * fields["key_head_dim"], "twice linear_key_head_dim"),
    ),
)  # fmt: skip

FAMILIES: dict[str, rows.Family] = {
    "lfm2": family(
        "Lfm2ForCausalLM", _lfm2(rows.Hook(_lfm2_width, _lfm2_width_keys), feeds=layers.ALL_DENSE),
        tie_word_embeddings=True, num_key_value_heads=8,
    ),
    "lfm2_moe": family(
        "Lfm2MoeForCausalLM",
        _lfm2(attention.FFN, feeds=FeedForwardLayout(_lfm2_feeds, _lfm2_dense)),
        Sparse(
            Key("num_experts", "moe.num_experts", 32), Key("num_experts_per_tok", "moe.top_k", 4),
            experts.WIDTH, Key("use_expert_bias", "moe.score_correction_bias", True),
        ),
        tie_word_embeddings=True, num_key_value_heads=8, moe_intermediate_size=1792,
    ),
    "minimax": family(
        "MiniMaxForCausalLM", GATED, SAME_WIDTH, routed("num_local_experts num_experts", 2),
        Layers(MINIMAX_MIXERS, _minimax_kinds, layers.ALL_SPARSE),
        num_key_value_heads=8, num_local_experts=8,
    ),
    "olmo_hybrid": family(
        "OlmoHybridForCausalLM", GATED, attention.ATTENTION_BIAS, attention.QK_NORM_FULL,
        Layers({LINEAR: OLMO_DELTA, FULL: layers.ATTENTION}, _olmo_kinds),
    ),
    "qwen3_5_moe_text": family(
        "Qwen3_5MoeForCausalLM", attention.ROUTED, _qwen(layers.ALL_SPARSE),
        num_key_value_heads=2, head_dim=256, num_experts=256, num_experts_per_tok=8,
        moe_intermediate_size=512,
    ),
    "qwen3_5_text": family(
        "Qwen3_5ForCausalLM", GATED, _qwen(layers.ALL_DENSE),
        num_key_value_heads=4, head_dim=256,
    ),
    "qwen3_next": family(
        "Qwen3NextForCausalLM", GATED, _qwen(FeedForwardLayout(_next_feeds, _next_keys)),
        num_key_value_heads=2, head_dim=256, num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=512,
    ),
    "recurrent_gemma": family(
        "RecurrentGemmaForCausalLM", attention.SHAPE, attention.Heads(), attention.RMSNORM_GATED,
        rows.FixedKey("attention_bias", False, "its projections in have no bias"), _griffin,
        attention.DROPOUT, {"attention_output_bias": True, "mlp_bias": True},
        tie_word_embeddings=True,
    ),
    "rwkv": family("RwkvForCausalLM", attention.NO_ATTENTION, attention.one_head, _rwkv),
}  # fmt: skip
