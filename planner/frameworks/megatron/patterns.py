"""Layer patterns in Megatron-LM's options: the options of each block, and what has none.

A model whose layers all have one mixer and one feed-forward is a GPT model there.  Any other, and
any with Mamba-2, is a hybrid model, where each block is a layer of its own, named by a letter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import cycle, islice
from typing import TypeVar

from cost_models.blocks import FeedForward, Mixer, Sublayer
from cost_models.blocks.attention import Attention
from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.blocks.indexer import Indexer
from cost_models.blocks.latent_attention import LatentAttention
from cost_models.blocks.mamba2 import Mamba2
from cost_models.blocks.mlp import MLP
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.frameworks.base import Row
from planner.frameworks.megatron import layer_lists
from planner.frameworks.megatron_option_rows import Records

# The letters of a hybrid model's pattern.
SYMBOLS = {"mamba2": "M", "gated_delta_net": "G", "attention": "*", "mlp": "-", "experts": "E"}
BLOCKS = (*SYMBOLS, "latent_attention")
PARTS = ("expert_latents", "mtp_layer")
VARIANT = "--experimental-attention-variant"
# Convolution taps of its Mamba-2 layer, which no option changes.
MAMBA_TAPS = 4

Kind = TypeVar("Kind", bound=Sublayer)


def blocks_of(model: ModelSpec, kind: type[Kind]) -> list[Kind]:
    """The distinct blocks of a kind in the pattern, in order."""
    found = (block for layer in model.layer_pattern for block in layer)
    return list(dict.fromkeys(block for block in found if isinstance(block, kind)))


def every_layer(model: ModelSpec) -> list[tuple[Sublayer, ...]]:
    """The pattern over all layers; empty if the model has none."""
    return list(islice(cycle(model.layer_pattern), model.num_layers))


def is_hybrid(model: ModelSpec) -> bool:
    """Whether only Megatron-LM's hybrid model can have these layers."""
    return bool(blocks_of(model, Mamba2)) or not all(map(_is_pair, model.layer_pattern))


def _is_pair(layer: Sequence[Sublayer]) -> bool:
    return len(layer) == 2 and isinstance(layer[0], Mixer) and isinstance(layer[1], FeedForward)


def megatron_layers(model: ModelSpec) -> list[tuple[Sublayer, ...]]:
    """The layers as Megatron-LM counts them: the model's, or the blocks of a hybrid model."""
    layers = every_layer(model)
    return [(block,) for layer in layers for block in layer] if is_hybrid(model) else layers


def position(model: ModelSpec) -> str:
    """The model's kind of positions; "none" if no attention layer of its pattern has rope."""
    attention = blocks_of(model, Attention)
    unplaced = attention and not any(block.rope for block in attention)
    return "none" if unplaced and model.position == "rope" else model.position


# Details without an option.

_Test = Callable[[ModelSpec], bool]


def _any(kind: type[Kind], test: Callable[[Kind, ModelSpec], object]) -> _Test:
    """Whether a block of the kind passes the test."""
    return lambda model: any(test(block, model) for block in blocks_of(model, kind))


def _differ(kind: type[Kind], value: Callable[[Kind], Hashable]) -> _Test:
    """Whether blocks of the kind have different values, apart from None."""
    return lambda model: len({value(block) for block in blocks_of(model, kind)} - {None}) > 1


def _heads(block: Attention, model: ModelSpec) -> tuple[int, int, int]:
    return (*block.heads(model), block.head_dim or model.head_dim)


def _indexer_shape(block: LatentAttention) -> tuple[int, int, int] | None:
    one = block.indexer
    return None if one is None else (one.num_heads, one.head_dim, one.top_k)


# What holds in Megatron-LM, and whether a model breaks it.
_RESTRICTIONS: dict[str, _Test] = {
    "no option for chunked attention": _any(Attention, lambda b, _: b.chunk),
    "all attention layers have the same heads": _any(
        Attention,
        lambda b, m: _heads(b, m) != (m.num_attention_heads, m.num_query_groups, m.head_dim),
    ),
    "values have the width of keys, except in latent attention": _any(
        Attention, lambda b, m: b.value_head_dim not in (None, m.head_dim)
    ),
    "all attention layers have their own key and value projections": _any(
        Attention, lambda b, _: b.key_values != "own"
    ),
    "the attention output gate is elementwise, in all layers or in none": lambda m: (
        {block.gate for block in blocks_of(m, Attention)} not in (set(), {"none"}, {"element"})
    ),
    "only latent attention has an indexer": _any(Attention, lambda b, _: b.indexer),
    "all windows have one width": _differ(Attention, lambda b: b.window),
    "all attention layers have sinks, or none": _any(
        Attention, lambda b, m: b.sinks not in (None, m.attention_sinks)
    ),
    "all attention layers have query/key norms, or none": _any(
        Attention, lambda b, m: b.qk_norm not in (None, m.qk_norm)
    ),
    "latent attention in hybrid models has no norms of the latents": _any(
        LatentAttention, lambda _, m: is_hybrid(m)
    ),
    "attention is latent in every layer or in none": _any(
        LatentAttention, lambda _, m: blocks_of(m, Attention)
    ),
    "latent attention has no window": _any(LatentAttention, lambda b, _: b.window),
    "latent attention has no output gate": _any(LatentAttention, lambda b, _: b.gate != "none"),
    "the rotary part of latent keys has no norm": _any(
        LatentAttention, lambda b, _: b.rope_key_norm
    ),
    "all latent attention layers have an indexer, or none": _differ(
        LatentAttention, lambda b: b.indexer is None
    ),
    "the norm of an indexer's keys has a bias": _any(
        LatentAttention, lambda b, _: b.indexer and not b.indexer.key_norm_bias
    ),
    "all indexers have one shape": _differ(LatentAttention, _indexer_shape),
    "only since core 0.19 can a layer reuse the keys that an earlier indexer chose": _any(
        LatentAttention, lambda b, _: b.indexer and b.indexer.shared
    ),
    "a model has indexers or gated delta nets, not both": _any(
        LatentAttention, lambda b, m: b.indexer and blocks_of(m, GatedDeltaNet)
    ),
    "all Mamba-2 layers have one shape": _differ(
        Mamba2, lambda b: (b.num_heads, b.head_dim, b.state_size, b.num_groups)
    ),
    (
        f"Mamba-2 layers have a convolution of {MAMBA_TAPS} taps with a bias, projections "
        "without a bias, and a gated norm"
    ): _any(
        Mamba2,
        lambda b, _: (
            (b.convolution, b.convolution_bias, b.bias, b.gated_norm)
            != (MAMBA_TAPS, True, False, True)
        ),
    ),
    "all gated delta nets have one shape": _differ(GatedDeltaNet, lambda b: b),
    "gated delta nets have one decay per head and a full-rank output gate": _any(
        GatedDeltaNet, lambda b, _: b.channel_decays or b.decay_rank or b.gate_rank or not b.gated
    ),
    "gated delta nets have a short convolution": _any(
        GatedDeltaNet, lambda b, _: b.convolution < 2
    ),
}


def _feed_forward(model: ModelSpec) -> Iterator[str]:
    for block in blocks_of(model, MLP):
        if block.width not in (None, model.ffn_hidden_size):
            yield "all dense MLPs have one width"
        if block.gated not in (None, model.gated_mlp):
            yield "all MLPs are gated, or none"
        if block.bias not in (None, model.mlp_bias):
            yield "all MLPs have biases, or none"
    moe = model.moe
    if moe is not None and moe.latent_size is not None and moe.latent_bias != moe.expert_bias:
        yield "latent projections and experts both have biases, or neither"


def _prediction(model: ModelSpec) -> Iterator[str]:
    if model.mtp_layer and not is_hybrid(model):
        yield "a prediction layer has the last layer's blocks, except in hybrid models"
    if any(block.kind not in SYMBOLS for block in model.mtp_layer):
        yield f"a prediction layer has only {', '.join(SYMBOLS)}"


def lacks(model: ModelSpec) -> tuple[str, ...]:
    """Sentences on details of the blocks in BLOCKS that have no option."""
    found = [text for text, broken in _RESTRICTIONS.items() if broken(model)]
    return tuple(dict.fromkeys((*found, *_feed_forward(model), *_prediction(model))))


# Options of a pattern.


def pattern_options(model: ModelSpec) -> Iterator[Row]:
    """The options of a pattern, without windows, feed-forwards and what a hybrid model has."""
    layers, attention = megatron_layers(model), blocks_of(model, Attention)
    if position(model) == "rope" and not all(block.rope for block in attention):
        kinds = [int(has(layer, lambda block: not block.rope)) for layer in layers]
        yield "--no-rope-freq", layer_lists.list_expression(kinds), "1: a layer without RoPE"
    if any(block.gate == "element" for block in attention):
        yield "--attention-output-gate", "elementwise gate on the attention output"
    if _indexer(model) is not None:
        yield VARIANT, "dsa", "sparse attention: an indexer chooses keys"
        yield "--no-rope-fusion", "sparse attention has no fused RoPE"
    if blocks_of(model, GatedDeltaNet) and not is_hybrid(model):
        kinds = [int(isinstance(layer[0], GatedDeltaNet)) for layer in every_layer(model)]
        yield VARIANT, "gated_delta_net", "linear attention layers"
        yield "--linear-attention-freq", layer_lists.list_expression(kinds), "0: an attention layer"


def has(layer: Sequence[Sublayer], test: Callable[[Attention], bool]) -> bool:
    return any(isinstance(block, Attention) and test(block) for block in layer)


def _indexer(model: ModelSpec) -> Indexer | None:
    return next(
        (block.indexer for block in blocks_of(model, LatentAttention) if block.indexer), None
    )


def records(model: ModelSpec, plan: ParallelPlan | None = None) -> Records:
    """What a launch of the model says, by the names of OPTIONS."""
    return {
        "model": model,
        "mla": model.mla,
        "moe": model.moe,
        "numerics": model.numerics,
        "mamba2": next(iter(blocks_of(model, Mamba2)), None),
        "delta_net": next(iter(blocks_of(model, GatedDeltaNet)), None),
        "indexer": _indexer(model),
        "plan": plan,
        "expert_plan": plan if model.moe is not None else None,
    }
