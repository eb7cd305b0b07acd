"""Constants of a model that cost neither bytes nor seconds: bases, epsilons, multipliers.

No formula of time or memory reads them, but a launch that omits one trains another model.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cost_models.fields import Count, Name, Spec

Positive = Annotated[float, Field(gt=0, le=1e12)]
Factors = Annotated[tuple[Positive, ...], Field(max_length=4096)]


class RopeScaling(Spec):
    """How rotary positions are stretched beyond the length of pre-training (transformers' keys)."""

    kind: Literal["linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]
    factor: Positive | None = None
    original_max_position_embeddings: Count | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: Annotated[float, Field(ge=0, le=1e6)] | None = None
    mscale_all_dim: Annotated[float, Field(ge=0, le=1e6)] | None = None
    attention_factor: Positive | None = None
    truncate: bool | None = None
    short_factor: Factors | None = None
    long_factor: Factors | None = None


class Numerics(Spec):
    """Values that a config.json states; None: not stated, so the framework's default applies."""

    norm_epsilon: Annotated[float, Field(gt=0, lt=1)] | None = None
    init_std: Positive | None = Field(None, description="spread of the initial weights")
    activation: Name | None = Field(
        None, description="as transformers names it; None: SiLU where the MLP is gated, else GELU"
    )
    gate_limit: Positive | None = Field(
        None, description="clamp of both halves of a gated MLP's input (swiglu_limit)"
    )
    gate_offset: Positive | None = Field(
        None, description="added to the half of a gated MLP's input that has no activation"
    )
    rope_theta: Positive | None = Field(None, description="base of rotary positions")
    local_rope_theta: Positive | None = Field(None, description="the same of windowed layers")
    rotary_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="share of a head that rotates"
    )
    rope_scaling: RopeScaling | None = None
    attention_softcap: Positive | None = Field(None, description="tanh cap of attention scores")
    logit_softcap: Positive | None = Field(None, description="tanh cap of the logits")
    attention_scale: Positive | None = Field(None, description="of scores; None: head_dim ** -0.5")
    embedding_multiplier: Positive | None = None
    residual_multiplier: Positive | None = None
    logit_multiplier: Positive | None = None
    routed_scaling: Positive | None = Field(
        None, description="of the outputs of routed experts; 1 is none"
    )

    @property
    def stated(self) -> frozenset[str]:
        """The fields that have a value."""
        return frozenset(
            name for name in type(self).model_fields if getattr(self, name) is not None
        )
