"""Unsloth: transformers' models with its own kernels, and adapters joined with their matrices."""

from dataclasses import replace

from cost_models.runtimes import transformers

RUNTIME = replace(
    transformers.RUNTIME,
    name="unsloth",
    title="Unsloth: its kernels for layers and adapters",
    version="Unsloth 2026.8 to 2026.10, transformers 5",
    sources=("torch", "transformers", "unsloth"),
    # kernels/rms_layernorm.py, rope_embedding.py, swiglu.py.
    fuses_layer_kernels=1.0,
    # unsloth_zoo/fused_losses/cross_entropy_loss.py.
    differentiates_in_loss=1.0,
    # kernels/fast_lora.py and utils.py, matmul_lora: adapters are cast, not what they read.
    casts_adapters=0.0,
    fuses_adapters=1.0,
)
