"""What is trained, on what, and how much: the three documents every cost formula reads.

All three are frozen pydantic models that refuse unknown fields.  The unit is the last word of
a field's name; a field without a unit is a count, a ratio or a share in 0..1.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from cost_models.adapters import AdapterTarget, clashing
from cost_models.blocks import AnySublayer, Sublayer
from cost_models.blocks.products import Product
from cost_models.fields import (
    BytesPerSecond,
    Count,
    FlopPerSecond,
    Name,
    Probability,
    Spec,
    Width,
)
from cost_models.numerics import Numerics
from cost_models.optimizers import OPTIMIZERS, OptimizerName

Precision = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]
FP8Recipe = Literal["tensorwise", "delayed", "rowwise", "blockwise", "mxfp8"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8"]
NormKind = Literal["layernorm", "rmsnorm"]
QKNorm = Literal["none", "head", "full"]
PositionKind = Literal["rope", "learned", "alibi", "none"]
AttentionKind = Literal["mha", "gqa", "mqa", "mla"]
FeedForwardKind = Literal["dense", "moe", "none"]
Part = Literal["embedding", "encoders", "norms", "mixers", "routers", "feed_forwards", "head"]
Loss = Literal["next_token", "dpo", "reward", "distillation"]
FrozenDtype = Literal["as trained", "nf4"]

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


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
        if self.moe is not None and "moe" not in self.feed_forwards:
            raise ValueError("moe is given, but no layer is a mixture-of-experts layer")
        return self

    @property
    def attention_kind(self) -> AttentionKind:
        if self.mla is not None:
            return "mla"
        if self.num_query_groups == self.num_attention_heads:
            return "mha"
        return "mqa" if self.num_query_groups == 1 else "gqa"

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


class AcceleratorSpec(Spec):
    """What one rank sees: one GPU, one GCD, one NPU, one TPU chip.  Peaks are dense."""

    id: Name
    name: Name
    vendor: str = ""
    memory_bytes: Annotated[float, Field(ge=1e6, le=1e16)] = Field(
        description="what the driver reports, not the label"
    )
    memory_bytes_per_s: BytesPerSecond
    peak_bf16_flop_per_s: FlopPerSecond | None = None
    peak_fp16_flop_per_s: FlopPerSecond | None = None
    peak_fp8_flop_per_s: FlopPerSecond | None = None
    peak_fp4_flop_per_s: FlopPerSecond | None = None
    peak_fp32_flop_per_s: FlopPerSecond | None = Field(
        None, description="of matrix products in full fp32, as torch computes them by default"
    )
    tdp_watts: Annotated[float, Field(gt=0, le=1e6)] | None = None
    efficiency_profile: str = Field("", description="catalog id; empty: the documented fallback")
    confidence: Literal["high", "medium", "low", "user"] = "user"

    def peak_flop_per_s(self, precision: str) -> float | None:
        """Dense matrix peak in FLOP/s, None where the part has no such unit."""
        value: float | None = getattr(self, f"peak_{precision}_flop_per_s")
        return value


class NetworkTier(Spec):
    """One level of the network, from the fastest domain outward."""

    name: Name
    domain_accelerators: Count | None = Field(
        None, description="accelerators inside one domain of this tier; None: the whole cluster"
    )
    bandwidth_bytes_per_s: BytesPerSecond = Field(description="per accelerator and direction")
    latency_s: Annotated[float, Field(ge=0, le=10)] = Field(description="of one message")
    oversubscription: Annotated[float, Field(ge=1, le=10_000)] = 1.0
    topology: Literal["switch", "mesh", "torus-2d", "torus-3d", "rail"] = Field(
        "switch",
        description="mesh: direct links, a group of m sees (m-1)/(domain-1) of the bandwidth; "
        "torus: rings along each axis, a group of up to 4 lies along one, of up to 16 along two; "
        "rail: a switch for each place in a node, so that only groups over several places are "
        "oversubscribed",
    )


class NodeGroup(Spec):
    """Equal nodes.  A cluster is one group, or several when it is mixed."""

    accelerator: AcceleratorSpec
    nodes: Annotated[int, Field(ge=1, le=1_000_000)]
    accelerators_per_node: Annotated[int, Field(ge=1, le=10_000)]
    network: tuple[NetworkTier, ...] = Field(min_length=1, max_length=6)
    host_memory_bytes: Annotated[float, Field(ge=1e6, le=1e16)] | None = Field(
        None, description="per node"
    )
    host_link_bytes_per_s: BytesPerSecond | None = Field(
        None, description="PCIe or C2C, per accelerator and direction"
    )
    nvme_bytes_per_s: BytesPerSecond | None = Field(None, description="per node")
    price_usd_per_accelerator_hour: Annotated[float, Field(ge=0, le=1e6)] | None = None
    node_power_watts: Annotated[float, Field(gt=0, le=1e7)] | None = Field(
        None, description="typical draw of one node in training"
    )

    @model_validator(mode="after")
    def _tiers_nest(self) -> Self:
        sizes = [tier.domain_accelerators for tier in self.network]
        if any(size is None for size in sizes[:-1]):
            raise ValueError("only the outermost tier may leave domain_accelerators out")
        known = [size for size in sizes if size is not None]
        for inner, outer in pairwise(known):
            if outer <= inner or outer % inner:
                raise ValueError(f"a tier of {outer} is not made of whole domains of {inner}")
        return self

    @property
    def accelerators(self) -> int:
        return self.nodes * self.accelerators_per_node


class ClusterSpec(Spec):
    """Groups of nodes; several groups make a mixed cluster."""

    name: Name = "custom"
    groups: tuple[NodeGroup, ...] = Field(min_length=1, max_length=16)
    reserved_bytes_per_accelerator: Annotated[float, Field(ge=0, le=1e15)] | None = Field(
        None,
        description="instead of the computed fragmentation, CUDA context and NCCL buffers; "
        "None: computed",
    )
    pue: Annotated[float, Field(ge=1, le=10)] = 1.25
    failures_per_1000_node_days: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="None: no answer about lost time"
    )

    @property
    def accelerators(self) -> int:
        return sum(group.accelerators for group in self.groups)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.accelerators > 1_000_000:
            raise ValueError(f"{self.accelerators} accelerators; at most 1000000")
        return self


class TrainingSpec(Spec):
    """One optimizer step, and how many tokens in all."""

    seq_length: Annotated[int, Field(ge=1, le=100_000_000)]
    global_batch_size: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        description="sequences per optimizer step"
    )
    precision: Precision = "bf16"
    fp8_recipe: FP8Recipe = Field(
        "tensorwise", description="how fp8 values are scaled; read where precision is fp8"
    )
    fp8_param_gather: bool = Field(
        False,
        description="Megatron: weights stored and gathered in fp8; read where precision is fp8",
    )
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="the buffer gradients accumulate in"
    )
    gradient_reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    master_weights_dtype: Literal["fp32", "none"] = "fp32"
    optimizer_state_dtype: Literal["fp32", "bf16", "fp8"] = Field(
        "fp32", description="of Adam's moments, momentum or variance; adam_8bit has its own"
    )
    optimizer: OptimizerName = Field(
        "adam",
        description="sgd: with momentum; adam_8bit: states in 8 bits with a scale per block; "
        "muon: Adam for what is no hidden matrix, and distributed with ZeRO 1",
    )
    lora_rank: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0, description="rank of the adapters beside frozen matrices; 0: none"
    )
    lora_targets: tuple[AdapterTarget, ...] = Field(
        ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
        max_length=100,
        description="matrices with adapters, as Megatron or Hugging Face names them; read where "
        "lora_rank is given",
    )
    lora_dropout: Probability = Field(0.0, description="before the adapters")
    frozen: tuple[Part, ...] = Field(
        (), max_length=100, description="parts that are not trained; with lora_rank all of them"
    )
    frozen_dtype: FrozenDtype = Field(
        "as trained", description="how frozen matrices of layers are stored; nf4: QLoRA's 4 bits"
    )
    loss: Loss = Field(
        "next_token",
        description="dpo, distillation: a frozen reference or teacher runs forward beside; dpo, "
        "reward: the sequences of the batch are pairs; reward: one score in place of logits",
    )
    teacher_parameters: Annotated[float, Field(ge=1e6, le=1e15)] | None = Field(
        None, description="of a dense teacher; None: as many as the model; read in distillation"
    )
    encoder_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="positions of images or sound in a sequence; None: the encoder's own"
    )
    sample_lengths: tuple[Count, ...] = Field(
        (),
        max_length=10_000,
        description="tokens of samples that are equally likely, such as the quantiles of a data "
        "set; empty: each sequence is one sample",
    )
    packing: Literal["packed", "padded"] = Field(
        "packed",
        description="packed: samples fill sequences, and attend within themselves; padded: a "
        "sequence is one sample and padding; read where sample_lengths are given",
    )
    tokens: Annotated[float, Field(gt=0, le=1e18)] | None = Field(
        None, description="of the whole training; None: no days, cost or energy"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.lora_rank and not self.lora_targets:
            raise ValueError("lora_rank needs lora_targets")
        if self.lora_rank and self.frozen:
            raise ValueError("lora_rank freezes every part; leave frozen out")
        if set(self.frozen) == set(get_args(Part)):
            raise ValueError("frozen names every part: nothing is left to train")
        if self.frozen_dtype != "as trained" and not self.freezes:
            raise ValueError("frozen_dtype needs lora_rank or frozen parts")
        if self.loss in ("dpo", "reward") and self.global_batch_size % 2:
            raise ValueError(f"global_batch_size {self.global_batch_size} is not made of pairs")
        if twice := clashing(self.lora_targets):
            raise ValueError(f"lora_targets {' and '.join(twice)} adapt the same matrix")
        return self

    @property
    def freezes(self) -> bool:
        """Whether a part of the model is not trained."""
        return self.lora_rank > 0 or bool(self.frozen)

    def trains(self, part: str) -> bool:
        """Whether the weights of a part have gradients; adapters are no part of the model."""
        return self.lora_rank == 0 and part not in self.frozen

    @property
    def weight_bytes(self) -> int:
        """Bytes of one stored training weight (fp8 training keeps bf16 weights by default)."""
        return self.activation_bytes

    @property
    def activation_bytes(self) -> int:
        """Bytes of one element that passes between layers."""
        return DTYPE_BYTES["fp32" if self.precision == "fp32" else "bf16"]

    @property
    def gathered_weight_bytes(self) -> int:
        """Bytes of one weight that the distributed optimizer gathers."""
        narrow = self.precision == "fp8" and self.fp8_param_gather
        return DTYPE_BYTES["fp8"] if narrow else self.weight_bytes

    @property
    def master_weight_bytes(self) -> int:
        """Bytes of the copy that the optimizer keeps of a weight; fp32 weights need none."""
        none = self.master_weights_dtype == "none" or self.precision == "fp32"
        return 0 if none else DTYPE_BYTES["fp32"]

    @property
    def optimizer_bytes_per_parameter(self) -> float:
        """Master copy plus moments, bytes per parameter (of what is no matrix, if those differ)."""
        moments = OPTIMIZERS[self.optimizer].moments
        return self.master_weight_bytes + moments * self.moment_bytes

    @property
    def moment_bytes(self) -> float:
        """Bytes of one number that the optimizer keeps."""
        own = OPTIMIZERS[self.optimizer].moment_bytes
        return DTYPE_BYTES[self.optimizer_state_dtype] if own is None else own

    @property
    def packs(self) -> bool:
        """Whether sequences are several samples."""
        return bool(self.sample_lengths) and self.packing == "packed"

    @property
    def positions_per_iteration(self) -> int:
        """Tokens and padding."""
        return self.seq_length * self.global_batch_size

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens without padding."""
        if not self.sample_lengths or self.packing == "packed":
            return self.positions_per_iteration
        kept = (min(length, self.seq_length) for length in self.sample_lengths)
        return round(self.global_batch_size * sum(kept) / len(self.sample_lengths))
