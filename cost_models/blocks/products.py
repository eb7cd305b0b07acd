"""Matrix products and parameters of a module that no other block describes.

FLOP and parameters are exact; all operators between the products are priced as one pass over their
outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from cost_models.blocks.base import Sublayer
from cost_models.blocks.records import Gemm, MemoryBoundKernel, Record, SavedTensor, Split, Weight
from cost_models.fields import Spec, Width

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


class Product(Spec):
    """`times` matrices of inputs x outputs that every token is multiplied with."""

    inputs: Width
    outputs: Width
    times: Annotated[int, Field(ge=1, le=100_000)] = 1

    @property
    def elements(self) -> float:
        return float(self.inputs * self.outputs * self.times)


class Products(Sublayer):
    """Replicated on every tensor-parallel rank, which works on its part of the sequence.

    parameters: those in addition to the products' own.
    """

    sources: ClassVar[tuple[str, ...]] = ("derived",)
    gathers: ClassVar[bool] = False
    norms: ClassVar[float | None] = 0.0
    kind: Literal["products"] = "products"
    products: tuple[Product, ...] = Field((), max_length=1000)
    parameters: Annotated[int, Field(ge=0, le=10**13)] = 0

    @property
    def label(self) -> str:
        return f"{len(self.products)} products" if self.products else ""

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        elements = sum(product.elements for product in self.products)
        if elements:
            yield Weight("products", elements, matrix=True, tensors=len(self.products))
        if self.parameters:
            yield Weight("other parameters", float(self.parameters))

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        outputs = 0.0
        for product in self.products:
            yield Gemm(
                "product", d.sharded_tokens, float(product.outputs), float(product.inputs),
                groups=float(product.times),
            )  # fmt: skip
            outputs += float(product.outputs * product.times)
        moved = d.sharded_tokens * outputs
        if self.products:
            yield MemoryBoundKernel("product outputs", 4.0 * moved, 6.0 * moved)
            yield SavedTensor("product outputs", moved, d.activation_bytes)
