"""What is trained: the layers of a model, and what encodes other inputs for it."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cost_models.blocks import AnySublayer, Sublayer
from cost_models.blocks.products import Product
from cost_models.fields import Count, Name, Probability, Spec, Width
from cost_models.numerics import Numerics

NormKind = Literal["layernorm", "rmsnorm"]
QKNorm = Literal["none", "head", "full"]
PositionKind = Literal["rope", "learned", "alibi", "none"]
FeedForwardKind = Literal["dense", "moe", "none"]


class MLASpec(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    kv_lora_rank: Width
    q_lora_rank: Width | None = Field(None, description="None: queries are projected directly")
    qk_nope_head_dim: Width
    qk_rope_head_dim: Width
    v_head_dim: Width


class MoESpec(Spec):
    """The routed part of a mixture-of-experts model, and which layers have it.

    Layer i (from 0) is a mixture-of-experts layer when i >= num_dense_layers and
    (i - layer_offset) is a multiple of layer_frequency; the others have the dense MLP.
    """

    num_experts: Annotated[int, Field(ge=2, le=100_000)]
    top_k: Annotated[int, Field(ge=1, le=10_000)]
    expert_ffn_hidden_size: Width
    shared_expert_ffn_hidden_size: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0, description="summed over the shared experts; 0: none"
    )
    shared_expert_gate: bool = False
    zero_experts: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0, description="experts that pass their tokens on; the router chooses among them too"
    )
    latent_size: Width | None = Field(
        None, description="width at which routed experts work, between two projections"
    )
    latent_bias: bool = False
    num_dense_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    layer_frequency: Annotated[int, Field(ge=1, le=1_000)] = 1
    layer_offset: Annotated[int, Field(ge=0, le=1_000)] = 0
    num_groups: Count | None = Field(None, description="expert groups of group-limited routing")
    top_k_groups: Count | None = Field(None, description="groups one token may use")
    router_bias: bool = Field(False, description="bias of the router projection")
    score_correction_bias: bool = Field(False, description="per-expert balancing bias (V3)")
    expert_bias: bool = Field(False, description="biases inside each expert's MLP")
    capacity_factor: Annotated[float, Field(gt=0, le=1_000)] | None = Field(
        None, description="tokens above it are dropped; None: dropless"
    )
    imbalance_factor: Annotated[float, Field(ge=1, le=1_000)] = Field(
        1.0, description="load of the busiest expert-parallel rank over the mean"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} is above num_experts {self.num_experts}")
        if (self.num_groups is None) != (self.top_k_groups is None):
            raise ValueError("num_groups and top_k_groups go together")
        if self.num_groups is not None and self.top_k_groups is not None:
            if self.num_experts % self.num_groups:
                raise ValueError(
                    f"num_experts {self.num_experts} is not a multiple of num_groups "
                    f"{self.num_groups}"
                )
            if self.top_k_groups > self.num_groups:
                raise ValueError("top_k_groups is above num_groups")
        return self


class StackSpec(Spec):
    """Layers of transformers and the like: a decoder's, or an encoder's."""

    num_layers: Annotated[int, Field(ge=1, le=10_000)]
    hidden_size: Width
    num_attention_heads: Annotated[int, Field(ge=1, le=100_000)]
    num_query_groups: Annotated[int, Field(ge=1, le=100_000)] = Field(
        description="key/value heads; defaults to num_attention_heads"
    )
    head_dim: Width = Field(description="defaults to hidden_size / num_attention_heads")
    ffn_hidden_size: Width = Field(description="dense MLP width; defaults to 4 hidden_size")
    gated_mlp: bool = Field(False, description="SwiGLU/GeGLU: two input projections")
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    norm: NormKind = "layernorm"
    norm_bias: bool = Field(False, description="layernorm only; defaults to true for layernorm")
    norms_per_layer: Annotated[int, Field(ge=0, le=8)] = 2
    qk_norm: QKNorm = "none"
    final_norm: bool = Field(True, description="a norm after the last layer")
    parallel_residual: bool = Field(False, description="attention and MLP read the same input")
    attention_sinks: bool = Field(False, description="one learned logit per head (gpt-oss)")
    bidirectional: bool = Field(False, description="attention sees later tokens too")
    position: PositionKind = "rope"
    max_position_embeddings: Count | None = Field(
        None, description="rows of a learned position table"
    )
    hidden_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    sliding_window: Count | None = None
    full_attention_period: Count | None = Field(
        None, description="with a window: every n-th layer attends fully; None: no layer does"
    )
    layer_pattern: tuple[Annotated[tuple[AnySublayer, ...], Field(max_length=64)], ...] = Field(
        (),
        max_length=10_000,
        description="the blocks of each layer, repeated over the layers; empty: attention and "
        "feed-forward of the other fields",
    )
    residual_streams: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="hyper-connections: copies of the residual that every block mixes"
    )
    mla: MLASpec | None = None
    moe: MoESpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Fill the widths that follow from others, so that the spec is explicit."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        heads, hidden = data.get("num_attention_heads"), data.get("hidden_size")
        if data.get("num_query_groups") is None and heads is not None:
            data["num_query_groups"] = heads
        if data.get("head_dim") is None and _positive(heads) and _positive(hidden):
            if hidden % heads:
                raise ValueError(
                    f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; "
                    "give head_dim"
                )
            data["head_dim"] = hidden // heads
        if data.get("ffn_hidden_size") is None and _positive(hidden):
            data["ffn_hidden_size"] = 4 * hidden
        if data.get("norm_bias") is None:
            data["norm_bias"] = data.get("norm", "layernorm") == "layernorm"
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_query_groups {self.num_query_groups}"
            )
        if self.position == "learned" and self.max_position_embeddings is None:
            raise ValueError("learned positions need max_position_embeddings")
        if self.norm == "rmsnorm" and self.norm_bias:
            raise ValueError("rmsnorm has no bias")
        if self.full_attention_period is not None and self.sliding_window is None:
            raise ValueError("full_attention_period needs sliding_window")
        self._blocks_of_layers()
        if self.moe is not None and "moe" not in self.feed_forwards:
            raise ValueError("moe is given, but no layer is a mixture-of-experts layer")
        return self

    def _blocks_of_layers(self) -> None:
        if self.layer_pattern and self.sliding_window is not None:
            raise ValueError("give layer_pattern or sliding_window, not both")
        if len(self.layer_pattern) > self.num_layers:
            raise ValueError(
                f"layer_pattern has {len(self.layer_pattern)} layers of {self.num_layers}"
            )
        if not all(self.layer_pattern):
            raise ValueError("every layer of layer_pattern needs a block")
        for block in dict.fromkeys(block for layer in self.layer_pattern for block in layer):
            if missing := block.missing(self):
                raise ValueError(missing)

    @cached_property
    def feed_forwards(self) -> tuple[FeedForwardKind, ...]:
        """What works on each token in each of the num_layers layers, first to last."""
        if self.layer_pattern:
            kinds = tuple(_feed_forward(layer) for layer in self.layer_pattern)
            return tuple(kinds[i % len(kinds)] for i in range(self.num_layers))
        moe = self.moe
        dense: FeedForwardKind = "dense"
        if moe is None:
            return (dense,) * self.num_layers

        def kind(i: int) -> FeedForwardKind:
            routed = i >= moe.num_dense_layers
            return "moe" if routed and not (i - moe.layer_offset) % moe.layer_frequency else dense

        return tuple(kind(i) for i in range(self.num_layers))


class EncoderSpec(StackSpec):
    """What makes vectors of images or sound, which take the place of tokens in the model.

    The model's first pipeline stage holds it.
    """

    name: Name = "vision"
    tokens: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        description="positions of one sequence that it works on, over all images"
    )
    span: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="positions of one image, which see each other; None: tokens"
    )
    input_width: Width | None = Field(
        None, description="values of one patch or frame; None: vectors are looked up"
    )
    merge: Count = Field(1, description="positions that become one vector of the model")
    projector: tuple[Product, ...] = Field(
        (), max_length=100, description="matrices between its output and the model"
    )
    other_parameters: Annotated[int, Field(ge=0, le=10**13)] = Field(
        0, description="beside layers, projector and the projection of patches"
    )

    @model_validator(mode="after")
    def _whole_images(self) -> Self:
        if self.span is not None and self.tokens % self.span:
            raise ValueError(f"tokens {self.tokens} are not whole images of {self.span}")
        return self


class ModelSpec(StackSpec):
    """A language model, with what encodes other inputs for it."""

    name: Name = "custom"
    vocab_size: Annotated[int, Field(ge=1, le=10_000_000)]
    embedding_size: Width | None = Field(
        None, description="width of the word table; None: hidden_size"
    )
    tied_embeddings: bool = False
    lm_head_bias: bool = False
    embedding_norm: bool = Field(False, description="a norm right after the embedding (BLOOM)")
    mtp_num_layers: Annotated[int, Field(ge=0, le=16)] = Field(
        0, description="multi-token-prediction layers after the last one"
    )
    mtp_layer: Annotated[tuple[AnySublayer, ...], Field(max_length=64)] = Field(
        (), description="blocks of such a layer; empty: those of the last layer"
    )
    per_layer_input_size: Width | None = Field(
        None, description="width of the embedding of its own that each layer adds (Gemma 3n)"
    )
    per_layer_input_vocab_size: Count | None = Field(None, description="None: vocab_size")
    other_parameters: Annotated[int, Field(ge=0, le=10**13)] = Field(
        0, description="before the first layer, beside what the other fields say"
    )
    encoders: tuple[EncoderSpec, ...] = Field((), max_length=8)
    numerics: Numerics = Field(
        Numerics(), description="values that change what is computed, not what it costs"
    )

    @model_validator(mode="after")
    def _predicts(self) -> Self:
        if self.mtp_layer and not self.mtp_num_layers:
            raise ValueError("mtp_layer needs mtp_num_layers")
        for block in self.mtp_layer:
            if missing := block.missing(self):
                raise ValueError(missing)
        return self


def _feed_forward(layer: tuple[Sublayer, ...]) -> FeedForwardKind:
    kinds = {each.kind for block in layer for each in (block, *getattr(block, "branches", ()))}
    return "moe" if "experts" in kinds else "dense" if "mlp" in kinds else "none"


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
