"""Seconds of one layer, of the embedding and of the head, per micro-batch and rank.

They depend on few plan fields, so they are computed once per distinct key and gathered by the
composer (estimate.py).  Forward and backward are kernels only; collectives stand beside them
with the part that nothing hides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.activation_memory import MicroBatch
from cost_models.arrays import laid_out, maximum, minimum, sum_of, where
from cost_models.blocks.records import (
    Gemm,
    HostOperations,
    HostWait,
    Kernel,
    MemoryBoundKernel,
    Record,
)
from cost_models.collectives import Collectives, Exposed
from cost_models.dims import Dims
from cost_models.encoders import Encoded
from cost_models.kernel_times import KernelTime, Machine, kernel_times
from cost_models.measured_tables import Measured
from cost_models.plans import Plans
from cost_models.sources import Array, formula
from cost_models.spec import ModelSpec

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class BlockSeconds:
    """One layer (or the embedding, or the head) forward and backward: arrays over keys.

    weight_gradient_s: the part of backward_s that a schedule may postpone.  forward_comm_s: the
    part of tp_s, cp_s and ep_s that belongs to the forward pass.  ep_hidden_s: the part of the
    experts' communication that another micro-batch hides.  kernels: each kernel; communication:
    over tp, cp and ep.
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
    ep_hidden_s: FloatArray
    kernels: tuple[KernelTime, ...]
    communication: tuple[Exposed, Exposed, Exposed] = (Exposed(), Exposed(), Exposed())


@formula("s", "derived")
def launch_bound_s(kernels_s: Array, exposed_s: Array, launches_s: Array) -> Array:
    """Seconds of a pass without its exposed collectives.

    The time of the kernels; if the host takes longer to launch them than kernels and collectives
    take together, the host's time minus the collectives.
    """
    return maximum(kernels_s, launches_s - exposed_s)


@dataclass(frozen=True)
class MicroBatchSeconds:
    """Costs of layers by kind, and of the two ends, by key."""

    layers: tuple[BlockSeconds, ...]
    embedding: BlockSeconds
    head: BlockSeconds


def micro_batch_seconds(
    model: ModelSpec, machine: Machine, micro: MicroBatch, plans: Plans
) -> MicroBatchSeconds:
    """Seconds per key; `plans` holds one row per key."""
    priced = _Priced(model, machine, micro.d, plans)
    return MicroBatchSeconds(
        layers=tuple(priced.layer(records) for records in micro.layers),
        embedding=priced.end(micro.embedding, micro.encoders, micro.frozen_encoders),
        head=priced.end(micro.head),
    )


def _recomputed_share(kernel: Kernel, d: Dims) -> Array:
    """The share of a kernel's forward pass that selective recompute repeats."""
    unkept = d.products_only * isinstance(kernel, MemoryBoundKernel) + d.by_operator
    return maximum(d.recomputed(kernel.module), unkept * kernel.recomputed)


class _Priced:
    """Prices the records of blocks."""

    def __init__(self, model: ModelSpec, machine: Machine, d: Dims, plans: Plans) -> None:
        self._machine, self._d, self._plans, self._size = machine, d, plans, len(plans)
        self._network = Collectives(model, plans, d, machine)
        self._post_norms = model.norms_per_layer > 2.0

    def _full(self, values: Array) -> FloatArray:
        return laid_out(values, self._size)

    def layer(self, records: tuple[Record, ...]) -> BlockSeconds:
        """One layer."""
        d, full = self._d, self._full
        times = kernel_times(records, self._machine, d)
        selective_s = sum_of(t.forward_s * _recomputed_share(k, d) for k, t in times.items())
        tp, cp, sent = self._network.of(records, times)
        forward, backward = self._passes(records, times, tp + cp, in_layer=True)
        ep, hides = self._network.expert_parallel(sent, forward + backward)
        comm = tp + cp + ep
        return BlockSeconds(
            forward_s=full(forward),
            backward_s=full(backward),
            weight_gradient_s=full(minimum(_weights(times), backward)),
            forward_comm_s=full(comm.forward_s),
            recompute_s=full(selective_s + comm.recompute_s),
            full_recompute_s=full(forward + comm.forward_s - self._unread_s(times)),
            tp_s=full(tp.both_s),
            cp_s=full(cp.both_s),
            ep_s=full(ep.both_s),
            ep_hidden_s=full(hides),
            kernels=tuple(times.values()),
            communication=(tp, cp, ep),
        )

    def _unread_s(self, times: Mapping[Kernel, KernelTime]) -> Array:
        """Forward seconds of a layer's last matrix product, if recompute omits it.

        A norm after it needs its output, and so do the gradients of expert routing weights.
        """
        products = [kernel for kernel in times if isinstance(kernel, Gemm)]
        if not products or products[-1].grouped or self._post_norms:
            return 0.0
        return times[products[-1]].forward_s * self._d.runtime.leaves_out_last_product

    def end(
        self,
        records: tuple[Record, ...],
        encoders: tuple[Encoded, ...] = (),
        frozen_encoders: tuple[Encoded, ...] = (),
    ) -> BlockSeconds:
        """The embedding or the head, which are never recomputed.

        The host launches an encoder while the device computes layers, so the device never waits.
        """
        full = self._full
        times = kernel_times(records, self._machine, self._d)
        tp, cp, _ = self._network.of(records, times)
        forward, backward = self._passes(records, times, tp + cp)
        for encoder in encoders:
            encoder_times, encoder_tp, encoder_cp = self._encoder(encoder)
            forward = forward + sum_of(t.forward_s for t in encoder_times.values())
            backward = backward + sum_of(t.backward_s for t in encoder_times.values())
            times, tp, cp = times | encoder_times, tp + encoder_tp, cp + encoder_cp
        for encoder in frozen_encoders:
            encoder_times, encoder_tp, encoder_cp = self._encoder(encoder)
            forward = forward + sum_of(t.forward_s for t in encoder_times.values())
            forward = forward + encoder_tp.forward_s + encoder_cp.forward_s
        zero = np.zeros(self._size)
        return BlockSeconds(
            forward_s=full(forward),
            backward_s=full(backward),
            weight_gradient_s=full(minimum(_weights(times), backward)),
            forward_comm_s=full(tp.forward_s + cp.forward_s),
            recompute_s=zero,
            full_recompute_s=zero,
            tp_s=full(tp.both_s),
            cp_s=full(cp.both_s),
            ep_s=zero,
            ep_hidden_s=zero,
            kernels=tuple(times.values()),
        )

    def _encoder(self, encoder: Encoded) -> tuple[dict[Kernel, KernelTime], Exposed, Exposed]:
        """Its kernels, and communication over tp and cp for its own positions and width."""
        times = kernel_times(encoder.records, self._machine, encoder.d)
        network = Collectives(encoder.spec, self._plans, encoder.d, self._machine)
        tp, cp, _ = network.of(encoder.records, times)
        return times, tp, cp

    def _passes(
        self,
        records: tuple[Record, ...],
        times: Mapping[Kernel, KernelTime],
        exposed: Exposed,
        in_layer: bool = False,
    ) -> tuple[Array, Array]:
        """Forward and backward seconds; a module's autograd node costs the host the same.

        Where the host itself computes, a measured layer takes what it does between kernels besides.
        """
        machine, d = self._machine, self._d
        forward = sum_of(t.forward_s for t in times.values())
        backward = sum_of(t.backward_s for t in times.values())
        measured = machine.profile.measured
        launch = machine.fitted.host_launch_s * (1.0 - d.runtime.replays_graphs)
        waits = sum(launch * r.launches for r in records if isinstance(r, HostWait))
        if measured is not None and measured.host and (in_layer or measured.synchronous):
            between = [_host_s(measured, side, d) * in_layer for side in ("forward", "backward")]
            if measured.synchronous:
                return forward + between[0] + waits, backward + between[1]
            launches_s = between
        else:
            kernels = sum_of(np.ceil(k.active) for k in times) * (1.0 - 0.5 * d.compiled)
            launches = kernels + sum(
                record.operations for record in records if isinstance(record, HostOperations)
            )
            launches_s = [launches * launch, launches * launch]
        return (
            launch_bound_s(forward, exposed.forward_s, launches_s[0]) + waits,
            launch_bound_s(backward, exposed.backward_s, launches_s[1]),
        )


def _weights(times: Mapping[Kernel, KernelTime]) -> Array:
    """Seconds of the weight gradients of a block."""
    return sum_of(t.weight_gradient_s for t in times.values())


def _host_s(measured: Measured, side: str, d: Dims) -> Array:
    """Host seconds of one layer: its modules, and what DTensor adds to them."""
    sharded = d.sharded_tokens < d.tokens
    by_tensor = where(
        sharded,
        measured.host.get(("sequence_parallel", side), 0.0),
        measured.host.get(("tensor_parallel", side), 0.0),
    )
    return measured.host.get(("layer", side), 0.0) + by_tensor * (d.tp > 1)
