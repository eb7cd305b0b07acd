"""Facts about options that the readers do not need: options without effect, required variables.

Read from Megatron-LM core 0.16 to main (0.20), DeepSpeed 0.16 to 0.19 and Megatron-DeepSpeed of
July 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.spec import ClusterSpec


@dataclass(frozen=True)
class Ignored:
    """An option that has an effect only together with one of others, and what happens without.

    spoiled: an option and its value with which it has no effect.
    """

    option: str
    needs: tuple[str, ...]
    why: str
    spoiled: tuple[str, str] = ("", "")


_GRANULARITY = ("--recompute-granularity", "--recompute-activations")
_MEGATRON = (
    Ignored(
        "--num-query-groups",
        ("--group-query-attention",),
        "every head gets its own keys and values, a different model than intended",
    ),
    Ignored("--recompute-method", _GRANULARITY, "nothing is recomputed"),
    Ignored("--recompute-num-layers", _GRANULARITY, "nothing is recomputed"),
    Ignored("--recompute-modules", _GRANULARITY, "nothing is recomputed"),
    Ignored(
        "--cross-entropy-fusion-impl",
        ("--cross-entropy-loss-fusion",),
        "the loss is computed with unfused kernels",
    ),
    Ignored(
        "--fp8-format",
        (),
        "only Transformer Engine's layers compute in fp8",
        ("--transformer-impl", "local"),
    ),
    Ignored(
        "--data-parallel-sharding-strategy",
        ("--use-megatron-fsdp", "--use-custom-fsdp"),
        "weights and gradients are not sharded",
    ),
)
IGNORED: dict[str, tuple[Ignored, ...]] = {"megatron": _MEGATRON}


def needs_variable(cluster: ClusterSpec) -> bool:
    """Whether CUDA_DEVICE_MAX_CONNECTIONS has an effect: on NVIDIA GPUs before Blackwell.

    Blackwell is recognised by its FP4 units.
    """
    accelerator = cluster.groups[0].accelerator
    nvidia = accelerator.vendor.lower() in ("", "nvidia")
    return nvidia and accelerator.peak_fp4_flop_per_s is None
