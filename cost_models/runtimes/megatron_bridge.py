"""Megatron-Core as the performance recipes of Megatron-Bridge start it since December 2025."""

from dataclasses import replace

from cost_models.runtimes import megatron

RUNTIME = replace(
    megatron.RUNTIME,
    name="megatron-bridge",
    title="Megatron-Core in Megatron-Bridge's performance recipes",
    version="containers 26.02 to 26.08",
    # scripts/performance/utils/executors.py, PERF_ENV_VARS: PYTORCH_CUDA_ALLOC_CONF.
    expandable_segments=1.0,
)
