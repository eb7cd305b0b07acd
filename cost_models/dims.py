"""Sizes per rank and micro-batch, and switches of a plan, that records of blocks depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, IntArray, Plans, is_one_of
from cost_models.runtimes import traits
from cost_models.runtimes.base import Traits
from cost_models.sources import Array
from cost_models.spec import DTYPE_BYTES, TrainingSpec

# The plan fields that sizes are made of.
DIMS_FIELDS = (
    "tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch_size",
    "recompute_modules", "attention_kernel", "cross_entropy", "runtime", "compile",
    "moe_dispatcher", "autocast",
)  # fmt: skip
# What Transformer Engine keeps of a matrix product's input: the value it was cast to.
_INPUT_BYTES = {"fp8": 1.0, "fp4": 0.5 + 1.0 / 16.0}


@dataclass(frozen=True)
class Dims:
    """Numbers, or arrays over plans; tokens: of one rank, sharded_tokens: where the sequence is
    split over tp besides; residual_bytes: of an element of the residual stream; a switch is 1 where
    it is on, else 0.
    """

    runtime: Traits
    sequences: Array
    seq_length: Array
    encoder_tokens: float | None
    tokens: Array
    sharded_tokens: Array
    tp: Array
    cp: Array
    ep: Array
    etp: Array
    flash: Array
    flash1: Array
    flash2: Array
    fused_loss: Array
    in_place_loss: Array
    chunked_loss: Array
    differentiated_loss: Array
    by_operator: Array
    products_only: Array
    all_to_all: Array
    deepep: Array
    hybridep: Array
    eager: Array
    eager_layers: Array
    compiled: Array
    accumulate_bytes: Array
    activation_bytes: float
    input_bytes: Array
    autocast: Array
    residual_bytes: Array
    modules: IntArray

    def recomputed(self, module: str) -> Array:
        """1.0 where selective recompute names the module, or `moe`, which holds two others."""
        if not module:
            return 0.0
        return ((self.modules & _bits(module)) > 0).astype(np.float64)


@cache
def _bits(module: str) -> int:
    names = (module, "moe") if module in ("moe_act", "shared_experts") else (module,)
    return sum(1 << i for i, name in enumerate(RECOMPUTE_MODULES) if name in names)


def dims(training: TrainingSpec, plans: Plans) -> Dims:
    """The sizes of each plan's micro-batch on one rank."""
    tp, cp = plans.tp.astype(np.float64), plans.cp.astype(np.float64)
    sequences = plans.micro_batch_size.astype(np.float64)
    seq_length: Array = float(training.seq_length)
    if plans.seq_length is not None:
        seq_length = plans.seq_length.astype(np.float64)
    tokens = sequences * seq_length / cp
    runtime = traits(plans.runtime)
    compiled = (plans.compile > 0).astype(np.float64)
    element_bytes = float(training.activation_bytes)
    autocast = plans.autocast.astype(np.float64) * training.casts_trained_weights
    operators = ((plans.recompute_modules & _bits("op")) > 0).astype(np.float64)
    modules = (plans.recompute_modules > 0) - operators
    narrower = element_bytes - _INPUT_BYTES.get(training.precision, element_bytes)

    def attention(*names: str) -> Array:
        return is_one_of(plans.attention_kernel, "attention_kernel", *names)

    def loss(*names: str) -> Array:
        return is_one_of(plans.cross_entropy, "cross_entropy", *names)

    fused_layers = np.maximum(loss("liger"), runtime.fuses_layer_kernels)
    return Dims(
        runtime=runtime,
        sequences=sequences,
        seq_length=seq_length,
        encoder_tokens=training.encoder_tokens,
        tokens=tokens,
        sharded_tokens=tokens / (1.0 + (tp - 1.0) * plans.sequence_parallel),
        tp=tp,
        cp=cp,
        ep=plans.ep.astype(np.float64),
        etp=plans.etp.astype(np.float64),
        flash=1.0 - attention("unfused"),
        flash1=attention("flash1"),
        flash2=attention("flash2"),
        fused_loss=1.0 - loss("unfused"),
        in_place_loss=loss("in_place"),
        chunked_loss=loss("chunked", "liger"),
        differentiated_loss=np.maximum(loss("liger"), runtime.differentiates_in_loss),
        by_operator=operators,
        products_only=runtime.recompute_keeps_products * modules,
        all_to_all=is_one_of(plans.cp_kind, "cp_kind", "a2a"),
        deepep=is_one_of(plans.moe_dispatcher, "moe_dispatcher", "deepep"),
        hybridep=is_one_of(plans.moe_dispatcher, "moe_dispatcher", "hybridep"),
        eager=runtime.eager_operators * (1.0 - compiled),
        eager_layers=runtime.eager_operators * (1.0 - compiled) * (1.0 - fused_layers),
        compiled=runtime.eager_operators * compiled,
        accumulate_bytes=runtime.accumulates_apart
        * (2.0 + 2.0 * DTYPE_BYTES[training.gradient_dtype]),
        activation_bytes=element_bytes,
        input_bytes=element_bytes - runtime.keeps_cast_inputs * narrower,
        autocast=autocast,
        residual_bytes=element_bytes + (DTYPE_BYTES["fp32"] - element_bytes) * autocast,
        modules=plans.recompute_modules,
    )
