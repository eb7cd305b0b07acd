"""Megatron-Core of 2026 as Megatron-Bridge's recipes run it, launched by the host."""

from dataclasses import replace

from cost_models.runtimes import megatron

RUNTIME = replace(
    megatron.RUNTIME,
    name="megatron-2026",
    title="Megatron-Core of 2026",
    version="core 0.15 to 0.17, Megatron-Bridge 0.2 to 0.4 (containers 25.11 to 26.04)",
    sources=("megatron-core", "transformer-engine", "megatron-bridge"),
    # fused_mla_yarn_rope_apply.py.
    rotates_while_joining=1.0,
    # scripts/performance/utils/executors.py, PERF_ENV_VARS: PYTORCH_CUDA_ALLOC_CONF.
    expandable_segments=1.0,
)
