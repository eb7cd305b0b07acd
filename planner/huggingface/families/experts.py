"""Rows of routed and shared experts, and of layers of multi-token prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cost_models.spec import ModelSpec
from planner.huggingface.config import HEADS, Config
from planner.huggingface.families import rows
from planner.huggingface.families.layers import EXPERTS, Layer, has_experts
from planner.huggingface.families.rows import Fields, Key, Keys, NotWritten, Table


def routed(number: str = "num_experts num_local_experts", top_k: int | None = None) -> Table:
    """The number of experts and how many a token uses; number: the keys of the first."""
    return Table(
        Key(number, "moe.num_experts"), Key("num_experts_per_tok", "moe.top_k", top_k)
    )  # fmt: skip


WIDTH = Key("moe_intermediate_size", "moe.expert_ffn_hidden_size")
BALANCED: Fields = {"moe.score_correction_bias": True}
SHARED_WIDTH = Key("shared_intermediate_size", "moe.shared_expert_ffn_hidden_size")


def _same_width(model: ModelSpec) -> Keys:
    if model.moe is None:
        raise NotWritten
    return {"intermediate_size": model.moe.expert_ffn_hidden_size}


# Experts as wide as the MLP that the family has no other key for.
SAME_WIDTH = rows.Hook(
    lambda config, fields: {"moe.expert_ffn_hidden_size": fields["ffn_hidden_size"]}, _same_width
)


@dataclass(frozen=True)
class Shared:
    """A number of shared experts, each as wide as a routed one."""

    names: str
    default: int | None = None
    least: int = 0

    def __call__(self, config: Config, fields: Fields) -> Fields:
        count = config.count(*self.names.split(), least=self.least, most=1000, default=self.default)
        return {"moe.shared_expert_ffn_hidden_size": count * fields["moe.expert_ffn_hidden_size"]}

    def keys(self, model: ModelSpec) -> Keys:
        if model.moe is None:
            raise NotWritten
        width = model.moe.shared_expert_ffn_hidden_size
        return {self.names.split()[0]: width // model.moe.expert_ffn_hidden_size}


@dataclass(frozen=True)
class Groups:
    """Groups of experts for routing, with the family's defaults; a single group counts as none."""

    number: int = 1
    top_k: int = 1
    names: str = "n_group"

    def __call__(self, config: Config, fields: Fields) -> Fields:
        count = config.count(*self.names.split(), most=HEADS, default=self.number)
        chosen = config.count("topk_group", most=HEADS, default=self.top_k)
        return {} if count == 1 else {"moe.num_groups": count, "moe.top_k_groups": chosen}

    def keys(self, model: ModelSpec) -> Keys:
        if model.moe is None:
            raise NotWritten
        return {"n_group": model.moe.num_groups or 1, "topk_group": model.moe.top_k_groups or 1}


class Sparse:
    """Rows of experts, which are read only where a layer has them."""

    def __init__(self, *parts: rows.Part | Table) -> None:
        self.table = Table(*parts)

    def __call__(self, config: Config, fields: Fields) -> Fields:
        return self.table(config, fields) if has_experts(fields) else {}

    def keys(self, model: ModelSpec) -> Keys:
        return {} if model.moe is None else self.table.keys(model)


# The expert keys of DeepSeek-V3, with its defaults.
DEEPSEEK_SHARED = Shared("n_shared_experts num_shared_experts", 1)
DEEPSEEK = Table(
    Key("n_routed_experts num_local_experts num_experts", "moe.num_experts", 256),
    Key("num_experts_per_tok", "moe.top_k", 8),
    Key("moe_intermediate_size", "moe.expert_ffn_hidden_size", 2048),
    DEEPSEEK_SHARED,
    BALANCED,
)
DENSE_FIRST = Table(
    rows.FixedKey("moe_layer_freq", 1, "every layer after the dense ones has experts"),
    Key("first_k_dense_replace", "moe.num_dense_layers", 0),
)


def prediction(*names: str) -> rows.Read:
    """Multi-token prediction, where the file states it: class defaults differ by release."""
    keys = names or ("num_nextn_predict_layers", "num_mtp_layers")

    def read(config: Config, fields: Fields) -> Fields:
        depth = config.count(
            *keys, least=0, most=16, default=0, because="no multi-token prediction"
        )
        return {"mtp_num_layers": depth}

    return read


def qwen_layers(config: Config, fields: Fields) -> Fields:
    """Qwen: every decoder_sparse_step-th layer has experts, except those of mlp_only_layers.

    Exceptions can be planned only if they are the first layers.
    """
    layers = fields["num_layers"]
    step = config.count("decoder_sparse_step", most=1000, default=1)
    only: Any = config.data.get("mlp_only_layers") or []
    if not isinstance(only, list) or any(type(layer) is not int for layer in only):
        config.refuse("mlp_only_layers", "must be a list of layer numbers")
        only = []
    dense = set(only)
    leading = next(i for i in range(layers + 1) if i not in dense)
    if any(leading <= i < layers and (i + 1) % step == 0 for i in dense):
        config.refuse("mlp_only_layers", "only the first layers can be dense ones")
    return {
        "moe.layer_frequency": step,
        "moe.layer_offset": step - 1,
        "moe.num_dense_layers": leading,
    }


def _qwen_keys(model: ModelSpec) -> Keys:
    """Without norm_topk_prob, which published models state, routing weights do not sum to one."""
    if model.moe is None:
        raise NotWritten
    return {
        "decoder_sparse_step": model.moe.layer_frequency,
        "mlp_only_layers": list(range(model.moe.num_dense_layers)),
        "norm_topk_prob": True,
    }


QWEN_LAYERS = rows.Hook(qwen_layers, _qwen_keys)


def balanced(config: Config, fields: Fields) -> Fields:
    """Load-balancing biases that are parameters of the model, one for each expert."""
    layers: list[Layer] = fields["layer_pattern"]
    if not has_experts(fields):
        return {}
    biases: Fields = {"kind": "products", "parameters": fields["moe.num_experts"]}
    return {"layer_pattern": [[*layer, biases] if EXPERTS in layer else layer for layer in layers]}
