"""Scales layer patterns down: every kind of layer remains, each block in proportion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cost_models.blocks import Sublayer
from cost_models.blocks.attention import Attention
from cost_models.blocks.compressed_attention import CompressedAttention
from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.blocks.latent_attention import LatentAttention
from cost_models.blocks.lightning import LightningAttention
from cost_models.blocks.lru import LinearRecurrentUnit
from cost_models.blocks.mamba import Mamba
from cost_models.blocks.mamba2 import Mamba2
from cost_models.blocks.mlp import MLP
from cost_models.blocks.parallel import Parallel
from cost_models.blocks.rwkv import ChannelMix, TimeMix
from cost_models.spec import MLASpec, ModelSpec

Pattern = tuple[tuple[Sublayer, ...], ...]
# Limit on heads per shared head: query heads per key head, value heads per key head.
_MAX_SHARED = 4
_LATENT_DIMS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Scale:
    """The scale of a smaller model: tp: ranks that must split all heads; shrunk, shortened: ratios
    of new to old width and length; head_dim: the most; width: maps an old matrix width to the new.
    """

    tp: int
    shrunk: float
    shortened: float
    head_dim: int
    width: Callable[[int], int]

    def heads(self, full: int) -> int:
        """The number of heads, scaled down to a multiple of tp."""
        return self.tp * max(1, round(full * self.shrunk / self.tp))

    def dim(self, full: int) -> int:
        return min(full, self.head_dim)

    def tokens(self, full: int | None) -> int | None:
        """The tokens of a window or a chunk, scaled down."""
        return None if full is None else max(1, round(full * self.shortened))


def narrowed(pattern: Pattern, scale: Scale) -> Pattern:
    """The pattern with every block scaled down."""
    return tuple(tuple(_block(block, scale) for block in layer) for layer in pattern)


def shortened(model: ModelSpec, layers: int) -> ModelSpec:
    """The model with fewer layers, which begin with one of every kind, in order of appearance."""
    if not model.layer_pattern or layers >= model.num_layers:
        return model.model_copy(update={"num_layers": layers})
    pattern = model.layer_pattern * (-(-model.num_layers // len(model.layer_pattern)))
    kinds = tuple(dict.fromkeys(pattern[: model.num_layers]))
    return model.model_copy(update={"num_layers": layers, "layer_pattern": kinds[:layers]})


def kinds(model: ModelSpec) -> int:
    """The number of different kinds of layers."""
    return len(set(model.layer_pattern)) or 1


def _block(block: Sublayer, scale: Scale) -> Sublayer:
    if isinstance(block, Parallel):
        branches = tuple(_block(branch, scale) for branch in block.branches)
        return block.model_copy(update={"branches": branches})
    return block.model_copy(update=_fields(block, scale))


def _mamba2(block: Mamba2, scale: Scale) -> dict[str, Any]:
    groups = min(block.num_groups, scale.tp)
    shared = max(1, round(block.num_heads * scale.shrunk / groups))
    dims = {name: scale.dim(getattr(block, name)) for name in ("head_dim", "state_size")}
    return {"num_groups": groups, "num_heads": groups * shared, **dims}


def _delta_net(block: GatedDeltaNet, scale: Scale) -> dict[str, Any]:
    shared = min(block.num_value_heads // block.num_key_heads, _MAX_SHARED)
    keys = scale.heads(block.num_key_heads)
    dims = {n: scale.dim(getattr(block, n)) for n in ("key_head_dim", "value_head_dim")}
    ranks = {
        "decay_rank": block.decay_rank and scale.dim(block.decay_rank),
        "gate_rank": block.gate_rank and scale.dim(block.gate_rank),
    }
    return {"num_key_heads": keys, "num_value_heads": keys * shared, **dims, **ranks}


def _fields(block: Sublayer, scale: Scale) -> dict[str, Any]:
    """The new values of a block's scaled fields."""
    if isinstance(block, Attention):
        return _attention(block, scale)
    if isinstance(block, LatentAttention):
        return {"window": scale.tokens(block.window)}
    if isinstance(block, CompressedAttention):
        narrow = {n: scale.width(getattr(block, n)) for n in ("q_lora_rank", "o_lora_rank")}
        return {"o_groups": 1, "window": scale.tokens(block.window), **narrow}
    if isinstance(block, Mamba2):
        return _mamba2(block, scale)
    if isinstance(block, GatedDeltaNet):
        return _delta_net(block, scale)
    if isinstance(block, LightningAttention):
        heads, dim = block.num_heads, block.head_dim
        return {"num_heads": heads and scale.heads(heads), "head_dim": dim and scale.dim(dim)}
    if isinstance(block, Mamba):
        rank = scale.dim(block.time_step_rank)
        return {"inner_size": scale.width(block.inner_size), "time_step_rank": rank}
    if isinstance(block, LinearRecurrentUnit):
        blocks = min(block.num_blocks, _MAX_SHARED)  # must divide the width, a multiple of 8
        return {"width": scale.width(block.width), "num_blocks": blocks if blocks != 3 else 2}
    if isinstance(block, MLP | TimeMix | ChannelMix):
        return {"width": block.width and scale.width(block.width)}
    return {}


def narrowed_latents(mla: MLASpec | None, scale: Scale) -> MLASpec | None:
    """The latent attention with head dims limited by the scale and ranks in proportion."""
    if mla is None:
        return None
    dims = {name: scale.dim(getattr(mla, name)) for name in _LATENT_DIMS}
    rank = mla.q_lora_rank and scale.width(mla.q_lora_rank)
    ranks = {"kv_lora_rank": scale.width(mla.kv_lora_rank), "q_lora_rank": rank}
    return mla.model_copy(update=dims | ranks)


def _attention(block: Attention, scale: Scale) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "window": scale.tokens(block.window), "chunk": scale.tokens(block.chunk),
        "head_dim": block.head_dim and scale.dim(block.head_dim),
        "value_head_dim": block.value_head_dim and scale.dim(block.value_head_dim),
    }  # fmt: skip
    heads, groups = block.num_attention_heads, block.num_query_groups
    if groups is not None:
        # If the block has the model's number of heads, take tp groups, which divide them.
        groups = scale.heads(groups) if heads is not None else scale.tp
        fields["num_query_groups"] = groups
    if heads is not None:
        shared = min(heads // (block.num_query_groups or heads), _MAX_SHARED)
        fields["num_attention_heads"] = (groups or scale.heads(heads)) * shared
    return fields
