"""Megatron-Bridge's rules beyond those of Megatron-Core, which are Megatron-LM's.

Sources: its `ConfigContainer.validate`, `GPTModelProvider` and `HybridModelProvider` (067f987).
"""

from __future__ import annotations

from cost_models.plans import code
from planner.constraints import Rule
from planner.frameworks.base import unsupported
from planner.frameworks.megatron import patterns
from planner.frameworks.megatron.model_rules import LATENT_QUERIES, MUON_IN_FP8
from planner.frameworks.megatron.rules import EARLY_GATHER, STABLE_LOSS
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.rules import TWO_NORMS, fixed_part

EXPANDABLE = "megatron-2026"  # the runtime whose allocator has expandable segments
OWN: tuple[Rule, ...] = (
    LATENT_QUERIES,
    fixed_part(
        lambda m: m.norms_per_layer == 2,
        "its GPT provider has two norms in a layer; recipes with its providers for Gemma 2 and 3, "
        "which have four, are not written here",
    ),
    fixed_part(
        lambda m: patterns.is_hybrid(m) or patterns.position(m) != "none",
        "its GPT provider has learned or rotary positions, not none",
    ),
    unsupported(
        lambda c, p: (not patterns.is_hybrid(c.model)) | (p.vpp == 1),
        "hybrid models have one chunk per stage, not {p.vpp}",
        "layout",
    ),
    unsupported(
        lambda c, p: (
            c.model.position != "learned"
            or c.model.max_position_embeddings == c.training.seq_length
        ),
        "the position table has one row per token of a sequence, {c.training.seq_length}; "
        "this model's has {c.model.max_position_embeddings}",
        "degrees",
    ),
    unsupported(
        lambda c, p: (p.zero_stage < 2) | (p.rank_order == code("rank_order", "tp-cp-ep-dp-pp")),
        "Megatron-FSDP does not support the rank order tp-cp-ep-pp-dp",
    ),
)
# Rules of Megatron-LM's parser that Bridge does not have: NVIDIA's recipes of DeepSeek-V3 on H100
# overlap weight gathering without gradient reduction, most of its recipes run Transformer Engine's
# cross entropy, and those of Kimi-K2 train fp8 weights with Muon.  It has
# words of its own for norms.
_NOT_IN_BRIDGE = (EARLY_GATHER, STABLE_LOSS, MUON_IN_FP8, TWO_NORMS)
RULES: tuple[Rule, ...] = (*(one for one in CORE if one not in _NOT_IN_BRIDGE), *OWN)
