"""How much is trained and in which formats: one optimizer step, and how many tokens in all."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from cost_models.adapters import AdapterTarget, clashing
from cost_models.effects import GIVEN, Condition, above, equal, read_where
from cost_models.fields import Count, Probability, Spec
from cost_models.optimizers import OPTIMIZERS, OptimizerName

Precision = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]
FP8Recipe = Literal["tensorwise", "delayed", "rowwise", "blockwise", "mxfp8"]
Part = Literal["embedding", "encoders", "norms", "mixers", "routers", "feed_forwards", "head"]
Loss = Literal["next_token", "dpo", "reward", "distillation"]
FrozenDtype = Literal["as trained", "nf4", "nf4 and fp32"]

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
# Where a field has an effect.
FP8: Condition = {"precision": equal("fp8")}
ADAPTED: Condition = {"lora_rank": above(0)}


class TrainingSpec(Spec):
    """One optimizer step, and how many tokens in all."""

    seq_length: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        description="tokens per sequence"
    )
    global_batch_size: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        description="sequences per optimizer step"
    )
    precision: Precision = Field("bf16", description="of matrix products")
    fp8_recipe: FP8Recipe = Field("tensorwise", **read_where("how fp8 values are scaled", FP8))
    fp8_param_gather: bool = Field(
        False, **read_where("weights stored and gathered in fp8 (Megatron)", FP8)
    )
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="the buffer gradients accumulate in"
    )
    gradient_reduce_dtype: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="in which data-parallel ranks reduce gradients"
    )
    master_weights_dtype: Literal["fp32", "none"] = Field(
        "fp32", description="the optimizer's own copy of the weights"
    )
    optimizer_state_dtype: Literal["fp32", "bf16", "fp8"] = Field(
        "fp32",
        description="of Adam's moments, momentum or variance; those of 8 bits have their own",
    )
    optimizer: OptimizerName = Field(
        "adam",
        description="sgd: with momentum; adam_8bit: states in 8 bits with a scale per block; "
        "paged_: states that the driver moves to the host when the accelerator is full; "
        "muon: Adam for what is no hidden matrix, and distributed with ZeRO 1",
    )
    optimizer_in_backward: bool = Field(
        False,
        description="each weight is updated as soon as its gradient is there, and the gradient "
        "freed: no accumulation and no clipping (torchtune's optimizer_in_bwd)",
    )
    lora_rank: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0, description="rank of the adapters beside frozen matrices; 0: none"
    )
    lora_targets: tuple[AdapterTarget, ...] = Field(
        ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
        max_length=100,
        **read_where("matrices with adapters, as Megatron or Hugging Face names them", ADAPTED),
    )
    lora_dropout: Probability = Field(0.0, **read_where("before the adapters", ADAPTED))
    frozen: tuple[Part, ...] = Field(
        (),
        max_length=100,
        **read_where(
            "parts that are not trained; with lora_rank all of them", {"lora_rank": equal(0)}
        ),
    )
    frozen_dtype: FrozenDtype = Field(
        "as trained",
        **read_where(
            "how frozen matrices of layers are stored; nf4: QLoRA's 4 bits; nf4 and fp32: all else "
            "that is frozen in fp32, as PEFT's prepare_model_for_kbit_training leaves it",
            ADAPTED,
            {"frozen": GIVEN},
        ),
    )
    loss: Loss = Field(
        "next_token",
        description="dpo, distillation: a frozen reference or teacher runs forward beside; dpo, "
        "reward: the sequences of the batch are pairs; reward: one score in place of logits",
    )
    teacher_parameters: Annotated[float, Field(ge=1e6, le=1e15)] | None = Field(
        None,
        **read_where(
            "of a dense teacher; None: as many as the model", {"loss": equal("distillation")}
        ),
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
        **read_where(
            "packed: samples fill sequences, and attend within themselves; padded: a sequence is "
            "one sample and padding",
            {"sample_lengths": GIVEN},
        ),
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

    def without_batch(self) -> Self:
        """The same training with one batch size and no token count.

        The costs of a micro-batch depend on nothing else.
        """
        return self.model_copy(update={"global_batch_size": 1, "tokens": None})

    def without_size(self) -> Self:
        """Equal for trainings that differ in the length and number of their samples; only where
        samples are sequences.
        """
        return self.model_copy(update={"seq_length": 1, "global_batch_size": 1, "tokens": None})

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
    def casts_trained_weights(self) -> bool:
        """Whether what trains is wider than what it is computed in.

        What is frozen beside adapters is stored as it is used unless PEFT has widened it, and so is
        all without masters.
        """
        if self.lora_rank:
            return self.widens_frozen and self.weight_bytes < DTYPE_BYTES["fp32"]
        return self.master_weight_bytes > self.weight_bytes

    @property
    def packs_frozen(self) -> bool:
        """Whether frozen matrices of layers have 4 bits."""
        return self.frozen_dtype.startswith("nf4")

    @property
    def widens_frozen(self) -> bool:
        """Whether what else is frozen is in fp32."""
        return self.frozen_dtype == "nf4 and fp32"

    @property
    def optimizer_bytes_per_parameter(self) -> float:
        """Master copy plus moments, bytes per parameter (of what is no matrix, if those differ)."""
        moments = OPTIMIZERS[self.optimizer].moments
        return self.master_weight_bytes + moments * self.moment_bytes

    @property
    def resident_optimizer_bytes(self) -> float:
        """The part of optimizer_bytes_per_parameter that the driver never moves to the host."""
        if OPTIMIZERS[self.optimizer].paged:
            return float(self.master_weight_bytes)
        return self.optimizer_bytes_per_parameter

    @property
    def moment_bytes(self) -> float:
        """Bytes of one number that the optimizer keeps."""
        fixed_bytes = OPTIMIZERS[self.optimizer].moment_bytes
        return DTYPE_BYTES[self.optimizer_state_dtype] if fixed_bytes is None else fixed_bytes

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
        lengths = (min(length, self.seq_length) for length in self.sample_lengths)
        return round(self.global_batch_size * sum(lengths) / len(self.sample_lengths))
