"""Layers on stages: nothing lost, the ends as asked, dominated stages really bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cost_models.blocks.attention import Attention
from cost_models.blocks.experts import Experts
from cost_models.blocks.mamba2 import Mamba2
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, MoESpec
from cost_models.stage_layers import (
    chunk_layers,
    forward_layers,
    rank_layers,
    rank_titles,
    stage_layers,
)
from cost_models.stages import stage_table


def model(layers: int, dense: int = 0, frequency: int = 1, mtp: int = 0) -> ModelSpec:
    moe = None
    if dense or frequency > 1:
        moe = MoESpec(
            num_experts=8, top_k=2, expert_ffn_hidden_size=64, num_dense_layers=dense,
            layer_frequency=frequency,
        )  # fmt: skip
    return ModelSpec(
        num_layers=layers, hidden_size=64, num_attention_heads=4, vocab_size=100, moe=moe,
        mtp_num_layers=mtp,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "pp", "first", "last", "expected"),
    [
        (126, 16, 7, 7, (7, *(8,) * 14, 7)),
        (61, 16, 3, 2, (3, *(4,) * 14, 2)),
        (80, 8, 0, 0, (10,) * 8),
        (80, 2, 41, 39, (41, 39)),
        (7, 1, 0, 0, (7,)),
        (31, 4, 0, 7, (8, 8, 8, 7)),
    ],
)
def test_stage_layers(
    layers: int, pp: int, first: int, last: int, expected: tuple[int, ...]
) -> None:
    assert stage_layers(layers, pp, first, last) == expected
    assert sum(expected) == layers


def test_ends_give_way_in_their_outer_chunk() -> None:
    """Llama-3-405B: 126 layers, 16 stages, 2 chunks; embedding and head take a layer's place."""
    chunks = chunk_layers(stage_layers(126, 16, 7, 7), 2)
    assert chunks[:, 0].tolist() == [3, 4]
    assert chunks[:, -1].tolist() == [4, 3]
    assert np.all(chunks[:, 1:-1] == 4)


@pytest.mark.slow
@given(
    middle=st.integers(1, 6),
    vpp=st.integers(1, 3),
    pp=st.integers(1, 6),
    lighter=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dense=st.integers(0, 3),
    frequency=st.integers(1, 3),
    recompute=st.integers(0, 5),
    uniform=st.booleans(),
    mtp=st.integers(0, 2),
)
def test_table_conserves_layers_and_keeps_the_worst(
    middle: int,
    vpp: int,
    pp: int,
    lighter: tuple[int, int],
    dense: int,
    frequency: int,
    recompute: int,
    uniform: bool,
    mtp: int,
) -> None:
    per_stage = middle * vpp
    vpp = vpp if pp > 1 else 1
    first, last = (max(per_stage - d, per_stage - middle + 1) for d in lighter)
    layers = per_stage if pp == 1 else first + last + per_stage * (pp - 2)
    dense = min(dense, layers - 1)
    frequency = frequency if layers > 3 else 1
    assume(any(i >= dense and i % frequency == 0 for i in range(layers)))
    spec = model(layers, dense, frequency, mtp)
    plan = ParallelPlan(
        pp=pp,
        vpp=vpp,
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        first_stage_layers=first if pp > 1 else 0,
        last_stage_layers=last if pp > 1 else 0,
        recompute="full" if recompute else "none",
        recompute_num_layers=recompute,
        recompute_method="uniform" if uniform else "block",
    )
    row = Plans.from_rows([plan])
    _, table = stage_table(spec, row)
    slots = table.slot_of[:, 0]
    assert len(slots) == pp
    held, redone, inputs = (
        part[:, slots, 0] for part in (table.layers, table.recomputed, table.inputs)
    )
    assert held.sum() == layers + mtp
    assert np.array_equal(held.sum(axis=1), table.totals[:, 0])
    assert np.array_equal(redone.sum(axis=1), table.recomputed_totals[:, 0])
    assert np.all(redone <= held)
    assert np.all(inputs <= redone + 1e-12)
    # What stands for a stage holds what that holds, and comes no later in the pipeline.
    assert held.sum(axis=0).tolist() == [
        sizes + mtp * (stage == pp - 1)
        for stage, sizes in enumerate(
            stage_layers(layers, pp, plan.first_stage_layers, plan.last_stage_layers)
        )
    ]
    assert np.all(table.stage[slots, 0] <= np.arange(pp))
    assert table.first[slots, 0].tolist() == [1.0] + [0.0] * (pp - 1)
    assert table.last[slots, 0].tolist() == [0.0] * (pp - 1) + [1.0 + mtp]


def test_explicit_stages() -> None:
    rows = [
        ParallelPlan(pp=3, stage_layers=(2, 5, 3)),
        ParallelPlan(pp=3, stage_layers=(4, 4, 2)),
    ]
    groups, table = stage_table(model(10), Plans.from_rows(rows))
    for layout, expected in zip(groups.spread(np.arange(2)), ([2, 5, 3], [4, 4, 2]), strict=True):
        assert table.layers[0][table.slot_of[:, layout], layout].tolist() == expected


def test_explicit_virtual_stages() -> None:
    """In forward order: a loop comes back to the first rank, a wave turns at the last."""
    layers = (0, 3, 2, 1, 4, 0)
    loop = {"pp": 3, "vpp": 2, "schedule": "interleaved-1f1b", "stage_layers": layers}
    wave = {"pp": 3, "vpp": 2, "schedule": "zb-v", "stage_layers": layers}
    two_way = {"pp": 4, "vpp": 2, "schedule": "dualpipe", "stage_layers": (1, 4, 3, 2)}
    for fields, expected in (
        (loop, [1, 7, 2]),  # 0 + 1, 3 + 4, 2 + 0
        (wave, [0, 7, 3]),  # 0 + 0, 3 + 4, 2 + 1
        (two_way, [1.5, 3.5, 3.5, 1.5]),  # each serves half of the micro-batches at both places
    ):
        plan = ParallelPlan.model_validate(fields)
        _, table = stage_table(model(10), Plans.from_rows([plan]))
        slots = table.slot_of[:, 0]
        assert table.layers[0][slots, 0].tolist() == expected
        assert table.first[slots, 0].sum() == table.last[slots, 0].sum() == 1
        assert forward_layers(10, plan) == plan.stage_layers
    assert rank_layers(10, ParallelPlan.model_validate(loop)) == (1, 7, 2)
    assert rank_layers(10, ParallelPlan.model_validate(wave)) == (0, 7, 3)


def test_a_copied_model_derives_its_layers_anew() -> None:
    model = ModelSpec(num_layers=4, hidden_size=64, num_attention_heads=4, vocab_size=512)
    assert len(model.feed_forwards) == 4
    assert len(model.model_copy(update={"num_layers": 6}).feed_forwards) == 6


def hybrid() -> ModelSpec:
    """Six layers of three kinds: M E M E * E, as Nemotron-H writes them."""
    mamba, moe, full = (
        (Mamba2(num_heads=4, head_dim=16, state_size=16),),
        (Experts(),),
        (Attention(),),
    )
    return ModelSpec.model_validate(
        {**model(6, frequency=2).model_dump(), "layer_pattern": (mamba, moe, mamba, moe, full, moe)}
    )


def test_stages_tell_their_layers_by_kind() -> None:
    found = rank_titles(hybrid(), ParallelPlan(pp=2, dp=1, stage_layers=(4, 2)))
    assert found == ({"mamba2": 2, "moe": 2}, {"full attention": 1, "moe": 1})
    # Chunk c of rank r is virtual stage 2 c + r: rank 0 has layers 0, 1 and 4.
    plan = ParallelPlan(pp=2, vpp=2, schedule="interleaved-1f1b", stage_layers=(2, 2, 1, 1))
    dealt = rank_titles(hybrid(), plan)
    assert dealt == ({"mamba2": 1, "full attention": 1, "moe": 1}, {"mamba2": 1, "moe": 2})


@pytest.mark.parametrize(
    "fields",
    [
        {"pp": 1},
        {"pp": 3},
        {"pp": 3, "vpp": 2, "schedule": "hanayo"},
        {"pp": 2, "vpp": 2, "schedule": "dualpipe"},
    ],
)
def test_layers_by_kind_are_those_of_the_ranks(fields: dict[str, object]) -> None:
    plan = ParallelPlan.model_validate(fields)
    found = rank_titles(hybrid(), plan)
    assert tuple(sum(held.values()) for held in found) == rank_layers(6, plan)
    totals = {
        kind: sum(held.get(kind, 0) for held in found) for kind in layers_of(hybrid()).by_title
    }
    assert totals == {"mamba2": 2, "moe": 3, "full attention": 1}
