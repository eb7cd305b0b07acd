"""Megatron-Core as it ran in published runs with all overlap switched off."""

from dataclasses import replace

from cost_models.runtimes import megatron

RUNTIME = replace(
    megatron.RUNTIME,
    name="megatron-sync",
    title="Megatron-Core without overlap",
    serial_collectives=1.0,
    # Runs of other frameworks on its kernels, which interleave what they like.
    whole_interleaved_rounds=0.0,
)
