"""Keys and fields that the configs of families with layer patterns share."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any, TypeVar

from cost_models.blocks import Sublayer
from cost_models.blocks.attention import Attention
from cost_models.spec import ModelSpec

Keys = dict[str, Any]
Fields = dict[str, Any]
Blocks = dict[str, Any]
Layer = list[Blocks]
Kind = TypeVar("Kind", bound=Sublayer)

ATTENTION: Blocks = {"kind": "attention"}
MLP: Blocks = {"kind": "mlp"}
EXPERTS: Blocks = {"kind": "experts"}


def layers_of(model: ModelSpec) -> list[tuple[Sublayer, ...]]:
    return list(islice(cycle(model.layer_pattern), model.num_layers))


def first_block(model: ModelSpec, kind: type[Kind]) -> Kind | None:
    """The first block of a kind, branches of parallel blocks included."""
    for layer in model.layer_pattern:
        for block in layer:
            for one in (block, *getattr(block, "branches", ())):
                if isinstance(one, kind):
                    return one
    return None


def is_moe(layer: tuple[Sublayer, ...]) -> bool:
    return any(block.kind == "experts" for block in layer)


def attends(layer: tuple[Sublayer, ...]) -> Attention | None:
    return next((block for block in layer if isinstance(block, Attention)), None)


def usual(model: ModelSpec) -> Keys:
    """The keys that most families have."""
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "attention_dropout": model.attention_dropout,
    }


def shape(keys: Keys, layers: list[Layer], **more: Any) -> Fields:
    """The fields that follow from the usual keys, for a gated model with RMS norms."""
    return {
        "num_layers": keys["num_hidden_layers"],
        "hidden_size": keys["hidden_size"],
        "num_attention_heads": keys["num_attention_heads"],
        "num_query_groups": keys["num_key_value_heads"],
        "head_dim": keys["head_dim"],
        "ffn_hidden_size": keys["intermediate_size"],
        "vocab_size": keys["vocab_size"],
        "tied_embeddings": keys["tie_word_embeddings"],
        "attention_dropout": keys["attention_dropout"],
        "norm": "rmsnorm",
        "gated_mlp": True,
        "layer_pattern": layers,
        **more,
    }


def moe_keys(model: ModelSpec, experts: str = "num_experts") -> Keys:
    moe = model.moe
    if moe is None:
        return {}
    return {
        experts: moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_ffn_hidden_size,
    }


def moe_fields(keys: Keys, experts: str = "num_experts", **more: Any) -> Fields:
    """The `moe` field that follows from moe_keys; empty without them."""
    if experts not in keys:
        return {}
    return {
        "moe": {
            "num_experts": keys[experts],
            "top_k": keys["num_experts_per_tok"],
            "expert_ffn_hidden_size": keys["moe_intermediate_size"],
            **more,
        }
    }


def group_fields(keys: Keys) -> Fields:
    grouped = keys.get("n_group", 1) > 1
    names = {"num_groups": "n_group", "top_k_groups": "topk_group"}
    return {field: keys[name] for field, name in names.items()} if grouped else {}
