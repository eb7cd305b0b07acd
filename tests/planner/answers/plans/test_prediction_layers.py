"""Multi-token-prediction layers of other blocks than the last layer's, as in Nemotron 3 Super."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cost_models.flops import layer_matrix_parameters, mixing_flop, step_flop
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec
from cost_models.stages import plan_stages, stage_table
from planner import frameworks
from planner.huggingface import model_from_config
from tests.fixtures.launches import launch
from tests.tools.configurations import published

SUPER = "NVIDIA-Nemotron-3-Super-120B-A12B"
ATTENTION, MLP = {"kind": "attention"}, {"kind": "mlp"}
SMALL: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1024,
    "layer_pattern": [[ATTENTION], [MLP]], "mtp_num_layers": 2,
}  # fmt: skip


def test_a_published_configuration_says_its_blocks() -> None:
    """Its layers are single blocks and end with experts; it predicts with attention and experts."""
    model = model_from_config(published()[SUPER]["config"]).model
    assert [block.kind for block in model.layer_pattern[-1]] == ["experts"]
    assert [block.kind for block in model.mtp_layer] == ["attention", "experts"]
    assert len(layers_of(model).kinds) == 4


def test_what_the_configuration_says_wins_over_the_usual() -> None:
    config = dict(published()[SUPER]["config"]) | {"mtp_hybrid_override_pattern": "M"}
    assert [block.kind for block in model_from_config(config).model.mtp_layer] == ["mamba2"]


def test_they_stand_on_the_last_stage_as_what_they_are() -> None:
    model = ModelSpec(**SMALL, mtp_layer=[ATTENTION, MLP])
    plan = ParallelPlan(pp=2, recompute="full", recompute_num_layers=1)
    held = plan_stages(model, plan)
    # Attention alone, an MLP alone, both.
    assert held.layers.tolist() == [[1, 1], [1, 1], [0, 2]]
    assert held.recomputed.tolist() == [[1, 1], [0, 0], [0, 2]]
    _, table = stage_table(model, Plans.of(plan))
    assert np.ravel(table.last).tolist() == [0, 3]
    usual = plan_stages(ModelSpec(**SMALL), plan)
    assert usual.layers.tolist() == [[1, 1], [1, 3]]


def test_their_work_is_that_of_their_blocks() -> None:
    training = TrainingSpec(seq_length=512, global_batch_size=4)
    own, usual = ModelSpec(**SMALL, mtp_layer=[ATTENTION, MLP]), ModelSpec(**SMALL)
    more = step_flop(own, training) - step_flop(usual, training)
    attention = layers_of(own).kinds[0]
    tokens = float(training.tokens_per_iteration)
    mixing = mixing_flop(own, attention, tokens, 512.0, False)
    weights = 2.0 * tokens * layer_matrix_parameters(own, attention)
    assert more == pytest.approx(3.0 * 2 * (mixing + weights))


def test_megatron_says_and_reads_them() -> None:
    model = model_from_config(published()[SUPER]["config"]).model
    request, plan = launch(model, (8, 8), ep=8, zero_stage=1)
    megatron = frameworks.get("megatron")
    files = megatron.write(request, plan).files
    assert "EME/*E" in "".join(files.values())
    assert megatron.read is not None
    read = megatron.read(files, None)
    assert read.refusals == ()
    assert read.model.mtp_layer == model.mtp_layer
    assert step_flop(read.model, request.training) == step_flop(model, request.training)


def test_others_say_why_not() -> None:
    request, _ = launch(ModelSpec(**SMALL, mtp_layer=[ATTENTION, MLP]), (1, 8))
    for name in ("pytorch", "torchtitan"):
        (text,) = {one for one in frameworks.get(name).unsaid(request.model) if "predict" in one}
        assert "prediction layers with other blocks than the last layer" in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"mtp_num_layers": 0}, "mtp_layer needs mtp_num_layers"),
        ({"mtp_layer": [{"kind": "latent_attention"}]}, "latent_attention needs mla"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        ModelSpec(**SMALL | {"mtp_layer": [MLP]} | fields)
