"""Families with Mamba or Mamba-2 in most of their layers."""

from __future__ import annotations

from cost_models.spec import ModelSpec
from planner.huggingface.config import HEADS, LAYERS, WIDTH, Config
from planner.huggingface.families import attention, experts, layers, mixers, rows
from planner.huggingface.families.attention import ATTENTION_BIAS, FULL, MLP_BIAS
from planner.huggingface.families.experts import SAME_WIDTH, Groups, Sparse, prediction, routed
from planner.huggingface.families.layers import ATTENTION, EXPERTS, LINEAR, MLP, pattern
from planner.huggingface.families.rows import Block, Fields, Hook, Key, family

# Nemotron-H: each layer is one block, with its own norm; its attention has no positions.

NEMOTRON_LETTERS = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
NEMOTRON_KINDS = {"mamba": LINEAR, "attention": FULL, **{k: k for k in NEMOTRON_LETTERS.values()}}
NEMOTRON_BLOCKS: dict[str, Fields | Block] = {
    FULL: ATTENTION, "mlp": MLP, "moe": EXPERTS, LINEAR: mixers.NEMOTRON_BLOCK,
}  # fmt: skip


def _nemotron_kinds(config: Config, listed: str, spelled: str, usual: str) -> list[str]:
    """One block for each layer, as a list of words or a string of letters."""
    for name in listed.split():
        words = config.data.get(name)
        if words is not None:
            known = isinstance(words, list) and bool(words)
            if known and all(isinstance(w, str) and w in NEMOTRON_KINDS for w in words):
                return [NEMOTRON_KINDS[word] for word in words]
            config.refuse(name, f"must be a list of {', '.join(NEMOTRON_KINDS)}")
            return [FULL]
    letters = config.data.get(spelled)
    if letters is None:
        config.guess(spelled, usual)
        return [NEMOTRON_LETTERS[letter] for letter in usual]
    if isinstance(letters, str) and letters and not set(letters) - set(NEMOTRON_LETTERS):
        return [NEMOTRON_LETTERS[letter] for letter in letters[:LAYERS]]
    config.refuse(spelled, "must be a string of M, E, * and -")
    return [FULL]


def _nemotron(config: Config, fields: Fields) -> Fields:
    blocks = {
        kind: layers.read_mixer(block, config, fields) for kind, block in NEMOTRON_BLOCKS.items()
    }
    listed = _nemotron_kinds(
        config, "layers_block_type layer_types", "hybrid_override_pattern", "ME*-"
    )
    if "moe" in listed:
        config.require("mlp_bias", False, "its experts have no bias")
    found = prediction()(config, fields)
    if found["mtp_num_layers"]:
        after = _nemotron_kinds(
            config, "mtp_layers_block_type", "mtp_hybrid_override_pattern", "*E"
        )
        found["mtp_layer"] = [blocks[kind] for kind in after]
    return {"num_layers": len(listed), **found, **pattern([[blocks[kind]] for kind in listed])}


def _nemotron_keys(model: ModelSpec) -> rows.Keys:
    listed = [
        next(
            (kind for kind, block in NEMOTRON_BLOCKS.items() if rows.is_like(block, layer[0])), None
        )
        for layer in layers.each_layer(model)
        if len(layer) == 1
    ]
    if None in listed or len(listed) < model.num_layers:
        raise rows.NotWritten
    mixer = rows.keys_of(mixers.NEMOTRON_BLOCK, model) if LINEAR in listed else {}
    biases = {"mamba_proj_bias": mixer["use_bias"]} if mixer else {}
    return {"layers_block_type": listed, **mixer, **biases}


MAMBA = rows.Table(
    attention.NO_ATTENTION, attention.one_head, {"norm": "rmsnorm"},
    Hook(lambda config, fields: pattern([[mixers.MAMBA_BLOCK(config, fields)]])),
)  # fmt: skip


def _mamba2(config: Config, fields: Fields) -> Fields:
    """The heads of the model are those of its blocks."""
    block = mixers.MAMBA2_BLOCK(config, fields)
    heads = {"num_attention_heads": block["num_heads"], "head_dim": block["head_dim"]}
    return {**heads, **pattern([[block]])}


def _jamba(config: Config, fields: Fields) -> Fields:
    """Attention without positions in one layer of each period, experts in every second."""
    places = range(fields["num_layers"])
    period = config.count("attn_layer_period", most=LAYERS, default=8)
    offset = config.count("attn_layer_offset", least=0, most=LAYERS, default=4)
    expert_period = config.count("expert_layer_period", most=LAYERS, default=2)
    expert_offset = config.count("expert_layer_offset", least=0, most=LAYERS, default=1)
    experts = config.count("num_experts", "num_local_experts", most=HEADS, default=16)
    mamba = mixers.JAMBA_BLOCK(config, fields)
    sparse = [experts > 1 and i % expert_period == expert_offset for i in places]
    return layers.stacked(
        [ATTENTION if i % period == offset else mamba for i in places],
        [EXPERTS if flag else MLP for flag in sparse],
    )


def _bamba(config: Config, fields: Fields) -> Fields:
    full = layers.numbered(config, "attn_layer_indices") or set()
    mamba = mixers.BAMBA_BLOCK(config, fields)
    places = range(fields["num_layers"])
    return pattern([[ATTENTION if i in full else mamba, MLP] for i in places])


def _bamba_keys(model: ModelSpec) -> rows.Keys:
    listed = layers.each_layer(model)
    full = [i for i, layer in enumerate(listed) if rows.is_like(ATTENTION, layer[0])]
    return {"attn_layer_indices": full} | rows.keys_of(mixers.BAMBA_BLOCK, model)


def _falcon_width(config: Config, fields: Fields) -> Fields:
    width = config.optional("mamba_d_ssm", most=WIDTH, default=1024)
    return {"_inner": width} if width else mixers.expanded("mamba_expand")(config, fields)


FALCON_MAMBA = Block(
    "mamba2", _falcon_width, mixers.BAMBA, Key("mamba_rms_norm", "gated_norm", False)
)  # fmt: skip


def _falcon_h1(config: Config, fields: Fields) -> Fields:
    """Attention parallel to Mamba-2 in every layer."""
    both = {"kind": "parallel", "branches": [FALCON_MAMBA(config, fields), ATTENTION]}
    return pattern([[both, MLP]])


def _granite_feeds(config: Config, fields: Fields) -> list[Fields]:
    """A shared MLP in every layer, parallel to the experts if there are any."""
    number = config.count("num_local_experts", least=0, most=HEADS, default=8)
    both: Fields = {"kind": "parallel", "branches": [MLP, EXPERTS]}
    return [both if number else MLP] * fields["num_layers"]


GRANITE_MIXERS: dict[str, Fields | Block] = {
    "mamba": mixers.BAMBA_BLOCK, "attention": ATTENTION,
    LINEAR: mixers.BAMBA_BLOCK, FULL: ATTENTION,
}  # fmt: skip
GRANITE_LISTS = "layer_types layers_block_type"


def _granite_kinds(config: Config, depth: int) -> layers.Kinds:
    return ["mamba"] * depth, "Mamba in every layer"


def _granite_position(config: Config, fields: Fields) -> Fields:
    rope = config.data.get("position_embedding_type") == "rope"
    return {"position": "rope" if rope else "none"}


FAMILIES: dict[str, rows.Family] = {
    "bamba": family(
        "BambaForCausalLM", attention.SHAPE, attention.Heads(own=False), attention.FFN,
        attention.DROPOUT, attention.RMSNORM_GATED, Hook(_bamba, _bamba_keys), ATTENTION_BIAS,
        MLP_BIAS,
        num_key_value_heads=8,
    ),
    "falcon_h1": family(
        "FalconH1ForCausalLM", attention.GATED,
        rows.FixedKey("projectors_bias", False, "its projections have no bias"), attention.QKV_BIAS,
        MLP_BIAS, _falcon_h1,
        num_key_value_heads=8,
    ),
    "falcon_mamba": family("FalconMambaForCausalLM", MAMBA, tie_word_embeddings=True),
    "granitemoehybrid": family(
        "GraniteMoeHybridForCausalLM", attention.ROUTED, ATTENTION_BIAS, _granite_position,
        Key("shared_intermediate_size", "ffn_hidden_size", 1024),
        layers.Layers(
            GRANITE_MIXERS, _granite_kinds, layers.FeedForwardLayout(_granite_feeds), GRANITE_LISTS
        ),
        Sparse(
            Key("num_local_experts", "moe.num_experts", 8),
            Key("num_experts_per_tok", "moe.top_k", 2),
            Key("intermediate_size", "moe.expert_ffn_hidden_size"),
        ),
    ),
    "jamba": family(
        "JambaForCausalLM", attention.GATED, {"position": "none"}, _jamba,
        Sparse(routed(top_k=2), SAME_WIDTH),
        num_key_value_heads=8, num_experts=16,
    ),
    "mamba": family("MambaForCausalLM", MAMBA, tie_word_embeddings=True),
    "mamba2": family(
        "Mamba2ForCausalLM", attention.NO_ATTENTION, {"norm": "rmsnorm"},
        Hook(_mamba2, mixers.MAMBA2_BLOCK.keys), mixers.EXPAND,
        chunk_size=256,
    ),
    "nemotron_h": family(
        "NemotronHForCausalLM", attention.HIDDEN, Key("num_attention_heads", "num_attention_heads"),
        Key("num_key_value_heads", "num_query_groups", 8),
        Key("head_dim attention_head_dim", "head_dim", 128), attention.FFN, attention.VOCABULARY,
        attention.TIED, {"norm": "rmsnorm", "position": "none"}, Hook(_nemotron, _nemotron_keys),
        ATTENTION_BIAS, MLP_BIAS, attention.DROPOUT, attention.HIDDEN_DROPOUT,
        Sparse(
            Key("n_routed_experts", "moe.num_experts", 8),
            Key("num_experts_per_tok", "moe.top_k", 2), experts.WIDTH,
            Key("moe_shared_expert_intermediate_size", "moe.shared_expert_ffn_hidden_size", 7688),
            Hook(keys=lambda model: {"n_shared_experts": 1}),
            Key("moe_latent_size", "moe.latent_size"), experts.BALANCED, Groups(),
        ),
        moe_intermediate_size=7688,
    ),
}  # fmt: skip
