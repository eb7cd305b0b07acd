"""Encoders of images before the first layer: counted, timed, frozen, and of many positions."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.estimate import CostModel
from cost_models.flops import step_flop
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec
from cost_models.trainable import trained_parameters

HIDDEN, LAYERS, PATCH, POSITIONS = 512, 6, 588, 256
VISION: dict[str, Any] = {
    "num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": 8, "ffn_hidden_size": 2048,
    "norm": "rmsnorm", "bidirectional": True, "position": "none", "tokens": POSITIONS,
    "input_width": PATCH, "merge": 4, "projector": [{"inputs": 4 * HIDDEN, "outputs": 1024}],
}  # fmt: skip
TEXT: dict[str, Any] = {
    "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 32000,
    "norm": "rmsnorm",
}  # fmt: skip
BACKBONE = ModelSpec.model_validate(TEXT)
MODEL = ModelSpec.model_validate({**TEXT, "encoders": [VISION]})
LAYER = 4 * HIDDEN**2 + 2 * HIDDEN * 2048
PROJECTOR = 4 * HIDDEN * 1024


def training(**changes: Any) -> TrainingSpec:
    return TrainingSpec(seq_length=2048, global_batch_size=16, **changes)


def estimated(model: ModelSpec, plan: ParallelPlan, **changes: Any) -> tuple[float, float]:
    """Seconds and bytes of one plan."""
    cost = CostModel(model, parse_shorthand("1x8xh100-sxm"), training(**changes))
    found = cost.evaluate(Plans.of(plan))
    return float(found.iteration_time_s[0]), float(found.peak_bytes[0])


def test_parameters_are_counted_once() -> None:
    norms = (2 * LAYERS + 1) * HIDDEN
    own = PATCH * HIDDEN + LAYERS * LAYER + norms + PROJECTOR
    assert total_parameters(MODEL) - total_parameters(BACKBONE) == own
    frozen = training(frozen=("encoders",))
    assert trained_parameters(MODEL, frozen) == total_parameters(BACKBONE)


@pytest.mark.parametrize("positions", [None, 1024])
def test_flop_follow_the_positions_of_images(positions: int | None) -> None:
    count = positions or POSITIONS
    matrices = PATCH * HIDDEN + LAYERS * LAYER + PROJECTOR / 4
    # An image is of POSITIONS where none is given, and each attends to all of it.
    span = POSITIONS
    forward = 2.0 * count * matrices + LAYERS * 4.0 * count * span * HIDDEN
    for causal in (True, False):
        flop = [step_flop(m, training(encoder_tokens=positions), causal) for m in (MODEL, BACKBONE)]
        assert flop[0] - flop[1] == pytest.approx(3 * 16 * forward, rel=1e-9)
    frozen = training(encoder_tokens=positions, frozen=("encoders",))
    assert step_flop(MODEL, frozen) - flop[1] == pytest.approx(16 * forward, rel=1e-9)


def test_a_frozen_encoder_costs_its_forward_pass_alone() -> None:
    plan = ParallelPlan(dp=8, zero_stage=0)
    backbone, trained, frozen = (
        estimated(BACKBONE, plan), estimated(MODEL, plan),
        estimated(MODEL, plan, frozen=("encoders",)),
    )  # fmt: skip
    assert backbone[0] < frozen[0] < trained[0]
    assert backbone[1] < frozen[1] < trained[1]
    # Weights in 2 bytes; gradients in 4 and Adam in 12 besides, and activations.
    own = total_parameters(MODEL) - total_parameters(BACKBONE)
    assert frozen[1] - backbone[1] == pytest.approx(2 * own, rel=0.05)
    assert trained[1] - backbone[1] > 18 * own


def test_the_first_stage_holds_the_encoder() -> None:
    plan = ParallelPlan(dp=4, pp=2, zero_stage=0)
    wide = {**VISION, "hidden_size": 1024, "num_layers": 48, "projector": []}
    model = ModelSpec.model_validate({**TEXT, "encoders": [wide]})
    cost = CostModel(model, parse_shorthand("1x8xh100-sxm"), training())
    held = cost.evaluate(Plans.of(plan), all_stages=True).memory.total_bytes[:, 0]
    assert held[0] > 2 * held[1]


def test_images_are_whole() -> None:
    with pytest.raises(ValueError, match="not whole images of 100"):
        ModelSpec.model_validate({**TEXT, "encoders": [{**VISION, "span": 100}]})


def test_exchanges_are_of_its_own_positions() -> None:
    """Over tp and cp they grow with the images, where those of the model stay."""
    plan = ParallelPlan(tp=2, cp=2, cp_kind="a2a", dp=2, zero_stage=0)
    wide = ModelSpec.model_validate({**TEXT, "encoders": [{**VISION, "span": 256}]})

    def seconds(positions: int) -> list[float]:
        cost = CostModel(wide, parse_shorthand("1x8xh100-sxm"), training(encoder_tokens=positions))
        parts = cost.evaluate(Plans.of(plan)).time_parts_s
        return [float(parts[name][0]) for name in ("tp_comm", "cp_comm")]

    one, two, four = (seconds(count * 2**18) for count in (1, 2, 4))
    for first, second, third in zip(one, two, four, strict=True):
        assert third - second == pytest.approx(2 * (second - first), rel=0.05)
        assert second > first


def test_recompute_leaves_an_encoder_alone() -> None:
    """As long as its layers are not run again, what they save is kept."""
    recompute: Any = {"recompute": "selective", "recompute_modules": ("core_attn", "mlp")}
    added = []
    for changes in ({}, recompute):
        plan = ParallelPlan(dp=8, zero_stage=0, **changes)
        added.append(estimated(MODEL, plan)[1] - estimated(BACKBONE, plan)[1])
    assert added[0] == pytest.approx(added[1], rel=1e-3)
