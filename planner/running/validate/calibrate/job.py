"""The job of a calibration worker: the measurements to make."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cost_models.fields import Spec

RESULT = "measured.json"
Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Shape(Spec):
    """Sizes of one rank's micro-batch: `sequences` of `tokens` each, and the widths of layers."""

    sequences: Count
    tokens: Count
    shard_tokens: Count
    """Tokens of one sequence in the parts that sequence parallelism splits."""
    seq_length: Count
    hidden: Count
    width: Count
    heads: Count
    kv_heads: Count
    attention_heads: Count
    """Heads during attention: context parallelism (all-to-all) exchanges tokens for heads."""
    attention_kv_heads: Count
    head_dim: Count
    vocab: Count


class Gemm(Spec):
    """y[m,n] = x[m,k] w[n,k]^T and its gradients."""

    m: Count
    n: Count
    k: Count


class Attention(Spec):
    """Causal attention; seq_length and flop are the cost model's values for this shape."""

    shape: Shape
    seq_length: float
    flop: float


class Pass(Spec):
    """A memory-bound kernel of some kind; width: of a bias."""

    kernel: str
    shape: Shape
    forward_bytes: float
    backward_bytes: float
    width: Count = 1


class Kernels(Spec):
    """Kernels to time, each once."""

    gemm: tuple[Gemm, ...] = ()
    attention: tuple[Attention, ...] = ()
    passes: tuple[Pass, ...] = ()

    def once(self) -> Kernels:
        """The kernels without repetitions, in order."""
        fields = ((name, getattr(self, name)) for name in Kernels.model_fields)
        return Kernels(**{name: tuple(dict.fromkeys(kernels)) for name, kernels in fields})


class Collective(Spec):
    """A collective; bytes: counted as in CollectiveTable."""

    op: Operation
    bytes: Count


class Job(Spec):
    """The measurements of one torchrun start.

    With one rank: kernels; small: the kernels of a layer so small that only host time counts, and
    small_words: the CONFIG entries of a script with such layers; large_words: the same for layers
    with weights that take time to move.  With several ranks: collectives, contention, crowding.
    """

    precision: str
    budget_s: Annotated[float, Field(gt=0, le=86_400)]
    kernels: Kernels = Kernels()
    small: Kernels = Kernels()
    small_words: dict[str, Any] = Field(default_factory=dict)
    large_words: dict[str, Any] = Field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    tensor_parallel: bool = False


class Measured(Spec):
    """The measurements of a worker; points: in the form of calibrations.Points."""

    points: dict[str, list[dict[str, Any]]]
    notes: tuple[str, ...]
    device: Literal["cpu", "cuda"]
