"""Bytes of weights, gradients and optimizer states of one rank under ZeRO and FSDP.

Sharding (ZeRO, SC'20, section 5): stage 1 splits optimizer states over the shard group, stage 2
also gradients, stage 3 also weights.  Megatron's distributed optimizer is stage 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.arrays import where
from cost_models.runtimes.base import Traits
from cost_models.sources import Array, formula
from cost_models.spec import DTYPE_BYTES, TrainingSpec


@dataclass(frozen=True)
class ElementBytes:
    """Bytes that a runtime holds per parameter: weights, gradients, optimizer states."""

    weights: Array
    gradients: Array
    optimizer: Array


# Transformer Engine caches each weight as it stands and transposed in the narrow dtype.
_CAST_WEIGHT_BYTES = {"fp8": 2.0, "fp4": 2.0 * (0.5 + 1.0 / 16.0)}


def element_bytes(training: TrainingSpec, runtime: Traits) -> ElementBytes:
    """Bytes per parameter by runtime, before sharding.

    Megatron: half-precision weights, the accumulation buffer, fp32 master and moments.  torch
    (FSDP2 with a mixed-precision policy): the stored weight is the master, its gradient has its
    dtype, and half precision exists of gathered layers only.  DeepSpeed's BF16_Optimizer
    accumulates in fp32 beside the half-precision gradients, which it keeps.  Transformer Engine
    keeps what it cast of a weight for all micro-batches of a step (is_first_microbatch), and the
    half-precision weight beside it unless weights are stored in fp8.
    """
    accumulated = float(DTYPE_BYTES[training.gradient_dtype])
    states = training.resident_optimizer_bytes
    half = float(training.weight_bytes)
    master = float(training.master_weight_bytes)
    stored = master or half
    kept_half = half * (accumulated > half)
    cast = _CAST_WEIGHT_BYTES.get(training.precision, 0.0)
    if training.precision == "fp8" and training.fp8_param_gather:
        cast -= half
    masters = runtime.weights_are_masters
    return ElementBytes(
        half + masters * (stored - half) + cast * runtime.keeps_cast_weights,
        accumulated + masters * (stored - accumulated) + runtime.keeps_half_gradients * kept_half,
        states - masters * master,
    )


def transposed_bytes(training: TrainingSpec, runtime: Traits) -> Array:
    """Bytes per parameter that FSDP saves with weights stored in fp8: the transposed copy.

    Megatron-FSDP shards them as they stand, and drops what was transposed of a layer after its use
    (param_and_grad_buffer.py; keep_fp8_transpose_cache is off).  MXFP8 stores both directions.
    """
    stored = training.precision == "fp8" and training.fp8_param_gather
    transposes = stored and training.fp8_recipe != "mxfp8"
    return float(transposes) * runtime.keeps_cast_weights


@formula("byte", "deepspeed")
def step_bytes(parameters: Array, half_gradients: Array, zero_stage: Array, shards: Array) -> Array:
    """Bytes that DeepSpeed's step adds to the states, where gradients accumulate in fp16.

    stage_1_and_2.py: the rank's share of the gradients flattened, then in fp32 (2 + 4 bytes).
    Without ZeRO (FP16_Optimizer.step) all gradients in fp32, then flattened (4 + 4 bytes).
    """
    sharded = 6.0 * parameters / shards
    return where(np.asarray(zero_stage) >= 1, sharded, 8.0 * parameters) * half_gradients


@formula("byte", "zero", "megatron-core")
def weight_bytes(
    parameters: Array, element_bytes: Array, zero_stage: Array, shards: Array
) -> Array:
    """Bytes of the training weights a rank holds between uses."""
    return parameters * element_bytes / where(np.asarray(zero_stage) >= 3, shards, 1.0)


@formula("byte", "zero", "megatron-core")
def gradient_bytes(
    parameters: Array, element_bytes: Array, zero_stage: Array, shards: Array
) -> Array:
    """Bytes of the gradient accumulation buffer a rank holds."""
    return parameters * element_bytes / where(np.asarray(zero_stage) >= 2, shards, 1.0)


@formula("byte", "zero", "megatron-core")
def optimizer_bytes(
    parameters: Array, bytes_per_parameter: Array, zero_stage: Array, shards: Array
) -> Array:
    """Bytes of master weights and moments a rank holds."""
    return parameters * bytes_per_parameter / where(np.asarray(zero_stage) >= 1, shards, 1.0)
