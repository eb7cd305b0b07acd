"""Mixture-of-experts families with attention to all tokens or to a window."""

from __future__ import annotations

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families import attention, experts, layers
from planner.huggingface.families.attention import ATTENTION_BIAS, FULL, GATED, MLA, QK_NORM_HEAD
from planner.huggingface.families.dense import exaone_mixers
from planner.huggingface.families.experts import DEEPSEEK, Groups, Sparse, prediction, routed
from planner.huggingface.families.layers import ATTENTION, EXPERTS, MLP, Kinds, kinds, stacked
from planner.huggingface.families.rows import Family, Fields, FixedKey, Hook, Key, Table, family

MIXTRAL = Table(
    GATED, attention.Window(), experts.SAME_WIDTH, routed("num_local_experts num_experts", 2)
)
GRANITE = Table(
    GATED, ATTENTION_BIAS, experts.SAME_WIDTH, routed("num_local_experts num_experts", 2)
)
QWEN_EXPERTS = Table(routed(), experts.WIDTH)


def _dots(config: Config, layers: int) -> Kinds:
    """Full in the first max_window_layers layers."""
    full = layers
    if not config.states("layer_types"):
        full = config.count("max_window_layers", least=0, most=LAYERS, default=62)
    null = "sliding_window" in config.data and not config.states("sliding_window")
    listed = [FULL if null or i < full else attention.SLIDING for i in range(layers)]
    return listed, "full in the first layers"


def latent(dense: int) -> Table:
    """Latent attention, and experts after the first layers."""
    return Table(
        MLA, layers.stack(layers.LATENT, layers.dense_first(dense)), Sparse(DEEPSEEK, Groups()),
        prediction()
    )  # fmt: skip


def _longcat(config: Config, fields: Fields) -> Fields:
    """Two attentions and two MLPs in each layer; the experts are parallel to the first MLP."""
    both: Fields = {"kind": "parallel", "branches": [MLP, EXPERTS]}
    return layers.pattern([[layers.LATENT, both, layers.LATENT, MLP]])


def _alike(config: Config, name: str, default: int) -> int:
    """A number for all layers, or a list of equal ones."""
    value = config.data.get(name)
    if not isinstance(value, list):
        return config.count(name, most=WIDTH, default=default)
    if not value or type(value[0]) is not int or len(set(map(str, value))) != 1:
        config.refuse(name, "only one number for all layers can be planned")
        return default
    return int(value[0])


def _hunyuan(config: Config, fields: Fields) -> Fields:
    """A shared expert as wide as the routed ones."""
    width = fields["ffn_hidden_size"]
    if config.states("moe_intermediate_size"):
        width = _alike(config, "moe_intermediate_size", width)
    return {
        "moe.top_k": _alike(config, "moe_topk", 1),
        "moe.expert_ffn_hidden_size": width,
        "moe.shared_expert_ffn_hidden_size": _alike(config, "num_shared_expert", 1) * width,
    }


def _ernie(config: Config, fields: Fields) -> list[Fields]:
    """Experts in a range of layers."""
    layers = fields["num_layers"]
    first = _layer(config, "moe_layer_start_index", 1)
    last = _layer(config, "moe_layer_end_index", -1)
    last = layers - 1 if last == -1 else last
    step = config.count("moe_layer_interval", most=LAYERS, default=1)
    sparse = [(i + 1) % step == 0 and first <= i <= last for i in range(layers)]
    return [EXPERTS if flag else MLP for flag in sparse]


def _layer(config: Config, name: str, default: int) -> int:
    """The number of a layer, -1 for the last."""
    if config.data.get(name, default) == -1:
        return -1
    return config.count(name, least=0, most=WIDTH, default=default)


def _exaone(config: Config, fields: Fields) -> Fields:
    feeds = layers.dense_first(1).read(config, fields)
    return stacked(exaone_mixers(config, fields["num_layers"]), feeds)


def _after(config: Config, fields: Fields) -> list[Fields]:
    """Experts after the first num_dense_layers layers."""
    layers = fields["num_layers"]
    dense = config.count("num_dense_layers", least=0, most=LAYERS, default=1)
    return [MLP if i < dense else EXPERTS for i in range(layers)]


# A gate for each head, and layers with a window that may have more heads: Step 3.5.


def _step_layers(config: Config, fields: Fields) -> Fields:
    layers, heads = fields["num_layers"], fields["num_attention_heads"]
    gate = "element" if config.data.get("gating", True) not in (True, "per-head") else "head"
    full: Fields = {**ATTENTION, "gate": gate}
    size = config.optional("sliding_window", most=TOKENS, default=None)
    near = full if size is None else {**full, "window": size}
    more = _sliding_heads(config, heads)
    if more != heads:
        groups = {"num_query_groups": fields["num_query_groups"]}
        near = {**near, "num_attention_heads": more, **groups}
    mixers = {attention.SLIDING: near, FULL: full}
    cut = _without_mtp(config, layers)
    listed = kinds(cut, "layer_types", [FULL] * layers, mixers, "all full")
    return stacked([mixers[kind] for kind in listed], _step_feeds(config, cut, layers))


def _without_mtp(config: Config, layers: int) -> Config:
    """The config with its lists cut to `layers`: they may include layers of MTP."""
    stated = config.data.get("num_nextn_predict_layers")
    extra = stated if type(stated) is int else 0
    data = {
        name: value[:layers] if isinstance(value, list) and len(value) == layers + extra else value
        for name, value in config.data.items()
    }
    inner = Config(data, config.family, config.pointer)
    inner.problems, inner.guessed = config.problems, config.guessed
    return inner


def _sliding_heads(config: Config, heads: int) -> int:
    names = ("num_sliding_attention_heads", "attention_other_setting/num_attention_heads")
    return config.count(*names, most=HEADS, default=heads, because="num_attention_heads")


def _step_feeds(config: Config, cut: Config, layers: int) -> list[Fields]:
    """The feed-forward of each layer, listed by kind or by the numbers of layers with experts."""
    listed = config.data.get("moe_layers_enum")
    numbers = set(range(3, layers))
    if isinstance(listed, str) and not config.states("mlp_layer_types"):
        if not all(part.strip().isdecimal() for part in listed.split(",") if part.strip()):
            config.refuse("moe_layers_enum", "must be layer numbers with commas between")
            return [MLP] * layers
        numbers = {int(part) for part in listed.split(",") if part.strip()}
    default = ["sparse" if i in numbers else "dense" for i in range(layers)]
    how = "the first 3 are dense"
    words = kinds(cut, "mlp_layer_types", default, {"sparse", "dense"}, how)
    return [EXPERTS if word == "sparse" else MLP for word in words]


def _v2_groups(config: Config, fields: Fields) -> Fields:
    grouped = config.value("topk_method") == "group_limited_greedy"
    return Groups()(config, fields) if grouped else {}


GATE: Fields = {"gate": "element"}
FAMILIES: dict[str, Family] = {
    "afmoe": family(  # gated attention, with positions only in layers with a window
        "AfmoeForCausalLM", GATED, ATTENTION_BIAS, attention.FOUR_NORMS, QK_NORM_HEAD,
        layers.Layers(
            {
                attention.SLIDING: attention.local(1024, GATE, null=False),
                FULL: {**ATTENTION, **GATE, "rope": False},
            },
            layers.every(4, key="global_attn_every_n_layers"), layers.FeedForwardLayout(_after),
        ),
        Sparse(routed(top_k=6), experts.WIDTH, experts.Shared("num_shared_experts", 2)),
        experts.balanced,
        head_dim=128, num_experts=64, moe_intermediate_size=1408,
    ),
    "deepseek": family(  # the first DeepSeekMoE
        "DeepseekForCausalLM", GATED, ATTENTION_BIAS,
        layers.stack(ATTENTION, layers.dense_first(0)),
        Sparse(DEEPSEEK, {"moe.score_correction_bias": False}),
        n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2,
    ),
    "deepseek_v2": family(
        "DeepseekV2ForCausalLM", MLA, attention.NO_MLP_BIAS, DEEPSEEK, experts.DENSE_FIRST,
        {"moe.score_correction_bias": False}, _v2_groups,
        n_routed_experts=64, num_experts_per_tok=None, moe_intermediate_size=1407,
        n_shared_experts=2,
    ),
    "deepseek_v3": family(
        "DeepseekV3ForCausalLM", MLA, prediction(), DEEPSEEK, experts.DENSE_FIRST, Groups(8, 4),
        first_k_dense_replace=3,
    ),
    "dots1": family(
        "Dots1ForCausalLM", GATED, ATTENTION_BIAS, QK_NORM_HEAD,
        layers.Layers(
            {attention.SLIDING: attention.local(4096), FULL: ATTENTION}, _dots,
            layers.dense_first(0),
        ),
        Sparse(DEEPSEEK, Groups()),
        num_key_value_heads=32, n_routed_experts=None, num_experts_per_tok=None,
        moe_intermediate_size=1408, n_shared_experts=None,
    ),
    "ernie4_5_moe": family(
        "Ernie4_5_MoeForCausalLM", GATED, Key("use_bias", attention.EVERY_BIAS, False),
        FixedKey("use_bias", False, "its experts have no bias"),
        layers.stack(ATTENTION, layers.FeedForwardLayout(_ernie)),
        Sparse(
            Key("moe_num_experts", "moe.num_experts", 64), Key("moe_k", "moe.top_k", 6),
            experts.WIDTH, experts.Shared("moe_num_shared_experts", 2),
        ),
        experts.balanced,
        tie_word_embeddings=True, num_key_value_heads=4, moe_intermediate_size=1536,
    ),
    "exaone_moe": family(
        "ExaoneMoeForCausalLM", GATED, QK_NORM_HEAD, _exaone, Sparse(DEEPSEEK, Groups()),
        prediction(),
        num_key_value_heads=32, n_routed_experts=64, moe_intermediate_size=1024,
    ),
    "flex_olmo": family(
        "FlexOlmoForCausalLM", GATED, ATTENTION_BIAS, attention.QK_NORM_FULL, routed(top_k=5),
        experts.SAME_WIDTH,
        num_experts=7,
    ),
    "glm4_moe": family(
        "Glm4MoeForCausalLM", attention.SHAPE, attention.Heads(even=False), attention.RMSNORM_GATED,
        prediction(), DEEPSEEK, experts.DENSE_FIRST, Groups(), attention.FFN, attention.QKV_BIAS,
        Key("use_qk_norm", "qk_norm", False, means=("head", "none")), attention.DROPOUT,
        num_key_value_heads=8, n_routed_experts=128, moe_intermediate_size=1408,
        first_k_dense_replace=1,
    ),
    "glm4_moe_lite": family(
        "Glm4MoeLiteForCausalLM", latent(1),
        q_lora_rank=768, qk_nope_head_dim=192, v_head_dim=256, n_routed_experts=64,
        num_experts_per_tok=4, moe_intermediate_size=1536,
    ),
    "gpt_oss": family(
        "GptOssForCausalLM", GATED, experts.SAME_WIDTH, routed("num_local_experts num_experts", 4),
        attention.Window(128, 2),
        {"attention_sinks": True, "moe.router_bias": True, "moe.expert_bias": True},
        ATTENTION_BIAS,
        num_key_value_heads=8, head_dim=64, attention_bias=True, num_local_experts=128,
    ),
    "granitemoe": family("GraniteMoeForCausalLM", GRANITE, num_local_experts=8),
    "granitemoeshared": family(
        "GraniteMoeSharedForCausalLM", GRANITE, experts.SHARED_WIDTH,
        num_local_experts=8, shared_intermediate_size=0,
    ),
    "hunyuan_v1_moe": family(
        "HunYuanMoEV1ForCausalLM", GATED, ATTENTION_BIAS, QK_NORM_HEAD,
        Key("num_experts num_local_experts", "moe.num_experts"), _hunyuan,
    ),
    "longcat_flash": family(
        "LongcatFlashForCausalLM",
        MLA.spelled(num_hidden_layers="num_layers", intermediate_size="ffn_hidden_size"),
        FixedKey("router_bias", False, "its router has no bias"),
        Key("n_routed_experts", "moe.num_experts", 512),
        Key("moe_topk num_experts_per_tok", "moe.top_k", 12),
        Key("expert_ffn_hidden_size", "moe.expert_ffn_hidden_size", 2048),
        Key("zero_expert_num", "moe.zero_experts", 256), experts.BALANCED, _longcat,
    ),
    "minimax_m2": family(
        "MiniMaxM2ForCausalLM", attention.ROUTED, attention.QK_NORM_FULL,
        Key("intermediate_size", "moe.expert_ffn_hidden_size"),
        routed("num_local_experts num_experts", 8), experts.BALANCED, prediction("num_mtp_modules"),
        num_key_value_heads=8, head_dim=128, num_local_experts=256,
    ),
    "mistral4": family(
        "Mistral4ForCausalLM", latent(0),
        q_lora_rank=1024, kv_lora_rank=256, qk_nope_head_dim=64, n_routed_experts=128,
        num_experts_per_tok=4,
    ),
    "mixtral": family("MixtralForCausalLM", MIXTRAL, num_key_value_heads=8, num_local_experts=8),
    "olmoe": family(
        "OlmoeForCausalLM", GATED, ATTENTION_BIAS,
        FixedKey("head_dim", attention.even_width, "its query norm is as wide as hidden_size"),
        attention.QK_NORM_FULL, routed(top_k=8), experts.SAME_WIDTH,
        num_experts=64,
    ),
    "phimoe": family(
        "PhimoeForCausalLM PhiMoEForCausalLM", attention.USUAL, {"gated_mlp": True}, ATTENTION_BIAS,
        attention.Window(),
        Key("lm_head_bias", "lm_head_bias", False), experts.SAME_WIDTH,
        routed("num_local_experts num_experts", 2),
        num_key_value_heads=8, num_local_experts=16,
    ),
    "qwen2_moe": family(
        "Qwen2MoeForCausalLM", GATED,
        FixedKey("use_sliding_window", False, "its window pattern has no form here"),
        Hook(keys=lambda model: {"use_sliding_window": False}), Key("qkv_bias", "qkv_bias", True),
        QWEN_EXPERTS,
        Key("shared_expert_intermediate_size", "moe.shared_expert_ffn_hidden_size", 5632),
        {"moe.shared_expert_gate": True}, experts.QWEN_LAYERS,
        num_key_value_heads=16, num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408,
    ),
    "qwen3_moe": family(  # Keys of the class before it, which this one ignores.
        "Qwen3MoeForCausalLM", GATED, QK_NORM_HEAD, attention.QwenWindow(first=False),
        Hook(keys=lambda model: {"qkv_bias": model.qkv_bias}), QWEN_EXPERTS,
        Hook(keys=lambda model: {"shared_expert_intermediate_size": 0}), experts.QWEN_LAYERS,
        ATTENTION_BIAS,
        num_key_value_heads=4, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    ),
    "solar_open": family(
        "SolarOpenForCausalLM", attention.ROUTED, ATTENTION_BIAS, DEEPSEEK, Groups(), prediction(),
        num_key_value_heads=8, head_dim=128, n_routed_experts=128, moe_intermediate_size=1280,
    ),
    "step3p5": family(
        "Step3p5ForCausalLM", attention.SHAPE,
        Key("num_key_value_heads num_attention_groups", "num_query_groups", 8),
        Key("head_dim", "head_dim", 128), attention.RMSNORM_GATED, ATTENTION_BIAS, QK_NORM_HEAD,
        attention.NO_MLP_BIAS, _step_layers,
        Sparse(
            Key("n_routed_experts moe_num_experts", "moe.num_experts", 288),
            Key("num_experts_per_tok moe_top_k", "moe.top_k", 8), experts.WIDTH,
            Key("share_expert_dim share_expert_dims", "moe.shared_expert_ffn_hidden_size", 1280),
            experts.BALANCED,
        ),
        attention.FFN, attention.DROPOUT, prediction(),
        moe_intermediate_size=1280,
    ),
}  # fmt: skip
