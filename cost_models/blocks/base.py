"""What every block has: weights, and the records of one micro-batch in forward order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import SerializerFunctionWrapHandler, model_serializer

from cost_models.blocks.records import Record, Split, Weight
from cost_models.fields import Spec

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import ModelSpec, StackSpec


class Block(Spec):
    """A part of layers; `sources` are citation keys of what its records rest on.

    Blocks that compare equal are the same part, in whichever layer they stand.
    """

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """The parameters of one rank."""

    @abstractmethod
    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Kernels, saved tensors, communication and host waits of one micro-batch on one rank."""


class End(Spec):
    """What stands before the first layer, or after the last one; part: as `frozen` names it."""

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

    Each declares its `kind` as a literal, which names it in documents.  norm: the name of the norm
    before it.  gathers: its tensor-parallel ranks need each other's tokens (a router's do not).
    module: whose selective recompute runs it again.  norms: of it; None: as many as the model's.
    """

    norm: ClassVar[str] = "mixer"
    norms: ClassVar[float | None] = None
    gathers: ClassVar[bool] = True
    module: ClassVar[str] = ""
    kind: str

    # With a return type the JSON schema would be that of any object, not of the fields.
    @model_serializer(mode="wrap")
    def _with_kind(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        """The kind is written even where defaults are not: a document is not read without it."""
        return {"kind": self.kind, **write(self)}

    def missing(self, model: StackSpec) -> str:
        """What the model does not say and this block needs; empty where nothing is missing."""
        return ""

    @property
    def label(self) -> str:
        """What sets layers with this block apart from others of a model."""
        return self.kind.replace("_", " ")

    @property
    def title(self) -> str:
        """The label in full, for a person who sees it alone."""
        return self.label


class Mixer(Sublayer):
    """What mixes the tokens of a layer."""


class FeedForward(Sublayer):
    """What works on each token by itself."""

    norm: ClassVar[str] = "mlp"
