"""Layouts that the rules accept can be built, whole layers, none lost; and what each refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan, Plans, code
from cost_models.spec import ModelSpec, MoESpec, TrainingSpec
from cost_models.stage_layers import chunk_layers, stage_layers
from planner.constraints import RULES, Context
from planner.constraints.host_memory import HOST_MEMORY


@pytest.mark.slow
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


WIDE = ModelSpec(num_layers=1, hidden_size=16384, num_attention_heads=128, vocab_size=1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "host_gib", "bytes_of_states"),
    [
        ({"dp": 16, "zero_stage": 1}, 1024, 12),
        ({"dp": 16, "zero_stage": 3, "runtime": "torch"}, 1024, 16),
        ({"dp": 16, "zero_stage": 3, "runtime": "deepspeed"}, 1024, 12),
        ({"dp": 16, "zero_stage": 1, "dp_shard": 8}, 1024, 2 * 12),
        ({"dp": 16, "zero_stage": 0}, 1024, 16 * 12),
        ({"dp": 16, "zero_stage": 1}, None, 12),
    ],
)
def test_hosts_have_room_for_what_is_offloaded(
    plan: dict[str, Any], host_gib: int | None, bytes_of_states: int
) -> None:
    """Two nodes of eight; where it is not said 2 TiB each, as in a DGX H100."""
    cluster = parse_shorthand("2x8xh100-sxm")
    room = 2 * (host_gib or 2048) * 2**30
    host = None if host_gib is None else host_gib * 2.0**30
    (group,) = cluster.groups
    group = group.model_copy(update={"host_memory_bytes": host, "host_link_bytes_per_s": 5e10})
    cluster = cluster.model_copy(update={"groups": (group,)})
    training = TrainingSpec(seq_length=1024, global_batch_size=48)
    rows = Plans.from_rows([ParallelPlan.model_validate({**plan, "offload_optimizer": True})])
    deep = [WIDE.model_copy(update={"num_layers": layers}) for layers in range(1, 200)]
    fitting = [bytes_of_states * total_parameters(model) <= room for model in deep]
    assert 0 < sum(fitting) < len(fitting)
    for model, fits in zip(deep, fitting, strict=True):
        context = Context(model, cluster, training)
        assert bool(np.all(HOST_MEMORY.legal(context, rows))) is fits
        text = HOST_MEMORY.explain(context, rows.row(0))
        assert ("give host_memory_bytes" in text) is (host_gib is None)


# 24 heads in 4 groups, an MLP of 1,536, 8 experts; 48 sequences of 1,008 tokens; 2 nodes of 8.
SPARSE = ModelSpec(
    num_layers=4, hidden_size=768, num_attention_heads=24, num_query_groups=4,
    ffn_hidden_size=1536, vocab_size=1000,
    moe=MoESpec(num_experts=8, top_k=2, expert_ffn_hidden_size=96, num_dense_layers=1),
)  # fmt: skip
SP = {"sequence_parallel": True}


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ({"tp": 4, "dp": 4, **SP}, ""),
        ({"tp": 4, "dp": 2, **SP}, "world_size"),
        ({"tp": 8, "dp": 2, **SP}, ""),  # key/value heads are repeated
        ({"tp": 16, **SP}, "heads_not_divisible"),
        ({"tp": 6, "dp": 4, **SP}, "kv_heads"),
        ({"tp": 4, "cp": 2, "dp": 2, "cp_kind": "a2a", **SP}, "kv_heads"),  # not if exchanged
        ({"tp": 2, "cp": 2, "dp": 4, "cp_kind": "a2a", **SP}, ""),
        ({"cp": 8, "dp": 2}, ""),
        ({"cp": 16}, "cp_seq"),  # 32 chunks for causal balance do not divide 1,008
        ({"tp": 4, "dp": 4}, "sequence_parallel"),
        ({"dp": 16, "ep": 8}, ""),
        ({"dp": 16, "ep": 16}, "experts_not_divisible"),
        ({"dp": 16, "micro_batch_size": 3}, ""),
        ({"dp": 16, "micro_batch_size": 2}, "batch_identity"),
        ({"dp": 16, "dp_shard": 8}, ""),
        ({"dp": 16, "dp_shard": 3}, "zero_stage"),
        ({"dp": 16, "offload_optimizer": True}, "offload"),
        ({"dp": 16, "recompute": "selective", "recompute_modules": ("mla_up_proj",)}, "recompute"),
        ({"dp": 16, "recompute": "selective", "recompute_modules": ("moe_act",)}, ""),
    ],
)
def test_what_each_rule_refuses(plan: dict[str, Any], code: str) -> None:
    """Sizes divide or they do not, whichever way the rule is written."""
    cluster = parse_shorthand("2x8xh100-sxm")
    (group,) = cluster.groups
    cluster = cluster.model_copy(
        update={"groups": (group.model_copy(update={"host_link_bytes_per_s": None}),)}
    )
    training = TrainingSpec(seq_length=1008, global_batch_size=48)
    context = Context(SPARSE, cluster, training)
    row = ParallelPlan.model_validate(plan)
    refused = {
        rule.code for rule in RULES if not np.all(rule.legal(context, Plans.from_rows([row])))
    }
    if code not in ("world_size", ""):
        refused.discard("world_size")
    assert refused == ({code} if code else set())
