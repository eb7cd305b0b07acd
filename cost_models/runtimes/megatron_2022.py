"""Megatron-LM of 2022: fused accumulation and asynchronous all-reduce, still without TE."""

from cost_models.runtimes.base import Runtime

RUNTIME = Runtime(
    name="megatron-2022",
    title="Megatron-LM of 2022",
    version="v3.0",
    sources=("korthikanti-2022",),
    lineage="megatron",
    joins_qkv_gradients=1.0,
    fused_accumulation=1.0,
    scatters_messages=1.0,
)
