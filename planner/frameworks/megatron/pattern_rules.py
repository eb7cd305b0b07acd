"""Megatron-LM's rules on hybrid models, gated delta nets and sparse attention.

Sources: core 0.18.2, 0.19 and main (0.20): `MambaMixer`, `MambaContextParallel`,
`TransformerConfig.__post_init__`, `HybridStack` and the adapter of its FSDP.
"""

from __future__ import annotations

import numpy as np

from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.blocks.latent_attention import LatentAttention
from cost_models.blocks.mamba2 import Mamba2
from cost_models.plans import Plans, code
from cost_models.spec import ModelSpec
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks.base import rule, unsupported
from planner.frameworks.megatron.hybrid import blocks_per_layer
from planner.frameworks.megatron.patterns import blocks_of, is_hybrid

_FULL = code("recompute", "full")
_ALL_GATHER = code("cp_kind", "all_gather")
FP8_MULTIPLE = 16


def _mamba_heads(c: Context, p: Plans) -> BoolArray:
    """Heads and groups divide over the ranks; under cp several ranks may hold one group."""
    legal = np.ones((), dtype=np.bool_)
    for block in blocks_of(c.model, Mamba2):
        groups = np.maximum(block.num_groups // p.tp, 1)
        shared = np.where(groups < p.cp, p.cp % groups == 0, groups % p.cp == 0)
        whole = (block.num_heads % (p.tp * p.cp) == 0) & (block.num_groups % p.tp == 0)
        legal = legal & whole & shared
    return legal


def _delta_heads(c: Context, p: Plans) -> BoolArray:
    legal = np.ones((), dtype=np.bool_)
    for block in blocks_of(c.model, GatedDeltaNet):
        ranks = p.tp * p.cp
        legal = legal & (block.num_key_heads % ranks == 0) & (block.num_value_heads % ranks == 0)
    return legal


def _fp8_widths(c: Context, p: Plans) -> BoolArray:
    legal = np.ones((), dtype=np.bool_)
    for block in (*blocks_of(c.model, Mamba2), *blocks_of(c.model, GatedDeltaNet)):
        legal = legal & (block.shape(c.model).projected % (FP8_MULTIPLE * p.tp) == 0)
    return legal


def sparse(model: ModelSpec) -> bool:
    """Whether an indexer picks the keys of latent attention."""
    return any(block.indexer is not None for block in blocks_of(model, LatentAttention))


RULES: tuple[Rule, ...] = (
    rule(
        "heads_not_divisible",
        _mamba_heads,
        lambda c, p: (
            "Mamba-2 heads must be a multiple of tp x cp, groups a multiple of tp, and the groups "
            f"of a rank a multiple or a divisor of cp; got tp {p.tp}, cp {p.cp} and "
            + ", ".join(f"{b.num_heads} heads in {b.num_groups} groups" for b in _mamba(c))
        ),
    ),
    rule(
        "heads_not_divisible",
        _delta_heads,
        lambda c, p: (
            f"key and value heads of a gated delta net must be multiples of tp {p.tp} x cp {p.cp}; "
            "got " + ", ".join(f"{b.num_key_heads} and {b.num_value_heads}" for b in _delta(c))
        ),
    ),
    unsupported(
        lambda c, p: (c.training.precision != "fp8") | _fp8_widths(c, p),
        lambda c, p: (
            "fp8 needs input projections of Mamba-2 and gated delta nets with a multiple of "
            f"{FP8_MULTIPLE} columns on each of tp {p.tp} ranks"
        ),
    ),
    unsupported(
        lambda c, p: (not sparse(c.model)) | (p.cp == 1) | (p.cp_kind == _ALL_GATHER),
        "sparse attention with context parallelism needs all_gather, not {p.cp_kind}",
    ),
    unsupported(
        lambda c, p: not sparse(c.model) or not c.model.attention_output_bias,
        "sparse attention does not support biases in linear layers",
    ),
    unsupported(
        lambda c, p: (not is_hybrid(c.model)) | (p.zero_stage < 3),
        "before core 0.20 Megatron-FSDP does not gather Mamba-2 layers one by one",
    ),
    unsupported(
        lambda c, p: (not is_hybrid(c.model)) | (p.offload_activations == 0),
        "hybrid models have no activation offload by layer",
    ),
    unsupported(
        lambda c, p: (not is_hybrid(c.model)) | (p.overlap_ep == 0),
        "hybrid models have no schedule for overlap_ep",
    ),
    rule(
        "recompute",
        lambda c, p: (
            (not is_hybrid(c.model)) | (p.recompute != _FULL) | bool(blocks_per_layer(c.model))
        ),
        "hybrid models count recompute in blocks, and these layers have different numbers of "
        "blocks",
    ),
)


def _mamba(c: Context) -> list[Mamba2]:
    return blocks_of(c.model, Mamba2)


def _delta(c: Context) -> list[GatedDeltaNet]:
    return blocks_of(c.model, GatedDeltaNet)
