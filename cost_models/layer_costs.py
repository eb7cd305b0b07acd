"""Seconds of one layer, of the embedding and of the head, per micro-batch and rank.

They depend on few plan fields, so they are computed once per distinct key and gathered by the
composer (estimate.py).  Forward and backward are kernels only; collectives stand beside them
with the part that nothing hides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.kernel_times import KernelTime, Machine, kernel_times
from cost_models.layer_collectives import Collectives
from cost_models.layer_kernels import embedding_kernels, head_kernels, layer_kernels
from cost_models.layers import Dims, Kernel, dims
from cost_models.measured import Measured
from cost_models.parameters import padded_vocab_size
from cost_models.placement import Placement
from cost_models.plans import Plans
from cost_models.sources import Array, formula
from cost_models.spec import LayerKind, ModelSpec, TrainingSpec

FloatArray = NDArray[np.float64]
# Host operations until the device is busy again after it has waited for the host.
SYNC_LAUNCHES = 5.0


@dataclass(frozen=True)
class BlockSeconds:
    """One layer (or the embedding, or the head) forward and backward: arrays over keys.

    weight_gradient_s is the part of backward_s that a schedule may put off; forward_comm_s the
    part of tp_s, cp_s and ep_s together that belongs to the forward pass.  kernels: one by one.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_gradient_s: FloatArray
    forward_comm_s: FloatArray
    recompute_s: FloatArray
    full_recompute_s: FloatArray
    tp_s: FloatArray
    cp_s: FloatArray
    ep_s: FloatArray
    kernels: tuple[KernelTime, ...]


@formula("s", "derived")
def launch_bound_s(kernels_s: Array, exposed_s: Array, launches_s: Array) -> Array:
    """Seconds of a pass beside its exposed collectives.

    The kernels; or, where kernels and collectives together are shorter than the host takes to
    launch them, what is missing to that.
    """
    return np.maximum(kernels_s, launches_s - exposed_s)


@dataclass(frozen=True)
class MicroBatchSeconds:
    """The kinds of layers and the two ends, by key."""

    layers: dict[LayerKind, BlockSeconds]
    embedding: BlockSeconds
    head: BlockSeconds


def micro_batch_seconds(
    model: ModelSpec, training: TrainingSpec, machine: Machine, plans: Plans
) -> MicroBatchSeconds:
    """Seconds per key; `plans` holds one row per key."""
    d = dims(model, training, plans)
    network = Collectives(model, plans, d, Placement(plans), machine)
    size = (len(plans),)
    layers = {
        kind: _layer(model, kind, d, network, machine, size)
        for kind in sorted(set(model.layer_kinds))
    }
    vocab = padded_vocab_size(float(model.vocab_size), d.tp)
    return MicroBatchSeconds(
        layers=layers,
        embedding=_end(embedding_kernels(model, d), network.embedding(), machine, d, size),
        head=_end(head_kernels(model, d, vocab), network.head(), machine, d, size),
    )


def _full(values: Array, size: tuple[int, ...]) -> FloatArray:
    if isinstance(values, np.ndarray) and values.shape == size:
        return values
    return np.full(size, values, dtype=np.float64)


def _layer(
    model: ModelSpec,
    kind: LayerKind,
    d: Dims,
    network: Collectives,
    machine: Machine,
    size: tuple[int, ...],
) -> BlockSeconds:
    times = kernel_times(layer_kernels(model, kind, d), machine, d)
    operators = d.recomputed("op")
    again = sum(
        t.forward_s * np.maximum(d.recomputed(t.module), operators * t.redone) for t in times
    )
    core = [t for t in times if t.module == "core_attn"]
    tp = network.tensor_parallel(kind, times)
    cp_forward, cp_backward = network.context_parallel(
        sum(t.forward_s for t in core), sum(t.backward_s for t in core)
    )
    forward, backward = _passes(
        times, tp.forward_s + cp_forward, tp.backward_s + cp_backward, machine, d, layer=True
    )
    ep_forward, ep_backward = network.expert_parallel(kind, forward + backward)
    again = again + tp.recompute_s + ep_forward * d.recomputed("moe")
    return BlockSeconds(
        forward_s=_full(forward, size),
        backward_s=_full(backward, size),
        weight_gradient_s=_full(np.minimum(_weights(times), backward), size),
        forward_comm_s=_full(tp.forward_s + cp_forward + ep_forward, size),
        recompute_s=_full(again, size),
        full_recompute_s=_full(forward + tp.forward_s + cp_forward + ep_forward, size),
        tp_s=_full(tp.forward_s + tp.backward_s, size),
        cp_s=_full(cp_forward + cp_backward, size),
        ep_s=_full(ep_forward + ep_backward, size),
        kernels=times,
    )


def _end(
    kernels: tuple[Kernel, ...],
    collectives_s: Array,
    machine: Machine,
    d: Dims,
    size: tuple[int, ...],
) -> BlockSeconds:
    times = kernel_times(kernels, machine, d)
    forward, backward = _passes(times, collectives_s / 2.0, collectives_s / 2.0, machine, d)
    zero = np.zeros(size)
    return BlockSeconds(
        forward_s=_full(forward, size),
        backward_s=_full(backward, size),
        weight_gradient_s=_full(np.minimum(_weights(times), backward), size),
        forward_comm_s=_full(collectives_s / 2.0, size),
        recompute_s=zero,
        full_recompute_s=zero,
        tp_s=_full(collectives_s, size),
        cp_s=zero,
        ep_s=zero,
        kernels=times,
    )


def _weights(times: tuple[KernelTime, ...]) -> Array:
    """Seconds of the weight gradients of a block."""
    return sum(t.weight_gradient_s for t in times)


def _passes(
    times: tuple[KernelTime, ...],
    forward_exposed_s: Array,
    backward_exposed_s: Array,
    machine: Machine,
    d: Dims,
    layer: bool = False,
) -> tuple[Array, Array]:
    """Forward and backward seconds of a block; a module's autograd node costs the host the same.

    Where the host itself computes, a measured layer takes what it does between kernels besides.
    """
    forward, backward = sum(t.forward_s for t in times), sum(t.backward_s for t in times)
    measured = machine.profile.measured
    launch = machine.fitted.host_launch_s
    # Routing hands the host the counts it sizes the next buffers with: the device waits for it.
    waits = SYNC_LAUNCHES * launch if any(t.name == "router" for t in times) else 0.0
    if measured is not None and measured.host and (layer or measured.synchronous):
        between = [_host_s(measured, side, d) * layer for side in ("forward", "backward")]
        if measured.synchronous:
            return forward + between[0] + waits, backward + between[1]
        launches_s = between
    else:
        launches = sum(np.ceil(t.active) for t in times) * (1.0 - 0.5 * d.compiled)
        launches_s = [launches * launch, launches * launch]
    return (
        launch_bound_s(forward, forward_exposed_s, launches_s[0]) + waits,
        launch_bound_s(backward, backward_exposed_s, launches_s[1]),
    )


def _host_s(measured: Measured, side: str, d: Dims) -> Array:
    """Host seconds of one layer: its modules, and what DTensor adds to them."""
    sharded = d.sharded_tokens < d.tokens
    by_tensor = np.where(
        sharded,
        measured.host.get(("sequence_parallel", side), 0.0),
        measured.host.get(("tensor_parallel", side), 0.0),
    )
    return measured.host.get(("layer", side), 0.0) + by_tensor * (d.tp > 1)
