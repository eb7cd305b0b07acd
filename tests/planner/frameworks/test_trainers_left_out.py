"""Trainers of adapters that a plan was not searched for are named with their reason."""

from __future__ import annotations

from cost_models.catalog.hardware import cluster
from cost_models.catalog.models import model
from cost_models.spec import TrainingSpec
from planner.constraints import Context
from planner.frameworks.supported import trainers_left_out

TYPES = (
    "gradient_dtype", "gradient_reduce_dtype", "master_weights_dtype", "optimizer_state_dtype",
)  # fmt: skip
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _context(hardware: str = "8xh100-sxm", **training: object) -> Context:
    fields = {"lora_rank": 16, "lora_targets": TARGETS, **training}
    spec = TrainingSpec.model_validate({"seq_length": 4096, "global_batch_size": 64, **fields})
    return Context(model("llama-3.1-8b"), cluster(hardware), spec)


def test_torchtune_needs_gradients_of_its_own_type() -> None:
    found = trainers_left_out(_context(), TYPES)
    assert list(found) == ["torchtune"]
    assert "gradients fp32" in found["torchtune"]


def test_nobody_is_left_out_with_torchtunes_types() -> None:
    types = {"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"}
    states = {"master_weights_dtype": "none", "optimizer_state_dtype": "bf16"}
    assert "torchtune" not in trainers_left_out(_context(**types, **states), TYPES)


def test_only_for_adapters_on_one_node() -> None:
    assert trainers_left_out(_context("2x8xh100-sxm"), TYPES) == {}
    assert trainers_left_out(_context(lora_rank=0), TYPES) == {}


def test_nobody_is_left_out_who_would_not_run_it_by_himself_either() -> None:
    """The recipes of torchtune have no preferences here, in whatever types."""
    assert trainers_left_out(_context(loss="dpo"), TYPES) == {}
    assert trainers_left_out(_context(), ()) == {}
