"""What a kernel is: records of shapes, and the sizes per rank that they are made of.

Each kernel is a record of shapes (arrays over plans, per rank and micro-batch); seconds, FLOP
and names for the report are all read off the same records (layer_kernels.py lists them).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, Plans, code, is_one_of
from cost_models.sources import Array, formula
from cost_models.spec import DTYPE_BYTES, ModelSpec, TrainingSpec


@dataclass(frozen=True)
class Dims:
    """Sizes per rank and micro-batch that the kernels of a layer depend on (arrays)."""

    sequences: Array
    seq_length: float
    tokens: Array
    sharded_tokens: Array
    tp: Array
    cp: Array
    ep: Array
    etp: Array
    heads: Array
    kv_heads: Array
    flash: Array
    flash1: Array
    flash2: Array
    fused_loss: Array
    in_place_loss: Array
    by_operator: Array
    all_to_all: Array
    gathered_input: Array
    eager: Array
    compiled: Array
    apex: Array
    early: Array
    serial: Array
    accumulate_bytes: Array
    activation_bytes: float
    input_bytes: Array
    modules: np.ndarray[tuple[int, ...], np.dtype[np.int64]]

    def recomputed(self, module: str) -> Array:
        """1.0 where selective recompute names the module, or `moe`, which holds two others."""
        if not module:
            return 0.0
        return ((self.modules & _bits(module)) > 0).astype(np.float64)


@cache
def _bits(module: str) -> int:
    names = (module, "moe") if module in ("moe_act", "shared_experts") else (module,)
    return sum(1 << i for i, name in enumerate(RECOMPUTE_MODULES) if name in names)


@dataclass(frozen=True)
class Gemm:
    """C[m,n] = A[m,k] B[k,n] forward; dgrad [m,k] = [m,n][n,k] and wgrad [k,n] = [k,m][m,n].

    groups > 1: that many equal products in one grouped launch, m being the rows of one.
    fp8: follows the training precision; `weights` False: a product of two activations.
    gathered_input, scattered_output: sequence parallelism casts to fp8 before it gathers, here the
    input or the gradient of the output.
    redone: share that per-operator recompute ("op") runs again.
    """

    name: str
    m: Array
    n: Array
    k: Array
    module: str = ""
    groups: Array = 1.0
    fp8: bool = True
    weights: bool = True
    tensor_cores: bool = True
    gathered_input: bool = False
    scattered_output: bool = False
    grouped: bool = False
    active: Array = 1.0
    redone: Array = 0.0


@dataclass(frozen=True)
class FlashAttention:
    """A fused attention kernel: executed FLOP of the forward pass (causal: half the square).

    query_rows: queries times heads of one launch; unequal: values narrower than keys (MLA).
    """

    name: str
    forward_flop: Array
    span: Array
    head_dim: float
    query_rows: Array
    unequal: bool = False
    version1: Array = 0.0
    version2: Array = 0.0
    module: str = "core_attn"
    active: Array = 1.0
    redone: Array = 0.0


@dataclass(frozen=True)
class Pass:
    """A memory-bound kernel: bytes read and written, forward and backward."""

    name: str
    forward_bytes: Array
    backward_bytes: Array
    module: str = ""
    active: Array = 1.0
    redone: Array = 1.0


Kernel = Gemm | FlashAttention | Pass
# Runtimes with apex kernels and without Transformer Engine.
_APEX = ("megatron-2021", "megatron-2022", "deepspeed")
_ENGINE = ("megatron", "megatron-sync")
# What Transformer Engine keeps of a matrix product's input: the value it was cast to.
_INPUT_BYTES = {"fp8": 1.0, "fp4": 0.5 + 1.0 / 16.0}
_BY_OPERATOR = 1 << RECOMPUTE_MODULES.index("op")
# Of them, without the fused accumulation and the asynchronous all-reduce of Megatron-LM 2022.
_EARLY = ("megatron-2021", "deepspeed")


def dims(model: ModelSpec, training: TrainingSpec, plans: Plans) -> Dims:
    """The sizes of each plan's micro-batch on one rank."""
    tp, cp = plans.tp.astype(np.float64), plans.cp.astype(np.float64)
    sequences = plans.micro_batch_size.astype(np.float64)
    tokens = sequences * training.seq_length / cp
    sequence_parallel = plans.sequence_parallel.astype(np.float64)
    torch = (plans.stack == code("stack", "torch")).astype(np.float64)
    apex = is_one_of(plans.stack, "stack", *_APEX)
    engine = is_one_of(plans.stack, "stack", *_ENGINE)
    early = is_one_of(plans.stack, "stack", *_EARLY)
    element_bytes = float(training.activation_bytes)
    return Dims(
        sequences=sequences,
        seq_length=float(training.seq_length),
        tokens=tokens,
        sharded_tokens=tokens / (1.0 + (tp - 1.0) * sequence_parallel),
        tp=tp,
        cp=cp,
        ep=plans.ep.astype(np.float64),
        etp=plans.etp.astype(np.float64),
        heads=model.num_attention_heads / tp,
        # A rank holds at least one key/value head; with more ranks than heads they repeat.
        kv_heads=np.maximum(model.num_query_groups / tp, 1.0),
        flash=(plans.attention_kernel != code("attention_kernel", "unfused")).astype(np.float64),
        flash1=(plans.attention_kernel == code("attention_kernel", "flash1")).astype(np.float64),
        flash2=(plans.attention_kernel == code("attention_kernel", "flash2")).astype(np.float64),
        fused_loss=(plans.cross_entropy != code("cross_entropy", "unfused")).astype(np.float64),
        in_place_loss=(plans.cross_entropy == code("cross_entropy", "in_place")).astype(np.float64),
        by_operator=((plans.recompute_modules & _BY_OPERATOR) > 0).astype(np.float64),
        all_to_all=(plans.cp_kind == code("cp_kind", "a2a")).astype(np.float64),
        gathered_input=torch,
        eager=torch * (plans.compile == 0),
        compiled=torch * (plans.compile > 0),
        apex=apex,
        early=early,
        serial=np.maximum(early, torch + (plans.stack == code("stack", "megatron-sync"))),
        accumulate_bytes=early * (2.0 + 2.0 * DTYPE_BYTES[training.gradient_dtype]),
        activation_bytes=element_bytes,
        input_bytes=element_bytes
        - engine * (element_bytes - _INPUT_BYTES.get(training.precision, element_bytes)),
        modules=plans.recompute_modules,
    )


@formula("1", "derived")
def attention_span(model: ModelSpec, seq_length: float) -> float:
    """Mean number of keys a query is paired with before causal masking, over the layers."""
    if model.sliding_window is None or model.sliding_window >= seq_length:
        return seq_length
    period = model.full_attention_period
    full = 0.0 if period is None else (model.num_layers // period) / model.num_layers
    # A causal window w over s positions holds w(s - w/2) pairs, against s^2/2 for full causal.
    window = float(model.sliding_window)
    windowed = 2.0 * window * (seq_length - window / 2.0) / seq_length
    return full * seq_length + (1.0 - full) * windowed


@formula("1", "megatron-core")
def routed_tokens(model: ModelSpec, d: Dims) -> Array:
    """Token copies one rank's experts receive in a micro-batch, busiest rank.

    Every rank sends top_k copies of its (sequence-sharded) tokens; the etp ranks of an expert
    see the copies of all of them.  A capacity factor caps what the busiest rank can get.
    """
    moe = model.moe
    assert moe is not None
    load = moe.imbalance_factor
    if moe.capacity_factor is not None:
        load = min(load, moe.capacity_factor)
    return d.sharded_tokens * moe.top_k * load * d.etp
