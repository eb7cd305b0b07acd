"""Layer patterns in Megatron-LM's options: the options of each block, and what has none.

A model whose layers all have one mixer and one feed-forward is a GPT model there.  Any other, and
any with Mamba-2, is a hybrid model, where each block is a layer of its own, named by a letter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import cycle, groupby, islice
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
from planner.frameworks.megatron.option_rows import Records

# The letters of --hybrid-layer-pattern.
SYMBOLS = {
    "mamba2": "M",
    "gated_delta_net": "G",
    "attention": "*",
    "mlp": "-",
    "experts": "E",
}
BLOCKS = (*SYMBOLS, "latent_attention")
PARTS = ("expert_latents", "mtp_layer")
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


def list_expression(digits: Sequence[int]) -> str:
    """One number per layer as the shorter list expression that Megatron-LM evaluates."""
    runs = ((digit, len(list(run))) for digit, run in groupby(digits))
    return min(
        "+".join(f"[{digit}]*{length}" for digit, length in runs),
        f"[{','.join(map(str, digits))}]",
        key=len,
    )


# Details without an option.


def _all_equal(found: Sequence[Hashable]) -> bool:
    return len(set(found)) <= 1


def _attention(model: ModelSpec) -> Iterator[str]:
    found = blocks_of(model, Attention)
    if any(block.chunk for block in found):
        yield "no option for chunked attention"
    shape = (model.num_attention_heads, model.num_query_groups, model.head_dim)
    shapes = {
        (
            block.num_attention_heads or model.num_attention_heads,
            block.num_query_groups or block.num_attention_heads or model.num_query_groups,
            block.head_dim or model.head_dim,
        )
        for block in found
    }
    if shapes - {shape}:
        yield "all attention layers have the same heads"
    if any(block.value_head_dim not in (None, model.head_dim) for block in found):
        yield "values have the width of keys, except in latent attention"
    if any(block.key_values != "own" for block in found):
        yield "all attention layers have their own key and value projections"
    if any(block.gate == "head" for block in found) or not _all_equal([b.gate for b in found]):
        yield "the attention output gate is elementwise, in all layers or in none"
    if any(block.indexer is not None for block in found):
        yield "only latent attention has an indexer"
    if not _all_equal([block.window for block in found if block.window is not None]):
        yield "all windows have one width"
    if any(block.sinks not in (None, model.attention_sinks) for block in found):
        yield "all attention layers have sinks, or none"
    if any(block.qk_norm not in (None, model.qk_norm) for block in found):
        yield "all attention layers have query/key norms, or none"


def _latent(model: ModelSpec) -> Iterator[str]:
    found = blocks_of(model, LatentAttention)
    if not found:
        return
    if is_hybrid(model):
        yield "latent attention in hybrid models has no norms of the latents"
    if blocks_of(model, Attention):
        yield "attention is latent in every layer or in none"
    if any(block.window is not None for block in found):
        yield "latent attention has no window"
    if any(block.gate != "none" for block in found):
        yield "latent attention has no output gate"
    if any(block.rope_key_norm for block in found):
        yield "the rotary part of latent keys has no norm"
    indexers = [block.indexer for block in found]
    if any(indexers) and not all(indexers):
        yield "all latent attention layers have an indexer, or none"
    if any(one is not None and not one.key_norm_bias for one in indexers):
        yield "the norm of an indexer's keys has a bias"
    if not _all_equal([_shape(one) for one in indexers if one is not None]):
        yield "all indexers have one shape"
    if any(one is not None and one.shared for one in indexers):
        yield "only since core 0.19 can a layer reuse the keys that an earlier indexer chose"
    if any(indexers) and blocks_of(model, GatedDeltaNet):
        yield "a model has indexers or gated delta nets, not both"


def _shape(indexer: Indexer) -> tuple[int, int, int]:
    return indexer.num_heads, indexer.head_dim, indexer.top_k


def _recurrent(model: ModelSpec) -> Iterator[str]:
    mamba, delta = blocks_of(model, Mamba2), blocks_of(model, GatedDeltaNet)
    if not _all_equal([(b.num_heads, b.head_dim, b.state_size, b.num_groups) for b in mamba]):
        yield "all Mamba-2 layers have one shape"
    if any(
        b.convolution != MAMBA_TAPS or not b.convolution_bias or b.bias or not b.gated_norm
        for b in mamba
    ):
        yield (
            f"Mamba-2 layers have a convolution of {MAMBA_TAPS} taps with a bias, projections "
            "without a bias, and a gated norm"
        )
    if not _all_equal(delta):
        yield "all gated delta nets have one shape"
    if any(b.channel_decays or b.decay_rank or b.gate_rank or not b.gated for b in delta):
        yield "gated delta nets have one decay per head and a full-rank output gate"
    if any(b.convolution < 2 for b in delta):
        yield "gated delta nets have a short convolution"


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


_REASONS: tuple[Callable[[ModelSpec], Iterator[str]], ...] = (
    _attention, _latent, _recurrent, _feed_forward, _prediction,
)  # fmt: skip


def lacks(model: ModelSpec) -> tuple[str, ...]:
    """Sentences on details of the blocks in BLOCKS that have no option."""
    return tuple(dict.fromkeys(text for reasons in _REASONS for text in reasons(model)))


# Options of a pattern.


def pattern_options(model: ModelSpec) -> Iterator[Row]:
    """The options of a pattern, without those of its feed-forwards and of a hybrid model."""
    layers, attention = megatron_layers(model), blocks_of(model, Attention)
    windows = [block.window for block in attention]
    if any(windows):
        width = max(filter(None, windows))
        yield "--window-size", f"{width - 1},0", "sliding window: tokens to the left, to the right"
        if not all(windows):
            kinds = [int(_has(layer, lambda block: block.window is not None)) for layer in layers]
            yield (
                "--window-attn-skip-freq",
                list_expression(kinds),
                "0: a layer with full attention",
            )
    if position(model) == "rope" and not all(block.rope for block in attention):
        kinds = [int(_has(layer, lambda block: not block.rope)) for layer in layers]
        yield "--no-rope-freq", list_expression(kinds), "1: a layer without RoPE"
    if any(block.gate == "element" for block in attention):
        yield "--attention-output-gate", "elementwise gate on the attention output"
    if _indexer(model) is not None:
        yield "--experimental-attention-variant", "dsa", "sparse attention: an indexer chooses keys"
        yield "--no-rope-fusion", "sparse attention has no fused RoPE"
    if blocks_of(model, GatedDeltaNet) and not is_hybrid(model):
        kinds = [int(isinstance(layer[0], GatedDeltaNet)) for layer in every_layer(model)]
        yield "--experimental-attention-variant", "gated_delta_net", "linear attention layers"
        yield "--linear-attention-freq", list_expression(kinds), "0: an attention layer"


def _has(layer: Sequence[Sublayer], test: Callable[[Attention], bool]) -> bool:
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
