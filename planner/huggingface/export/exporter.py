"""Writes a ModelSpec as a config.json from which a family of transformers builds it, if one can.

The keys are those of the family's table; a config counts only if reading it gives the same model.
"""

from __future__ import annotations

from functools import lru_cache

from cost_models.blocks import Sublayer
from cost_models.spec import ModelSpec
from planner.huggingface.config import ModelImportError
from planner.huggingface.families.layers import each_layer
from planner.huggingface.families.registry import FAMILIES
from planner.huggingface.families.rows import Keys
from planner.huggingface.importer import model_from_config

# Simplest first: a model is written as the first family that can represent it.
UNIFORM = (
    "llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt2", "mixtral", "qwen2_moe", "qwen3_moe",
    "gpt_oss", "deepseek_v3", "gemma2", "gemma3_text", "falcon", "mpt", "bloom",
    "nemotron", "gpt_neox", "deepseek_v2", "glm4_moe", "minimax_m2", "olmo", "olmoe", "phi", "gptj",
    "gpt_bigcode", "starcoder2", "stablelm", "cohere",
)  # fmt: skip
# The same for models with a layer pattern.
PATTERNED = (
    "qwen3_5_text", "qwen3_next", "mamba2", "nemotron_h", "bamba", "lfm2", "lfm2_moe",
    "deepseek_v32", "minimax", "llama4_text", "smollm3", "gemma3_text", "qwen3", "olmo3",
    "kimi_linear", "glm4_moe_lite", "gemma4_text",
)  # fmt: skip
# Families with buffers besides parameters, such as load-balancing biases or decays.
BUFFERED = frozenset({"nemotron_h", "lfm2_moe", "deepseek_v32", "minimax", "kimi_linear"})
# Keys that stand first in a file, whatever the family.
FIRST = (
    "hidden_size", "n_embd", "intermediate_size", "n_inner", "num_hidden_layers", "n_layer",
    "num_attention_heads", "n_head", "num_key_value_heads", "head_dim", "n_positions",
    "vocab_size", "tie_word_embeddings", "attention_dropout", "use_sliding_window",
    "sliding_window",
)  # fmt: skip
# Fields that do not change the weights of the model that transformers builds.
NO_WEIGHTS = {"name", "max_position_embeddings", "numerics"}
# Further such fields where layers differ: the layer pattern gives windows and the places of
# experts, and a router's buffer has no key in most families.
IN_PATTERN = {
    "sliding_window",
    "full_attention_period",
    "moe.score_correction_bias",
    "moe.num_dense_layers",
    "moe.layer_frequency",
    "moe.layer_offset",
}


@lru_cache(maxsize=1024)  # trying the families takes milliseconds, and every trainer asks
def config_of(model: ModelSpec) -> Keys | None:
    """The config.json of the first family that builds exactly this model; None: there is none."""
    exact = (family for family in _families(model) if not _differences(model, family))
    return next((_config(model, family) for family in exact), None)


def has_buffers(config: Keys) -> bool:
    """Whether the family of a model with a layer pattern has buffers besides parameters."""
    return config["model_type"] in BUFFERED


def nearest_family(model: ModelSpec) -> tuple[str, tuple[str, ...]]:
    """The closest family, and the fields in which its model differs from this one."""
    found = {family: _differences(model, family) for family in _families(model)}
    family = min(found, key=lambda name: len(found[name]))
    return family, found[family]


def _families(model: ModelSpec) -> tuple[str, ...]:
    return PATTERNED if model.layer_pattern else UNIFORM


def _config(model: ModelSpec, family: str) -> Keys:
    keys = FAMILIES[family].keys(model)
    first = {name: keys.pop(name) for name in FIRST if name in keys}
    return (
        {"model_type": family, "architectures": [FAMILIES[family].architectures[0]]} | first | keys
    )


@lru_cache(maxsize=1024)  # a model that no family builds is asked for the nearest one too
def _differences(model: ModelSpec, family: str) -> tuple[str, ...]:
    """Fields in which the family's model differs, nested ones as moe.FIELD or mla.FIELD."""
    try:
        read = model_from_config(_config(model, family)).model
    except ModelImportError as error:
        return tuple(problem.pointer for problem in error.problems) * 9
    one, other = _flat(model), _flat(read)
    if model.layer_pattern:
        bare = read.position == "none"
        one, other = one | _layers(model, bare), other | _layers(read, bare)
        for name in IN_PATTERN | _unused(model) | ({"position"} if bare else set()):
            one.pop(name, None)
    return tuple(sorted(name for name, value in one.items() if other.get(name) != value))


def _layers(model: ModelSpec, bare: bool) -> Keys:
    """The blocks of every layer with all of their options; bare: attention has no positions."""
    own = {
        "num_attention_heads": model.num_attention_heads,
        "num_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "head_dim": model.head_dim,
        "sinks": model.attention_sinks,
        "qk_norm": model.qk_norm,
        "width": model.ffn_hidden_size,
        "gated": model.gated_mlp,
        "bias": model.mlp_bias,
    }
    written: dict[Sublayer, Keys] = {}
    layers = each_layer(model)
    for block in dict.fromkeys(block for layer in layers for block in layer):
        keys = block.model_dump()
        keys |= {name: own[name] for name in keys if keys[name] is None and name in own}
        if bare and "rope" in keys:
            keys["rope"] = False
        written[block] = keys
    return {"layer_pattern": [[written[block] for block in layer] for layer in layers]}


def _unused(model: ModelSpec) -> set[str]:
    """Fields of attention and MLPs that no layer has."""
    kinds = {block.kind for layer in each_layer(model) for block in layer}
    unused = set[str]()
    if not kinds & {"attention", "latent_attention"}:
        unused |= {"num_attention_heads", "num_query_groups", "head_dim"}
    if "mlp" not in kinds:
        unused |= {"ffn_hidden_size", "mlp_bias"}
    if not kinds & {"mlp", "experts"}:
        unused |= {"gated_mlp"}
    return unused


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
