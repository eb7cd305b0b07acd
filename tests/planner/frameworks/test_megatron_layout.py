"""Megatron-LM's split of layers over stages and chunks: what is written adds up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.frameworks.base import Unsupported
from planner.frameworks.megatron.layout import layout
from tests.fixtures.launches import MODELS, launch
from tests.fixtures.tiers import examples

MEGATRON = frameworks.get("megatron")


def changed(model: str, **update: Any) -> ModelSpec:
    return ModelSpec(**{**MODELS[model].model_dump(), **update})


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"pp": 4}, "Etttt|tttt|tttt|ttttL"),
        ({"pp": 4, "first_stage_layers": 3, "last_stage_layers": 3}, "Ettt|ttttt|ttttt|tttL"),
        ({"pp": 2, "stage_layers": (9, 7)}, "Ettttttttt|tttttttL"),
        (
            {"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"},
            "Etttt|tttt|tttt|ttttL",
        ),
        # 15 = 7 + 8: the first stage lacks one layer of its first chunk.
        (
            {"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b", "first_stage_layers": 7},
            "Ettt|tttt|tttt|ttttL",
        ),
        (
            {"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b", "last_stage_layers": 7},
            "Etttt|tttt|tttt|tttL",
        ),
    ],
)
def test_layouts(plan: dict[str, Any], expected: str) -> None:
    one = ParallelPlan(**plan)
    model = changed("llama", num_layers=expected.count("t"))
    assert layout(model, one) == expected


def test_prediction_layers_stand_before_the_loss() -> None:
    model = MODELS["deepseek-v3"]
    assert layout(model, ParallelPlan(pp=2, first_stage_layers=6)).endswith("tttmL")


@given(pp=st.integers(2, 8), vpp=st.integers(1, 4), chunk=st.integers(1, 5), data=st.data())
def test_layouts_hold_all_layers_and_only_the_ends_differ(
    pp: int, vpp: int, chunk: int, data: st.DataObject
) -> None:
    full = chunk * vpp
    first = full - data.draw(st.integers(0, chunk - 1))
    last = full - data.draw(st.integers(0, chunk - 1)) if pp > 2 else 0
    model = changed("llama", num_layers=first + full * (pp - 2) + (last or full))
    request, plan = launch(
        model,
        (pp, 8),
        training={"global_batch_size": 8 * pp},
        pp=pp,
        vpp=vpp,
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        first_stage_layers=first,
        last_stage_layers=last,
    )
    assert MEGATRON.reasons(request, plan) == ()
    counts = [part.count("t") for part in layout(model, plan).split("|")]
    assert len(counts) == pp * vpp
    assert sum(counts[::pp]) == first
    assert sum(counts[pp - 1 :: pp]) == (last or full)
    assert set(counts[1:-1]) <= {chunk}


def test_a_layout_that_loses_or_doubles_layers_is_never_written() -> None:
    model = changed("llama", num_layers=80)
    # 26 layers do not split around chunks of 27: one chunk would hold -1.
    short = ParallelPlan(tp=8, pp=2, vpp=2, schedule="interleaved-1f1b", last_stage_layers=54)
    for plan in (short, ParallelPlan(pp=2, stage_layers=(40, 41)), ParallelPlan(pp=3)):
        with pytest.raises(Unsupported, match="of 80 layers"):
            layout(model, plan)


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data())
def test_emitted_stages_and_chunks_hold_every_layer_once(data: st.DataObject) -> None:
    pp, vpp = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 4))
    kind = data.draw(st.sampled_from(["ends", "explicit"]))
    plan: dict[str, Any] = {"schedule": "interleaved-1f1b" if vpp > 1 else "1f1b"}
    if kind == "explicit":
        chunk = st.integers(0, 4).map(lambda n: n * data.draw(st.sampled_from([1, vpp])))
        plan["stage_layers"] = tuple(data.draw(chunk) for _ in range(pp))
        count = sum(plan["stage_layers"])
    else:
        full = data.draw(st.integers(1, 4)) * vpp
        near = st.one_of(st.just(0), st.integers(max(1, full - 5), full + 5), st.integers(1, 60))
        first, last = data.draw(near), data.draw(near)
        count = (
            (first or full)
            + (pp - 2) * full
            + (last or full)
            + data.draw(st.sampled_from([0, 0, 1]))
        )
        plan |= {"first_stage_layers": first, "last_stage_layers": last}
    model = changed("llama", num_layers=max(count, 1))
    training = {"global_batch_size": pp}
    request, one = launch(model, (pp, 1), training=training, pp=pp, vpp=vpp, **plan)
    said = {"vpp_layout", "layers_not_divisible"}
    parts, codes = [], set()
    try:
        parts = layout(model, one).split("|")
    except Unsupported as refused:
        codes = {reason.code for reason in refused.reasons}
    event("written" if parts else "refused")
    if not parts:
        assert codes <= said
        assert {reason.code for reason in MEGATRON.reasons(request, one)} & said
        return
    counts = [part.count("t") for part in parts]
    assert len(counts) == pp * vpp
    assert min(counts) >= (0 if len(one.stage_layers) == pp * vpp else 1)
    assert sum(counts) == model.num_layers
    stages = [sum(counts[stage::pp]) for stage in range(pp)]
    assert one.first_stage_layers in (0, stages[0])
    assert one.last_stage_layers in (0, stages[-1])
    assert one.stage_layers in ((), tuple(stages))
    if MEGATRON.reasons(request, one):
        return
    event("launched")
    given = {flag.name: flag.value for flag in MEGATRON.write(request, one).flags}
    assert given.get("--pipeline-model-parallel-layout", "|".join(parts)) == "|".join(parts)
