"""Megatron-LM of 2021: apex kernels, nothing overlapped (SC'21)."""

from cost_models.runtimes.base import Runtime

RUNTIME = Runtime(
    name="megatron-2021",
    title="Megatron-LM of 2021",
    version="v2.0 to v2.5",
    sources=("megatron-2",),
    lineage="megatron",
    joins_qkv_gradients=1.0,
    accumulates_apart=1.0,
    serial_collectives=1.0,
    # SC'21, section 4.1: the scatter/gather optimisation.
    scatters_messages=1.0,
)
