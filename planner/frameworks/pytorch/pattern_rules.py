"""Rules for layer patterns that the training script cannot build."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd

import numpy as np

from cost_models.blocks import Sublayer
from cost_models.blocks.attention import Attention
from cost_models.blocks.compressed_attention import CompressedAttention
from cost_models.blocks.cross_attention import CrossAttention
from cost_models.blocks.delta_net import CHUNK, GatedDeltaNet
from cost_models.blocks.latent_attention import LatentAttention
from cost_models.blocks.lightning import BLOCK, LightningAttention
from cost_models.blocks.mamba2 import Mamba2
from cost_models.blocks.mlp import MLP
from cost_models.blocks.parallel import Parallel
from cost_models.blocks.per_layer_input import PerLayerInput
from cost_models.plans import RECOMPUTE_MODULES, ParallelPlan, Plans
from cost_models.spec import ModelSpec
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks.base import rule, unsupported
from planner.frameworks.pytorch import patterns
from planner.frameworks.rules import fixed_part, is_named

_WHOLE = {
    "per_layer_input": "its two matrices are replicated",
    "compressed_attention": "its latents are replicated",
    "latent_attention": "its latents are replicated",
    "mamba": "its step, B and C need all channels",
    "linear_recurrent_unit": "its gates are one stacked matrix",
    "rwkv_time_mix": "its token-shift weights are replicated",
    "rwkv_channel_mix": "its token-shift weights are replicated",
}


def _none(found: Callable[[Sublayer, ModelSpec], bool], text: str) -> Rule:
    """A rule against blocks of the pattern for which `found` is true."""
    return fixed_part(lambda m: not any(found(block, m) for block in patterns.each(m)), text)


def _not_built(model: ModelSpec) -> list[str]:
    blocks = patterns.each(model)
    return sorted({block.label for block in blocks if block.kind not in patterns.KINDS})


def _repeats(model: ModelSpec) -> bool:
    """Whether a layer has two mixers, two attentions or two feed-forwards."""
    slots = ([_slot(block) for block in layer] for layer in patterns.layers(model))
    return any(len(set(layer)) < len(layer) for layer in slots)


def _slot(block: Sublayer) -> str:
    return block.kind if isinstance(block, PerLayerInput | CrossAttention) else block.norm


def _beside(block: Sublayer, kind: str) -> bool:
    return isinstance(block, Parallel) and any(x.kind == kind for x in block.branches)


def _other_width(block: Sublayer, m: ModelSpec) -> bool:
    if not isinstance(block, Attention) or block.head_dim in (None, m.head_dim):
        return False
    return block.rope and m.position == "rope"


def _unequal(block: Sublayer, m: ModelSpec) -> bool:
    if not isinstance(block, Attention):
        return False
    return block.value_head_dim not in (None, block.head_dim or m.head_dim)


def _attention_heads(model: ModelSpec) -> Iterator[int]:
    """Head counts that tensor parallelism and all-to-all context parallelism split."""
    for block in patterns.each(model):
        if isinstance(block, Attention):
            yield from block.heads(model)
        if isinstance(block, CrossAttention):
            yield block.num_query_groups or model.num_query_groups
        if isinstance(block, LatentAttention):
            yield model.num_attention_heads


def _recurrent_heads(model: ModelSpec) -> Iterator[int]:
    """Head counts of recurrent blocks, which pass states between ranks and split over tp only."""
    for block in patterns.each(model):
        if isinstance(block, Mamba2):
            yield block.num_groups
        if isinstance(block, GatedDeltaNet):
            yield block.num_key_heads
        if isinstance(block, LightningAttention):
            yield block.num_heads or model.num_attention_heads


def _keys_before(model: ModelSpec) -> bool:
    """Whether each layer that reuses keys comes after one of the same reach and width."""
    made: set[tuple[object, ...]] = set()
    for layer in patterns.layers(model):
        for block in layer:
            if isinstance(block, Attention):
                _, groups = block.heads(model)
                reach = (block.window, block.chunk, groups, block.head_dim)
                if block.key_values == "earlier" and reach not in made:
                    return False
                made = {one for one in made if one[:2] != reach[:2]} | {reach}
    return True


def _chosen_before(model: ModelSpec) -> bool:
    """Whether each layer that reuses an indexer's choice comes after an indexer."""
    indexers = (getattr(b, "indexer", None) for layer in patterns.layers(model) for b in layer)
    first = next((indexer for indexer in indexers if indexer is not None), None)
    return first is None or not first.shared


def _only_fused(model: ModelSpec) -> bool:
    crosses = any(isinstance(block, CrossAttention) for block in patterns.each(model))
    chosen = patterns.has_indexer(model) or patterns.compresses(model)
    return crosses or chosen or patterns.has_sinks(model)


def _by_operator(plans: Plans) -> BoolArray:
    return np.asarray(plans.recompute_modules == 1 << RECOMPUTE_MODULES.index("op"))


def _heads_divide(c: Context, p: Plans) -> BoolArray:
    """Whether heads divide over tp, and heads of all-to-all attention over tp x cp."""
    ranks = p.tp * np.where(is_named(p, "cp_kind", "a2a"), p.cp, 1)
    traded, handed = gcd(*_attention_heads(c.model)), gcd(*_recurrent_heads(c.model))
    return np.asarray((traded % ranks == 0) & (handed % p.tp == 0))


def _heads_text(c: Context, p: ParallelPlan) -> str:
    if p.cp_kind != "a2a" or gcd(*_recurrent_heads(c.model)) % p.tp:
        common = gcd(*_attention_heads(c.model), *_recurrent_heads(c.model))
        return f"heads of the pattern divide over divisors of {common}, not tp {p.tp}"
    return (
        f"attention heads divide over divisors of {gcd(*_attention_heads(c.model))}, not tp "
        f"{p.tp} x cp {p.cp}"
    )


def _unsplit(model: ModelSpec) -> str:
    """Why tensor parallelism cannot split a block; empty if it can split all."""
    if model.residual_streams > 1:
        return "residual streams: mixing needs all of them"
    for block in patterns.each(model):
        if getattr(block, "indexer", None) is not None:
            return f"{block.label}: its indexer needs all heads"
        if block.kind in _WHOLE:
            return f"{block.label}: {_WHOLE[block.kind]}"
        if isinstance(block, LightningAttention) and block.output_norm == "all":
            return f"{block.label}: one norm spans all heads"
        if isinstance(block, GatedDeltaNet) and (block.decay_rank or block.gate_rank):
            return f"{block.label}: its low-rank gates are replicated"
    return ""


def _local(model: ModelSpec) -> bool:
    blocks = patterns.each(model)
    windows = (getattr(b, "window", None) or getattr(b, "chunk", None) for b in blocks)
    return patterns.has_sinks(model) or any(window is not None for window in windows)


def _context_tokens_needed(model: ModelSpec) -> int:
    """Number of previous tokens that a convolution or a token shift needs."""
    blocks = (block for block in patterns.each(model) if block.kind not in patterns.AT_ONCE)
    taps = (getattr(b, "taps", getattr(b, "convolution", 2)) for b in blocks)
    return max((count - 1 for count in taps), default=0)


def _scanned(model: ModelSpec) -> list[int]:
    """Chunk lengths of chunked recurrences."""
    found = set()
    for block in patterns.each(model):
        if isinstance(block, Mamba2):
            found.add(block.chunk_size)
        if isinstance(block, GatedDeltaNet):
            found.add(int(CHUNK))
        if isinstance(block, LightningAttention):
            found.add(int(BLOCK))
    return sorted(found)


def _whole_chunks(c: Context, p: Plans) -> BoolArray:
    """Whether the tokens of a rank are whole chunks, or at most one."""
    tokens, legal = c.training.seq_length // p.cp, np.ones((), dtype=np.bool_)
    for chunk in _scanned(c.model):
        legal = legal & ((p.cp == 1) | (tokens <= chunk) | (tokens % chunk == 0))
    return np.asarray(legal)


def _chunks(model: ModelSpec, length: int) -> list[int]:
    """Chunk lengths that do not divide the sequence, although they have to."""
    found, compressed = set(_scanned(model)), set()
    for block in patterns.each(model):
        if isinstance(block, Attention):
            if block.chunk:
                found.add(block.chunk)
            if block.indexer is not None and block.indexer.block_size:
                found.add(block.indexer.block_size)
        if isinstance(block, CompressedAttention) and block.compression:
            compressed.add(block.compression)
    several = {one for one in found if one < length}
    return sorted(one for one in several | compressed if length % one)


MODEL_RULES: tuple[Rule, ...] = (
    unsupported(
        lambda c, p: not _not_built(c.model),
        lambda c, p: f"the script does not build {', '.join(_not_built(c.model))}",
        "degrees",
    ),
    fixed_part(
        lambda m: not _repeats(m), "a layer has at most one mixer, attention and feed-forward"
    ),
    fixed_part(
        _keys_before, "shared keys and values need an earlier layer of equal heads and window"
    ),
    _none(
        lambda b, m: isinstance(b, LatentAttention) and m.qk_norm != "none",
        "latent attention has norms on its latents, not on queries and keys",
    ),
    fixed_part(
        lambda m: not (m.attention_dropout and (patterns.has_indexer(m) or patterns.compresses(m))),
        "attention to selected keys or compressed tokens has no dropout",
    ),
    fixed_part(_chosen_before, "a shared indexer needs an indexer in an earlier layer"),
    _none(
        lambda b, m: (
            isinstance(b, Attention) and b.indexer is not None and bool(b.window or b.sinks)
        ),
        "an indexer needs attention without window and sinks",
    ),
    _none(
        lambda b, m: isinstance(b, LatentAttention) and m.attention_sinks,
        "latent attention has no sinks",
    ),
    fixed_part(
        lambda m: not m.attention_dropout or not patterns.has_sinks(m),
        "attention with sinks has no dropout",
    ),
    _none(
        lambda b, m: isinstance(b, Attention) and b.qk_norm == "full",
        "query/key norms are per head, not over all heads",
    ),
    _none(_unequal, "values of attention must be as wide as keys"),
    _none(_other_width, "all layers share one rotary table: heads must be equally wide"),
    _none(
        lambda b, m: isinstance(b, MLP) and b.gated not in (None, m.gated_mlp),
        "all MLPs must be gated, or none",
    ),
    _none(lambda b, m: _beside(b, "parallel"), "parallel blocks cannot be nested"),
    _none(lambda b, m: _beside(b, "experts"), "experts cannot be in a parallel block"),
    fixed_part(
        lambda m: m.residual_streams == 1 or m.per_layer_input_size is None,
        "residual streams and per-layer embeddings exclude each other",
    ),
    fixed_part(
        lambda m: (
            any(b.kind == "per_layer_input" for b in patterns.each(m))
            == (m.per_layer_input_size is not None)
        ),
        "per_layer_input blocks and per_layer_input_size need each other",
    ),
    _none(
        lambda b, m: isinstance(b, PerLayerInput) and b.size != m.per_layer_input_size,
        "per_layer_input blocks must be as wide as per_layer_input_size",
    ),
)
RULES: tuple[Rule, ...] = (
    *MODEL_RULES,
    rule("heads_not_divisible", _heads_divide, _heads_text, "degrees"),
    unsupported(
        lambda c, p: (p.tp == 1) | (not _unsplit(c.model)),
        lambda c, p: f"tp {p.tp} cannot split {_unsplit(c.model)}",
        "degrees",
    ),
    unsupported(
        lambda c, p: (
            ((p.pp == 1) & ~is_named(p, "recompute", "full"))
            | (not patterns.cross_layer_state(c.model))
        ),
        lambda c, p: (
            f"layers need {patterns.cross_layer_state(c.model)}, which pipelines and full "
            "recompute do not pass on"
        ),
    ),
    unsupported(
        lambda c, p: (p.cp == 1) | (not patterns.in_order(c.model)) | is_named(p, "cp_kind", "a2a"),
        lambda c, p: (
            f"{patterns.in_order(c.model)} processes tokens in order: context parallelism by "
            f"all-to-all (a2a), not {p.cp_kind}"
        ),
    ),
    unsupported(
        lambda c, p: (
            (p.cp == 1) | (c.training.seq_length >= p.cp * _context_tokens_needed(c.model))
        ),
        lambda c, p: (
            f"convolutions look back {_context_tokens_needed(c.model)} tokens, more than a rank of "
            f"cp {p.cp} has"
        ),
        "degrees",
    ),
    unsupported(
        lambda c, p: (p.cp == 1) | (not patterns.compresses(c.model)),
        "token compression runs on one rank: cp 1, not {p.cp}",
        "degrees",
    ),
    unsupported(
        lambda c, p: (p.cp == 1) | (not patterns.has_indexer(c.model)),
        "an indexer scores all tokens of a sequence on one rank: cp 1, not {p.cp}",
        "degrees",
    ),
    unsupported(
        lambda c, p: (p.cp == 1) | (not _local(c.model)) | is_named(p, "cp_kind", "a2a"),
        "windows, chunks and sinks need whole sequences: context parallelism by all-to-all (a2a)",
    ),
    unsupported(
        lambda c, p: ~is_named(p, "attention_kernel", "unfused") | (not _only_fused(c.model)),
        "attention with sinks, an indexer, compressed tokens or a memory needs a fused kernel",
    ),
    unsupported(
        lambda c, p: not _chunks(c.model, c.training.seq_length),
        lambda c, p: (
            f"{c.training.seq_length} tokens are not a multiple of chunks of "
            f"{', '.join(map(str, _chunks(c.model, c.training.seq_length)))}"
        ),
        "degrees",
    ),
    unsupported(
        _whole_chunks,
        lambda c, p: (
            f"{c.training.seq_length // p.cp} tokens of a rank are not a multiple of chunks of "
            f"{', '.join(map(str, _scanned(c.model)))}"
        ),
        "degrees",
    ),
    unsupported(
        lambda c, p: (p.compile == 0) | (not patterns.layers(c.model)),
        "layers of a pattern are not compiled: their loops over chunks would be unrolled",
    ),
    unsupported(
        lambda c, p: (
            (c.training.optimizer != "muon")
            | (not patterns.in_order(c.model) and not patterns.compresses(c.model))
        ),
        "Muon treats every 2-D weight as a matrix, which those of convolutions and compressors "
        "are not",
    ),
    rule(
        "recompute",
        lambda c, p: (
            ~is_named(p, "recompute", "selective")
            | ~_by_operator(p)
            | (not patterns.layers(c.model))
        ),
        "recompute by operator needs equal layers, not a pattern",
    ),
)
