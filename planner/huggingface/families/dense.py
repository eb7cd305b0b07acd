"""Dense families: the rows that each has, and where the defaults of its class differ."""

from __future__ import annotations

from cost_models.spec import ModelSpec
from planner.huggingface.config import HEADS, LAYERS, TOKENS, Config
from planner.huggingface.families import attention, layers, rows
from planner.huggingface.families.attention import ATTENTION_BIAS, FULL, GATED, MLP_BIAS, Window
from planner.huggingface.families.experts import prediction
from planner.huggingface.families.layers import ATTENTION, MLP, every, kinds, pattern, rotary_layers
from planner.huggingface.families.rows import Fields, FixedKey, Key, Table, family

COHERE = Table(
    attention.USUAL, ATTENTION_BIAS, attention.PARALLEL, {"norm_bias": False, "gated_mlp": True}
)  # fmt: skip
GEMMA = Table(GATED, attention.CAUSAL, ATTENTION_BIAS)
GLM = Table(GATED, Key("attention_bias", "qkv_bias", True))
# The single flag of the first two InternLM is for attention.
INTERNLM = Table(GATED, Key("bias", "qkv_bias attention_output_bias", False))


def _parallel_norms(config: Config, fields: Fields) -> Fields:
    return {"norms_per_layer": 1 if fields["parallel_residual"] else 2}


def _chatglm_biases(config: Config, fields: Fields) -> Fields:
    """One flag for all biases, and one for those of queries, keys and values."""
    bias = config.flag("add_bias_linear", False)
    queries = config.flag("add_qkv_bias", False) or bias
    return {"qkv_bias": queries, "attention_output_bias": bias, "mlp_bias": bias}


def _chatglm_groups(config: Config, fields: Fields) -> Fields:
    if not config.flag("multi_query_attention", False):
        return {"num_query_groups": fields["num_attention_heads"]}
    return {"num_query_groups": config.count("multi_query_group_num", most=HEADS)}


def _smollm3(config: Config, fields: Fields) -> Fields:
    """Every fourth layer has no positions; only those may have a window."""
    rotary = rotary_layers(config, fields["num_layers"])
    size = None
    if config.flag("use_sliding_window", False):
        size = config.optional("sliding_window", most=TOKENS, default=None)
    default = [attention.SLIDING if size and not flag else FULL for flag in rotary]
    listed = kinds(
        config, "layer_types", default, {attention.SLIDING, FULL}, "as the positions say"
    )
    layers = []
    for kind, flag in zip(listed, rotary, strict=True):
        mixer = dict(ATTENTION) if flag else {**ATTENTION, "rope": False}
        if kind == attention.SLIDING and size:
            mixer["window"] = size
        layers.append([mixer, MLP])
    return pattern(layers)


def _smollm3_keys(model: ModelSpec) -> rows.Keys:
    return {
        "no_rope_layers": [
            int(all(getattr(one, "rope", True) for one in x)) for x in layers.each_layer(model)
        ],
        "pad_token_id": None,  # the default of the class may lie outside the vocabulary
        "use_sliding_window": False,
    }


def exaone_mixers(config: Config, layers: int) -> list[Fields]:
    """If some layers have a window, the other layers have no positions."""
    size = config.optional("sliding_window", most=TOKENS, default=4096)
    period = 4
    if size is not None and not config.states("layer_types"):
        stated = config.data.get("sliding_window_pattern")
        if isinstance(stated, str):  # "LLLG": letters of one period
            period = max(len(stated), 1)
        else:
            period = config.count("sliding_window_pattern", most=LAYERS, default=4)
    default, because = every(period)(config, layers)
    if size is None:
        default = [FULL] * layers
    listed = kinds(config, "layer_types", default, {attention.SLIDING, FULL}, because)
    if size is None:
        return [ATTENTION] * layers
    mixers = {attention.SLIDING: {**ATTENTION, "window": size}, FULL: {**ATTENTION, "rope": False}}
    return [mixers[kind] for kind in listed]


def _exaone4(config: Config, fields: Fields) -> Fields:
    return pattern([[mixer, MLP] for mixer in exaone_mixers(config, fields["num_layers"])])


def _apertus(config: Config, fields: Fields) -> Fields:
    """The activation of each MLP, xIELU, has two parameters."""
    if config.data.get("hidden_act") not in (None, "xielu"):
        return {}
    return pattern([[ATTENTION, MLP, {"kind": "products", "parameters": 2}]])


def _internlm3(config: Config, fields: Fields) -> Fields:
    name = "attention_bias" if config.states("attention_bias") else "qkv_bias"
    bias = config.flag(name, False)
    other = "mlp_bias" if config.states("mlp_bias") else "bias"
    config.require(other, bias, "all projections have biases or none")
    return dict.fromkeys(attention.EVERY_BIAS.split(), bias)


VALUE_WIDTH = rows.Derived(
    lambda fields: max(fields["hidden_size"] // fields["num_attention_heads"], 1),
    "hidden_size / num_attention_heads",
)


def _nemotron_nas(config: Config, fields: Fields) -> Fields:
    """Attention and MLP of each layer were chosen by architecture search, or left out."""
    blocks = config.data.get("block_configs")
    layers, hidden = fields["num_layers"], fields["hidden_size"]
    if not isinstance(blocks, list) or len(blocks) != layers:
        config.refuse("block_configs", f"must be a list of {layers}, one for each layer")
        return {}
    stack: list[list[Fields]] = []
    for i in range(layers):
        block = config.nested_in("block_configs", i)
        mixer, feed = block.nested("attention"), block.nested("ffn")
        attention = _nas_attention(mixer, fields["num_attention_heads"])
        first = _searched(mixer, hidden, attention)
        stack.append([*first, *_searched(feed, hidden, _nas_mlp(feed, hidden))])
    if empty := [i for i, layer in enumerate(stack) if not layer]:
        config.refuse("block_configs", f"layer {empty[0]} has neither attention nor MLP")
    return pattern(stack)


def _searched(part: Config, hidden: int, block: Fields) -> list[Fields]:
    """The block, or one matrix and a norm in its place, or nothing."""
    if part.data.get("no_op"):
        return []
    if part.data.get("replace_with_linear"):
        one = {"inputs": hidden, "outputs": hidden}
        return [{"kind": "products", "products": [one], "parameters": hidden}]
    return [block]


def _nas_attention(part: Config, heads: int) -> Fields:
    shared = part.data.get("n_heads_in_group")
    if shared is None:
        return ATTENTION
    each = part.count("n_heads_in_group", most=heads)
    window = part.optional("window_length", most=TOKENS, default=None)
    return {**ATTENTION, "num_query_groups": max(heads // each, 1), "window": window}


def _nas_mlp(part: Config, hidden: int) -> Fields:
    """An MLP of width 2/3 ffn_mult hidden_size, rounded up to a multiple of 256."""
    factor = part.data.get("ffn_mult")
    if factor is None:
        return MLP
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
        part.refuse("ffn_mult", "must be a number above 0")
        return MLP
    return {**MLP, "width": -(-int(2 * factor * hidden / 3) // 256) * 256}


FAMILIES: dict[str, rows.Family] = {
    "apertus": family(
        "ApertusForCausalLM", attention.USUAL, ATTENTION_BIAS, {"norm": "rmsnorm"},
        attention.QK_NORM_HEAD, _apertus,
    ),
    "arcee": family("ArceeForCausalLM", GATED, ATTENTION_BIAS, MLP_BIAS, {"gated_mlp": False}),
    "chatglm": family(  # GLM-4 with the key names of its first release
        "ChatGLMModel ChatGLMForConditionalGeneration",
        attention.SHAPE.spelled(
            num_hidden_layers="num_layers", vocab_size="padded_vocab_size vocab_size",
        ),
        attention.RMSNORM_GATED, FixedKey("rmsnorm", True, "its norms are RMS norms"),
        FixedKey("post_layer_norm", True, "the final norm is always there"), _chatglm_groups,
        _chatglm_biases, Key("kv_channels", "head_dim"), Key("ffn_hidden_size", "ffn_hidden_size"),
        attention.DROPOUT, attention.HIDDEN_DROPOUT,
    ),
    "cohere": family(
        "CohereForCausalLM", COHERE, Key("use_qk_norm", "qk_norm", False, means=("full", "none")),
        tie_word_embeddings=True,
    ),
    "cohere2": family(
        "Cohere2ForCausalLM", COHERE, Window(4096, 4, "sliding_window_pattern", always=True),
        tie_word_embeddings=True,
    ),
    "cwm": family(
        "CwmForCausalLM", GATED, attention.NO_MLP_BIAS,
        layers.Layers(
            {attention.SLIDING: attention.local(8192, null=False), FULL: ATTENTION},
            every(4, first=0),
        ),
        num_key_value_heads=8, head_dim=128,
    ),
    "ernie4_5": family(
        "Ernie4_5ForCausalLM", GATED, Key("use_bias", attention.EVERY_BIAS, False),
        tie_word_embeddings=True, num_key_value_heads=2, head_dim=128,
    ),
    "exaone4": family(
        "Exaone4ForCausalLM", GATED, attention.QK_NORM_HEAD, _exaone4, num_key_value_heads=32,
    ),
    "gemma": family(
        "GemmaForCausalLM", GEMMA,
        tie_word_embeddings=True, num_key_value_heads=16, head_dim=256,
    ),
    "gemma2": family(
        "Gemma2ForCausalLM", GEMMA, attention.FOUR_NORMS, Window(4096, 2, always=True),
        tie_word_embeddings=True, num_key_value_heads=4, head_dim=256,
    ),
    "gemma3_text": family(  # files state only what differs from the class, heads included
        "Gemma3ForCausalLM", GEMMA, attention.FOUR_NORMS, attention.QK_NORM_HEAD,
        Window(4096, 6, "sliding_window_pattern", always=True),
        num_attention_heads=8, vocab_size=262_208, tie_word_embeddings=True, num_key_value_heads=4,
        head_dim=256,
    ),
    "glm": family("GlmForCausalLM", GLM, num_key_value_heads=2, head_dim=128),
    "glm4": family(
        "Glm4ForCausalLM", GLM, attention.FOUR_NORMS,
        num_key_value_heads=2, head_dim=128,
    ),
    "granite": family("GraniteForCausalLM", GATED, ATTENTION_BIAS, MLP_BIAS),
    "helium": family(
        "HeliumForCausalLM", GATED, attention.NO_MLP_BIAS,
        FixedKey(
            "head_dim", attention.even_width, "its output projection is as wide as hidden_size"
        ),
        attention.QKV_BIAS,
        num_key_value_heads=20, head_dim=128,
    ),
    "hunyuan_v1_dense": family(
        "HunYuanDenseV1ForCausalLM", GATED, ATTENTION_BIAS, attention.QK_NORM_HEAD,
    ),
    "internlm": family("InternLMForCausalLM", INTERNLM),
    "internlm2": family("InternLM2ForCausalLM", INTERNLM),
    "internlm3": family(
        "InternLM3ForCausalLM", GATED, _internlm3,
        num_key_value_heads=2, head_dim=128,
    ),
    "llama": family("LlamaForCausalLM", GATED, ATTENTION_BIAS, MLP_BIAS),
    "mimo": family(  # Qwen2 with layers of multi-token prediction
        "MiMoForCausalLM", GATED, Key("attention_bias", "qkv_bias", True), attention.QwenWindow(),
        prediction("num_nextn_predict_layers"),
        num_key_value_heads=8,
    ),
    "minicpm3": family(  # latent attention with a dense MLP
        "MiniCPM3ForCausalLM", attention.MLA.by_default(v_head_dim=VALUE_WIDTH),
        tie_word_embeddings=True, q_lora_rank=768, kv_lora_rank=256, qk_nope_head_dim=64,
        qk_rope_head_dim=32,
    ),
    "ministral": family("MinistralForCausalLM", GATED, Window(4096), num_key_value_heads=8),
    "ministral3": family(
        "Ministral3ForCausalLM", GATED, Key("sliding_window", "sliding_window"),
        num_key_value_heads=8, head_dim=128,
    ),
    "mistral": family("MistralForCausalLM", GATED, Window(4096), num_key_value_heads=8),
    "nemotron": family("NemotronForCausalLM", attention.USUAL, ATTENTION_BIAS, MLP_BIAS),
    "nemotron-nas": family(
        "DeciLMForCausalLM", attention.SHAPE, attention.RMSNORM_GATED, ATTENTION_BIAS, MLP_BIAS,
        attention.DROPOUT, _nemotron_nas,
    ),
    "olmo": family(  # its norms have no parameters
        "OlmoForCausalLM", attention.USUAL, ATTENTION_BIAS,
        {"gated_mlp": True, "norm_bias": False, "norms_per_layer": 0, "final_norm": False},
    ),
    "olmo2": family("Olmo2ForCausalLM", GATED, ATTENTION_BIAS, attention.QK_NORM_FULL),
    "olmo3": family(
        "Olmo3ForCausalLM", GATED, ATTENTION_BIAS, attention.QK_NORM_FULL, Window(4096, 4),
    ),
    "phi": family(
        "PhiForCausalLM", attention.USUAL, attention.BIASED, attention.PARALLEL,
        {"lm_head_bias": True},
        Key("qk_layernorm", "qk_norm", False, means=("head", "none")), attention.RESIDUAL_DROPOUT,
    ),
    "phi3": family("Phi3ForCausalLM", GATED, attention.RESIDUAL_DROPOUT, Window()),
    "qwen2": family(
        "Qwen2ForCausalLM", GATED, {"qkv_bias": True}, attention.QwenWindow(),
        num_key_value_heads=32,
    ),
    "qwen3": family(
        "Qwen3ForCausalLM", GATED, attention.QK_NORM_HEAD, attention.QwenWindow(), ATTENTION_BIAS,
        num_key_value_heads=32, head_dim=128,
    ),
    "seed_oss": family(
        "SeedOssForCausalLM", GATED, Key("attention_bias", "qkv_bias", True),
        Key("attention_out_bias", "attention_output_bias", False), MLP_BIAS,
        Key("residual_dropout", "hidden_dropout", 0.1),
        num_key_value_heads=8, head_dim=128, attention_dropout=0.1,
    ),
    "smollm3": family(
        "SmolLM3ForCausalLM", GATED, rows.Hook(_smollm3, _smollm3_keys), ATTENTION_BIAS, MLP_BIAS,
        tie_word_embeddings=True, num_key_value_heads=4,
    ),
    "stablelm": family(
        "StableLmForCausalLM", attention.SHAPE, attention.Heads(own=False),
        FixedKey("qk_layernorm", False, "its norms differ for each head"), attention.FFN,
        {"gated_mlp": True}, Key("use_qkv_bias", "qkv_bias", False),
        Key("use_parallel_residual", "parallel_residual", False), _parallel_norms,
        attention.HIDDEN_DROPOUT, attention.DROPOUT,
        num_key_value_heads=32,
    ),
    "starcoder2": family(
        "Starcoder2ForCausalLM", attention.USUAL, Key("use_bias", attention.EVERY_BIAS, True),
        Key("residual_dropout", "hidden_dropout", 0.0), Window(),
        tie_word_embeddings=True, num_key_value_heads=2,
    ),
    "vaultgemma": family(
        "VaultGemmaForCausalLM", GATED, ATTENTION_BIAS, Window(4096, 2, always=True),
        tie_word_embeddings=True, num_key_value_heads=4, head_dim=256,
    ),
    "youtu": family(
        "YoutuForCausalLM", attention.NO_MLP_BIAS, attention.MLA, tie_word_embeddings=True,
    ),
}  # fmt: skip
