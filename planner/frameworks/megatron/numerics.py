"""Writes a model's numerics as Megatron-LM's options, and reads them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.numerics import RopeScaling
from cost_models.spec import ModelSpec
from planner.frameworks.arguments import Arguments
from planner.frameworks.base import Row
from planner.frameworks.megatron import patterns

WHY = "from the model's config.json"
# Values besides the scaling factor that `--use-rope-scaling` fixes (core/models/common/embeddings/
# rotary_pos_embedding.py), and that latent attention fixes for YaRN (MLATransformerConfig).
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
SCALES = {"mscale": "--mscale", "mscale_all_dim": "--mscale-all-dim"}
SQUARED_RELU = "relu2"


def rows(model: ModelSpec) -> Iterator[tuple[str, Row]]:
    """The fields of Numerics that have options, each with its option."""
    numerics = model.numerics
    if numerics.norm_epsilon is not None:
        yield "norm_epsilon", ("--norm-epsilon", numerics.norm_epsilon, WHY)
    if numerics.init_std is not None:
        yield "init_std", ("--init-method-std", numerics.init_std, WHY)
    if numerics.activation == SQUARED_RELU and not model.gated_mlp:
        yield "activation", ("--squared-relu", WHY)
        yield "activation", ("--no-bias-gelu-fusion", "a fusion for GELU alone")
    if numerics.routed_scaling is not None and model.moe and model.moe.score_correction_bias:
        yield (
            "routed_scaling",
            ("--moe-router-topk-scaling-factor", numerics.routed_scaling, WHY),
        )
    if patterns.position(model) == "rope":
        yield from _rotary(model)


def _rotary(model: ModelSpec) -> Iterator[tuple[str, Row]]:
    base, share, scaling = (
        getattr(model.numerics, name) for name in ("rope_theta", "rotary_share", "rope_scaling")
    )
    if base is not None and base == int(base):
        yield "rope_theta", ("--rotary-base", int(base), WHY)
    if share is not None and model.mla is None:
        yield "rotary_share", ("--rotary-percent", share, WHY)
    if scaling is None or scaling.factor is None:
        return
    plain = model.mla is None and not patterns.is_hybrid(model)
    if plain and scaling == RopeScaling(kind="llama3", factor=scaling.factor, **LLAMA3):
        yield "rope_scaling", ("--use-rope-scaling", "RoPE scaling of Llama 3.1")
        yield "rope_scaling", ("--rope-scaling-factor", scaling.factor, WHY)
    scales = {"mscale": scaling.mscale, "mscale_all_dim": scaling.mscale_all_dim}
    if model.mla is not None and scaling == RopeScaling(
        kind="yarn", factor=scaling.factor, **YARN, **scales
    ):
        yield "rope_scaling", ("--rotary-scaling-factor", scaling.factor, "YaRN factor " + WHY)
        for name, option in SCALES.items():
            if (value := scales[name]) is not None:
                yield "rope_scaling", (option, value, WHY)


def numerics_fields(model: ModelSpec) -> frozenset[str]:
    """The fields of Numerics that are written."""
    return frozenset(name for name, _ in rows(model))


def read(args: Arguments, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of Numerics that the options state.

    fields: those of the model.
    """
    found: dict[str, Any] = {}
    options = {
        "norm_epsilon": "--norm-epsilon",
        "init_std": "--init-method-std",
        "rope_theta": "--rotary-base",
        "rotary_share": "--rotary-percent",
        "routed_scaling": "--moe-router-topk-scaling-factor",
    }
    for name, option in options.items():
        if args.has(option) and (value := args.number(option)) > 0:
            found[name] = value
    if args.has("--squared-relu"):
        args.has("--no-bias-gelu-fusion")
        found["activation"] = SQUARED_RELU
    if args.has("--use-rope-scaling"):
        factor = args.number("--rope-scaling-factor", 8.0)
        found["rope_scaling"] = {"kind": "llama3", "factor": factor, **LLAMA3}
    if fields["mla"] is not None and args.number("--rotary-scaling-factor", 1.0) != 1.0:
        scaling = {"kind": "yarn", "factor": args.number("--rotary-scaling-factor"), **YARN}
        for name, option in SCALES.items():
            if args.has(option):
                scaling[name] = args.number(option)
        found["rope_scaling"] = scaling
    return found
