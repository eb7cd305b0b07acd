"""The torchtitan model package for a model."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.spec import ModelSpec


@dataclass(frozen=True)
class Package:
    """One folder of torchtitan.models: its classes, and the format of its rotary tables."""

    name: str
    model: str
    block: str
    attention: str
    parallelize: str
    rope: str


_PACKAGES = (
    "llama3 Llama3Model Llama3TransformerBlock GQAttention parallelize_llama ComplexRoPE",
    "qwen3 Qwen3Model Qwen3TransformerBlock GQAttention parallelize_qwen3 CosSinRoPE",
    "deepseek_v3 DeepSeekV3Model DeepSeekV3TransformerBlock Attention parallelize_deepseekv3 "
    "ComplexRoPE",
    "gpt_oss GptOssModel GptOssTransformerBlock Attention parallelize_gptoss CosSinRoPE",
)
PACKAGES = {package.name: package for package in (Package(*row.split()) for row in _PACKAGES)}


def package_of(model: ModelSpec) -> Package:
    """The package with the closest blocks; the rules refuse what it cannot build.

    Latent attention, sinks and windows, experts and query/key norms decide.
    """
    if model.mla is not None:
        return PACKAGES["deepseek_v3"]
    if model.attention_sinks or model.sliding_window is not None:
        return PACKAGES["gpt_oss"]
    if model.moe is not None or model.qk_norm != "none":
        return PACKAGES["qwen3"]
    return PACKAGES["llama3"]


def rotary_width(model: ModelSpec) -> int:
    """Number of elements of a head that are rotated."""
    return model.head_dim if model.mla is None else model.mla.qk_rope_head_dim
