"""Further names of an option: those of older versions, and shorter forms."""

from __future__ import annotations

_MEGATRON = {
    "--tensor-model-parallel-size": ("--model-parallel-size",),
    "--num-virtual-stages-per-pipeline-rank": (
        "--num-layers-per-virtual-pipeline-stage",
        "--pipeline-model-parallel-layout",
    ),
    "--recompute-granularity": ("--recompute-activations", "--checkpoint-activations"),
    "--micro-batch-size": ("--batch-size",),
    "--seq-length": ("--encoder-seq-length",),
    "--attention-backend": ("--use-flash-attn",),
}
_SPELLINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "megatron": _MEGATRON,
    "accelerate": {
        # What DeepSpeed's JSON says stands behind the option that names it.
        "fsdp_config.fsdp_offload_params": ("--deepspeed",),
        "distributed_type": ("--deepspeed", "--fsdp"),
    },
    "deepspeed": _MEGATRON | {"--use-flash-attn-v2": ("--use-flash-attn", "--use-flash-attn-v1")},
}


def spellings(framework: str, option: str) -> tuple[str, ...]:
    """The option and all other options that set the same value."""
    return (option, *_SPELLINGS.get(framework, {}).get(option, ()))
