"""Mixture-of-experts families with sparse, latent, linear, chunked or windowed attention."""

from __future__ import annotations

from cost_models.blocks.attention import Attention
from cost_models.spec import ModelSpec
from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families import attention, experts, layers, rows
from planner.huggingface.families.attention import FULL, MLA, ROUTED, SLIDING, indexer
from planner.huggingface.families.experts import DEEPSEEK, Groups, Sparse, prediction
from planner.huggingface.families.layers import ATTENTION, LINEAR, dense_first, kinds, stacked
from planner.huggingface.families.rows import Block, Fields, FixedKey, Key, family


def _glm_kinds(config: Config, fields: Fields) -> list[str]:
    """Most layers of GLM-5.2 use the tokens that an earlier layer's indexer has picked."""
    letters, depth = config.data.get("index_topk_pattern"), fields["num_layers"]
    if isinstance(letters, str) and not config.states("indexer_types"):
        if len(letters) != depth or set(letters) - {"F", "S"}:
            config.refuse("index_topk_pattern", f"must be {depth} letters F and S")
            return ["full"] * depth
        return ["full" if letter == "F" else "shared" for letter in letters]
    period, offset = 1, 2
    if not config.states("indexer_types"):
        period = config.count("index_topk_freq", least=0, most=LAYERS, default=1) or 1
        offset = config.count("index_skip_topk_offset", least=0, most=LAYERS, default=2)
    default = [
        "shared" if max(i - offset + 1, 0) % period else "full" for i in range(depth)
    ]  # fmt: skip
    how = f"every {period}th layer after {offset}"
    return kinds(config, "indexer_types", default, {"full", "shared"}, how)


def _glm_layers(config: Config, fields: Fields) -> Fields:
    own = Block("latent_attention", indexer(32))(config, fields)
    shared = {**own, "indexer": {**own["indexer"], "shared": True}}
    mixers = [own if kind == "full" else shared for kind in _glm_kinds(config, fields)]
    return stacked(mixers, dense_first(3).read(config, fields))


# DeepSeek-V4: attention to a window and to tokens compressed by 4 (the best of them) or by 128.
V4_KINDS = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
V4_KEYS = (
    Key("q_lora_rank", "q_lora_rank", 1024),
    Key("o_lora_rank", "o_lora_rank", 1024),
    Key("o_groups", "o_groups", 8),
    Key("sliding_window", "window", 128),
)


def _v4_streams(config: Config, fields: Fields) -> Fields:
    return {"residual_streams": config.count("hc_mult", least=2, most=64, default=4)}


def _v4_layers(config: Config, fields: Fields) -> Fields:
    common = Block("compressed_attention", *V4_KEYS)(config, fields)
    rates = {
        rate: config.count(f"compress_rates/{V4_KINDS[rate]}", most=TOKENS, default=rate)
        for rate in (4, 128)
    }
    choice = Block("compressed_attention", indexer(64, 512, "choice"))(config, fields)
    mixers = {
        SLIDING: common,
        V4_KINDS[4]: {**common, **choice, "compression": rates[4]},
        V4_KINDS[128]: {**common, "compression": rates[128]},
    }
    listed = _v4_kinds(config, fields["num_layers"])
    return stacked([mixers[kind] for kind in listed], layers.ALL_SPARSE.read(config, fields))


def _v4_kinds(config: Config, depth: int) -> list[str]:
    ratios = config.data.get("compress_ratios")
    if isinstance(ratios, list) and not config.states("layer_types"):
        if len(ratios) < depth or any(type(r) is not int or r not in V4_KINDS for r in ratios):
            config.refuse("compress_ratios", f"must be a list of {depth} of 0, 4 and 128")
            return [SLIDING] * depth
        return [V4_KINDS[ratio] for ratio in ratios[:depth]]
    default = [V4_KINDS[4 if i % 2 and i > 1 else 128] for i in range(depth)]
    return kinds(config, "layer_types", default, V4_KINDS.values(), "4 and 128 take turns")


# Kimi delta attention, and latent attention without positions in every fourth layer.
KIMI_WIDTHS = "key_head_dim value_head_dim decay_rank gate_rank"
KIMI_DELTA = Block(
    "gated_delta_net",
    Key("linear_head_dim linear_attn_config/head_dim", KIMI_WIDTHS, 128),
    Key("linear_num_heads linear_attn_config/num_heads", "num_key_heads num_value_heads", 32),
    Key("linear_conv_kernel_dim linear_attn_config/short_conv_kernel_size", "convolution", 4),
    {"channel_decays": True},
)


def _kimi_kinds(config: Config, depth: int) -> list[str]:
    """The kind of each layer; a list of full_attn_layers counts from 1."""
    full = layers.numbered(config, "linear_attn_config/full_attn_layers")
    if full is not None and not config.states("layer_types"):
        return [FULL if i + 1 in full else LINEAR for i in range(depth)]
    default = [FULL if i and i % 4 == 0 else LINEAR for i in range(depth)]
    return kinds(config, "layer_types", default, {FULL, LINEAR}, "full in every fourth layer")


def _kimi_layers(config: Config, fields: Fields) -> Fields:
    if config.states("routed_expert_hidden_size"):
        message = "experts behind a latent, as of Kimi K3, have no public code to plan by"
        config.refuse("routed_expert_hidden_size", message)
    mixers = {LINEAR: KIMI_DELTA(config, fields), FULL: layers.LATENT}
    listed = _kimi_kinds(config, fields["num_layers"])
    return stacked([mixers[kind] for kind in listed], dense_first(1).read(config, fields))


# MiniMax-M3: most layers attend to the blocks of tokens that their own indexer scores highest.


def _m3_tokens(config: Config, fields: Fields) -> Fields:
    """The file counts blocks of tokens."""
    return {"indexer.top_k": fields["indexer.top_k"] * fields["indexer.block_size"]}


M3_SPARSE = Block(
    "attention",
    Key("index_n_heads sparse_attention_config/sparse_num_index_heads", "indexer.num_heads", 4),
    Key("index_head_dim sparse_attention_config/sparse_index_dim", "indexer.head_dim", 128),
    Key(
        "index_block_size sparse_attention_config/sparse_block_size", "indexer.block_size", 128,
        null=False,
    ),
    Key("index_topk_blocks sparse_attention_config/sparse_topk_blocks", "indexer.top_k", 16),
    _m3_tokens,
    {"indexer.key_norm_bias": False, "indexer.query_norm": True, "indexer.head_weights": False},
)  # fmt: skip


def _m3_kinds(config: Config, depth: int) -> layers.Kinds:
    sparse = config.nested("sparse_attention_config")
    stated = sparse.data.get("sparse_attention_freq")
    default = [FULL] * depth
    if isinstance(stated, list):
        default = ["minimax_m3_sparse" if flag else FULL for flag in stated[:depth]]
        if len(default) != depth:
            sparse.refuse("sparse_attention_freq", f"must be a list of {depth} of 0 and 1")
            default = [FULL] * depth
    return default, "as the sparse attention says"


def _m3_prediction(config: Config, fields: Fields) -> Fields:
    stated = config.states("num_nextn_predict_layers")
    return prediction("num_nextn_predict_layers" if stated else "num_mtp_modules")(config, fields)


MINIMAX_M3 = rows.Table(
    ROUTED,
    attention.QK_NORM_HEAD,
    Key("dense_intermediate_size", "ffn_hidden_size", 12_288),
    layers.Layers({FULL: ATTENTION, "minimax_m3_sparse": M3_SPARSE}, _m3_kinds, dense_first(0)),
    Sparse(
        Key("intermediate_size", "moe.expert_ffn_hidden_size"),
        Key("shared_intermediate_size", "moe.shared_expert_ffn_hidden_size", 3072),
        Key("num_local_experts", "moe.num_experts", 128),
        Key("num_experts_per_tok", "moe.top_k", 4),
        experts.BALANCED,
    ),
    _m3_prediction,
)


# Llama 4: layers with RoPE attend inside chunks; every fourth has no RoPE and attends to all.


def _llama4_layers(config: Config, fields: Fields) -> Fields:
    depth = fields["num_layers"]
    rotary = layers.rotary_layers(config, depth)
    chunk = config.optional("attention_chunk_size", most=TOKENS, default=8192)
    local = "chunked_attention"
    default = [local if flag else FULL for flag in rotary]
    listed = kinds(config, "layer_types", default, {local, FULL}, "chunks where rotary")
    mixers: layers.Layer = [
        ATTENTION
        | ({"chunk": chunk} if kind == local and chunk is not None else {})
        | ({} if flag else {"rope": False})
        for kind, flag in zip(listed, rotary, strict=True)
    ]
    sparse = layers.numbered(config, "moe_layers")
    if sparse is None:
        step = config.count("interleave_moe_layer_step", most=LAYERS, default=1)
        sparse = set(range(step - 1, depth, step))
    return stacked(mixers, [layers.EXPERTS if i in sparse else layers.MLP for i in range(depth)])


def _llama4_keys(model: ModelSpec) -> rows.Keys:
    listed = layers.each_layer(model)
    mixers = [layer[0] for layer in listed]
    chunks = [one.chunk for one in mixers if isinstance(one, Attention)]
    if len(chunks) < len(listed) or not any(chunks):
        raise rows.NotWritten
    return {
        "moe_layers": [i for i, layer in enumerate(listed) if layers.is_sparse(layer)],
        "attention_chunk_size": min(filter(None, chunks)),
        "layer_types": ["chunked_attention" if chunk else FULL for chunk in chunks],
        "no_rope_layers": [int(getattr(one, "rope", True)) for one in mixers],
        "use_qk_norm": False,
    }


LLAMA4_WIDTHS = "moe.expert_ffn_hidden_size moe.shared_expert_ffn_hidden_size"


# MiMo-V2: layers with a window have attention sinks and twice the key/value heads.


def _mimo_layers(config: Config, fields: Fields) -> Fields:
    depth, groups = fields["num_layers"], fields["num_query_groups"]
    value = config.count("v_head_dim", most=WIDTH, default=128)
    size = config.count("sliding_window", "sliding_window_size", most=TOKENS, default=129)
    wide = config.count("swa_num_key_value_heads", most=HEADS, default=2 * groups,
                        because="twice num_key_value_heads")  # fmt: skip
    near = {"window": size + config.states("sliding_window_size"), "sinks": True}
    mixers = {
        SLIDING: {**ATTENTION, **near, "value_head_dim": value, "num_query_groups": wide},
        FULL: {**ATTENTION, "value_head_dim": value},
    }
    default, because = layers.every(6)(config, depth)
    stated = config.data.get("hybrid_layer_pattern")
    default[0] = FULL
    if isinstance(stated, list) and len(stated) == depth:
        default = [SLIDING if flag else FULL for flag in stated]
    listed = kinds(config, "layer_types", default, mixers, f"{because}, and in the first")
    return stacked([mixers[kind] for kind in listed], dense_first(1).read(config, fields))


FAMILIES: dict[str, rows.Family] = {
    "deepseek_v32": family(
        "DeepseekV32ForCausalLM", MLA, prediction(), attention.NO_MLP_BIAS,
        layers.stack(Block("latent_attention", indexer(64)), dense_first(3)),
        Sparse(DEEPSEEK, Groups(8, 4)),
    ),
    "deepseek_v4": family(  # four residual streams
        "DeepseekV4ForCausalLM", attention.SHAPE, attention.RMSNORM_GATED,
        FixedKey("attention_bias", False, "its projections have no bias"),
        FixedKey("mlp_bias", False, "its projections have no bias"),
        FixedKey("num_key_value_heads", 1, "all heads share one key"), _v4_layers, DEEPSEEK,
        {"num_query_groups": 1, "attention_sinks": True}, Key("head_dim", "head_dim", 512),
        attention.DROPOUT, _v4_streams, prediction(),
        num_experts_per_tok=6,
    ),
    "glm_moe_dsa": family(
        "GlmMoeDsaForCausalLM", MLA, prediction(), attention.NO_MLP_BIAS, _glm_layers,
        Sparse(DEEPSEEK, Groups()),
        q_lora_rank=2048, qk_nope_head_dim=192, v_head_dim=256,
    ),
    "kimi_linear": family(
        "KimiLinearForCausalLM", MLA, {"position": "none"}, prediction(), _kimi_layers,
        Sparse(
            Key("num_local_experts num_experts", "moe.num_experts", 256),
            Key("num_experts_per_tok num_experts_per_token", "moe.top_k", 8), experts.WIDTH,
            experts.Shared("n_shared_experts num_shared_experts", 1, least=1), experts.BALANCED,
            Groups(names="n_group num_expert_group"),
        ),
        q_lora_rank=None, moe_intermediate_size=1024,
    ),
    "llama4_text": family(
        "Llama4ForCausalLM", ROUTED, attention.ATTENTION_BIAS,
        Key("intermediate_size_mlp", "ffn_hidden_size", 16_384),
        rows.Hook(_llama4_layers, _llama4_keys),
        Sparse(
            Key("num_local_experts", "moe.num_experts", 16),
            Key("num_experts_per_tok", "moe.top_k", 1), Key("intermediate_size", LLAMA4_WIDTHS),
        ),
        num_key_value_heads=8, head_dim=128,
    ),
    "mimo_v2_flash": family(
        "MiMoV2FlashForCausalLM", ROUTED, _mimo_layers, Sparse(DEEPSEEK, Groups()), attention.FFN,
        attention.QKV_BIAS,
        num_key_value_heads=4, head_dim=192, n_shared_experts=0,
    ),
    "minimax_m3": family("MiniMaxM3ForCausalLM", MINIMAX_M3, num_key_value_heads=4, head_dim=128),
    "minimax_m3_vl_text": family(
        "MiniMaxM3VLForCausalLM MiniMaxM3SparseForCausalLM", MINIMAX_M3,
        num_key_value_heads=4, head_dim=128,
    ),
}  # fmt: skip
