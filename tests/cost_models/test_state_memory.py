"""Weights, gradients and optimizer states against the ZeRO paper and Megatron's documentation."""

from __future__ import annotations

import pytest

from cost_models.runtimes import RUNTIMES
from cost_models.spec import TrainingSpec
from cost_models.state_memory import (
    element_bytes,
    gradient_bytes,
    optimizer_bytes,
    weight_bytes,
)


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [(0, "120.0"), (1, "31.4"), (2, "16.6"), (3, "1.9")]
)
def test_zero_paper_example(stage: int, gigabytes: str) -> None:
    """ZeRO figure 1: 7.5B parameters, 64 ranks, fp16 gradients, K = 12."""
    psi, ranks = 7.5e9, 64.0
    total = (
        weight_bytes(psi, 2.0, stage, ranks)
        + gradient_bytes(psi, 2.0, stage, ranks)
        + optimizer_bytes(psi, 12.0, stage, ranks)
    )
    assert f"{float(total) / 1e9:.1f}" == gigabytes


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_megatron_bytes_per_parameter(ranks: int) -> None:
    """18 bytes per parameter; with the distributed optimizer 6 + 12/d (Megatron-LM README)."""
    training = TrainingSpec(seq_length=1, global_batch_size=1)
    gradient, states = 4.0, training.optimizer_bytes_per_parameter

    def per_parameter(stage: int) -> float:
        return float(
            weight_bytes(1.0, training.weight_bytes, stage, ranks)
            + gradient_bytes(1.0, gradient, stage, ranks)
            + optimizer_bytes(1.0, states, stage, ranks)
        )

    assert per_parameter(0) == 18.0
    assert per_parameter(1) == pytest.approx(6.0 + 12.0 / ranks, rel=1e-15)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_fp32_weights_are_their_own_master(runtime: str) -> None:
    """4 bytes each of weight and gradient, 8 of Adam's moments, whatever the runtime."""
    training = TrainingSpec(seq_length=1, global_batch_size=1, precision="fp32")
    each = element_bytes(training, RUNTIMES[runtime])
    assert (each.weights, each.gradients, each.optimizer) == (4.0, 4.0, 8.0)


def test_optimizer_choices() -> None:
    def states(**fields: object) -> float:
        spec = TrainingSpec.model_validate({"seq_length": 1, "global_batch_size": 1, **fields})
        return spec.optimizer_bytes_per_parameter

    assert states() == 12.0
    assert states(optimizer="sgd") == 8.0
    assert states(optimizer_state_dtype="bf16") == 8.0
    assert states(master_weights_dtype="none", optimizer_state_dtype="fp8") == 2.0


@pytest.mark.parametrize(
    ("precision", "stored", "weights"),
    [("bf16", False, 2.0), ("fp8", False, 4.0), ("fp8", True, 2.0), ("fp4", False, 3.125)],
)
def test_transformer_engine_caches_cast_weights(
    precision: str, stored: bool, weights: float
) -> None:
    """As it stands and transposed, beside the half-precision weight unless stored in fp8."""
    training = TrainingSpec.model_validate(
        {
            "seq_length": 1,
            "global_batch_size": 1,
            "precision": precision,
            "fp8_param_gather": stored,
        }
    )
    assert element_bytes(training, RUNTIMES["megatron"]).weights == weights
    assert element_bytes(training, RUNTIMES["deepspeed"]).weights == 2.0
    assert training.gathered_weight_bytes == (1 if stored else 2)
