"""What torch.autocast adds around matrix products, and PEFT around adapters: casts.

autocast keeps the casts of weights, not those of activations: each product whose input is fp32
makes a half-precision copy of its own, which it saves for its weight gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cost_models.blocks.records import MemoryBoundKernel, Record, SavedTensor
from cost_models.sources import Array, formula

if TYPE_CHECKING:
    from cost_models.dims import Dims

# fp32 read and half precision written, or the other way round.
CAST_BYTES = 6.0
FP32_SUM_BYTES = 12.0


@formula("byte", "transformers", "gpu-day")
def gradient_cast_bytes(elements: Array, products: Array) -> Array:
    """Bytes that widen the gradient of each product's input, and sum those of several in fp32."""
    return (CAST_BYTES * products + FP32_SUM_BYTES * (products - 1.0)) * elements


def input_casts(d: Dims, name: str, width: float, products: float, module: str) -> Iterator[Record]:
    """The casts of a normed input `width` wide; the first copy is counted as the norm's output.

    torch.compile fuses them with the norm.
    """
    elements, active = d.tokens * width, d.autocast * d.eager
    if not np.any(active):
        return
    cast = CAST_BYTES * products * elements
    yield MemoryBoundKernel(
        f"{name} input casts", cast, gradient_cast_bytes(elements, products), module, active,
        widened_bytes=(0.0, cast),
    )  # fmt: skip
    more = (products - 1.0) * elements
    modules = (module,) if module else ()
    yield SavedTensor(f"{name} input casts", more, d.activation_bytes, modules, active)
