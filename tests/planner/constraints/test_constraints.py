"""Layouts that the rules accept can be built: whole layers, none lost."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.plans import Plans, code
from cost_models.spec import ModelSpec, TrainingSpec
from cost_models.stage_layers import chunk_layers, stage_layers
from planner.constraints import RULES, Context


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5, 6])
def test_accepted_layouts_hold_every_layer(pp: int) -> None:
    """Of every way to cut up to 24 layers, those that all the rules pass."""
    accepted = 0
    for layers in (*range(1, 25), *([80] if pp == 2 else [])):
        model = ModelSpec(num_layers=layers, hidden_size=64, num_attention_heads=4, vocab_size=100)
        context = Context(
            model,
            parse_shorthand(f"{pp}x1xh100-sxm"),
            TrainingSpec(seq_length=64, global_batch_size=pp),
        )
        ends = np.arange(layers + 1)
        vpp, first, last = (a.ravel() for a in np.meshgrid(np.arange(1, 6), ends, ends))
        loop = np.where(vpp > 1, code("schedule", "interleaved-1f1b"), code("schedule", "1f1b"))
        plans = Plans.build(
            pp=np.full_like(vpp, pp),
            vpp=vpp,
            schedule=loop,
            first_stage_layers=first,
            last_stage_layers=last,
        )
        legal = np.logical_and.reduce(
            [np.broadcast_to(rule.legal(context, plans), vpp.shape) for rule in RULES]
        )
        for row in np.flatnonzero(legal).tolist():
            stages = stage_layers(layers, pp, int(first[row]), int(last[row]))
            chunks = chunk_layers(stages, int(vpp[row]))
            assert sum(stages) == chunks.sum() == layers
            assert chunks.min() >= 1
        accepted += int(legal.sum())
    assert accepted >= 24 if pp == 1 else accepted > 150
