"""Megatron-LM's hybrid model: the pattern of its layers, and its Mamba-2 layers."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.frameworks.base import Row
from planner.frameworks.megatron.layout import chunks
from planner.frameworks.megatron.patterns import SYMBOLS, every_layer

PROGRAM = "pretrain_hybrid.py"
SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")


def layer_pattern(model: ModelSpec, plan: ParallelPlan) -> str:
    """A letter for each block, | between the chunks of a pipeline, / before a prediction layer.

    A prediction layer has the last layer's blocks, unless it has blocks of its own.
    """
    every = every_layer(model)
    *letters, predicted = (
        "".join(SYMBOLS[block.kind] for block in layer)
        for layer in (*every, model.mtp_layer or every[-1])
    )
    start, parts = 0, []
    for count in chunks(model, plan):
        parts.append("".join(letters[start : start + count]))
        start += count
    return "/".join(["|".join(parts), *[predicted] * model.mtp_num_layers])


def options(model: ModelSpec, plan: ParallelPlan) -> Iterator[Row]:
    """The options that describe a hybrid model, in place of --num-layers."""
    letters = "M Mamba-2, G gated delta net, * attention, - MLP, E experts"
    stages = "; | ends a chunk of a stage" if plan.pp > 1 else ""
    yield "--hybrid-layer-pattern", layer_pattern(model, plan), letters + stages
    yield "--spec", SPEC, "modules of a hybrid model"


def blocks_per_layer(model: ModelSpec) -> int:
    """Layers of Megatron-LM's hybrid model per layer of the ModelSpec; 0 if that varies."""
    counts = {len(layer) for layer in model.layer_pattern}
    return counts.pop() if len(counts) == 1 else 0
