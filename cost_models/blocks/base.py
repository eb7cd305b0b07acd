"""Base classes of blocks: each has weights, and records of one micro-batch in forward order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import SerializerFunctionWrapHandler, model_serializer

from cost_models.blocks.records import Cached, Record, Split, Weight
from cost_models.fields import Spec

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import ModelSpec, StackSpec


class Block(Spec):
    """A part of a layer; `sources` are the citation keys of its records.

    Blocks that compare equal count as one part, whichever layers they are in.
    """

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """The parameters of one rank."""

    @abstractmethod
    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Kernels, saved tensors, communication and host waits of one micro-batch on one rank."""


class End(Spec):
    """The part before the first layer or after the last one; part: its name in `frozen`."""

    sources: ClassVar[tuple[str, ...]]
    part: ClassVar[str]

    @abstractmethod
    def weights(self, model: ModelSpec, split: Split) -> Iterator[Weight]:
        """The parameters of one rank."""

    @abstractmethod
    def records(self, model: ModelSpec, d: Dims) -> Iterator[Record]:
        """Kernels, saved tensors, communication and host waits of one micro-batch on one rank."""


class Sublayer(Block):
    """A block between a norm and a residual; a layer has one, two or more of them.

    Each declares its `kind` as a literal, its name in documents.  norm: the name of the norm before
    it.  gathers: its input is gathered over tensor-parallel ranks (a router's is not).  module: the
    selective-recompute module that runs it again.  norms: how many it has; 0: neither norm nor
    residual; None: norms_per_layer / 2.
    """

    norm: ClassVar[str] = "mixer"
    norms: ClassVar[float | None] = None
    gathers: ClassVar[bool] = True
    module: ClassVar[str] = ""
    kind: str

    # With a return type, the JSON schema would describe a plain object without the fields.
    @model_serializer(mode="wrap")
    def _with_kind(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        """Writes `kind` even where defaults are left out: documents cannot be read without it."""
        return {"kind": self.kind, **write(self)}

    def cached(self, model: StackSpec, split: Split) -> Iterator[Cached]:
        """What one rank keeps of each sequence that it generates; nothing by default."""
        yield from ()

    def missing(self, model: StackSpec) -> str:
        """Why this block does not fit the model, such as a missing setting; empty if it fits."""
        return ""

    @property
    def label(self) -> str:
        """A short name that tells layers with this block apart from a model's other layers."""
        return self.kind.replace("_", " ")

    @property
    def title(self) -> str:
        """The label in full, for display without context."""
        return self.label


class Mixer(Sublayer):
    """A sublayer that mixes information between tokens."""


class FeedForward(Sublayer):
    """A sublayer that works on each token by itself."""

    norm: ClassVar[str] = "mlp"
