"""InternEvo: plain PyTorch layers in half precision, with a ZeRO optimizer of its own."""

from dataclasses import replace

from cost_models.runtimes import torch

RUNTIME = replace(
    torch.RUNTIME,
    name="internevo",
    title="InternEvo",
    version="InternEvo of 2023 and 2024",
    sources=("torch", "internevo"),
    # hybrid_zero_optim.py: bf16 weights and gradients, their fp32 copies sharded; buckets of
    # reduce_bucket_size.
    frees_gradients=0.0,
    weights_are_masters=0.0,
    flat_buckets=1.0,
    reduces_by_block=0.0,
    ddp_bucket_bytes=0.0,
    reduces_half_gradients=1.0,
    copies_sharded_parameters=0.0,
    measured_wrapper=0.0,
    expandable_segments=0.0,
)
