"""Weights as the matrices that Adafactor factors and Muon makes orthogonal.

Tensors are those of torch's models.  Megatron-Core has both input matrices of a gated MLP in one,
of which Newton-Schulz costs up to 8 % less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cost_models.arrays import maximum, minimum
from cost_models.blocks.records import Weight
from cost_models.sources import Array, formula


@dataclass(frozen=True)
class Matrix:
    """`count` equal matrices of one rank."""

    rows: Array
    columns: Array
    count: Array
    expert: bool

    @property
    def elements(self) -> Array:
        """The number of elements of one of them."""
        return self.rows * self.columns


def matrices(weights: Iterable[Weight], hidden_size: int, tables: bool) -> Iterator[Matrix]:
    """The matrices among some weights; tables: whether to include embedding tables."""
    for weight in weights:
        if not weight.matrix and not (tables and weight.side):
            continue
        side = weight.side or float(hidden_size)
        rows = weight.elements / weight.copies / side
        if weight.parts:
            total = sum(weight.parts)
            for part in weight.parts:
                yield Matrix(rows * part / total, side, weight.copies, weight.expert)
        else:
            count = weight.copies * weight.tensors
            yield Matrix(rows / weight.tensors, side, count, weight.expert)


@formula("1", "torch")
def factors(rows: Array, columns: Array) -> Array:
    """Numbers that Adafactor stores for a matrix: the means of its rows and of its columns."""
    return rows + columns


def newton_schulz_products(rows: Array, columns: Array) -> tuple[tuple[Array, Array, Array], ...]:
    """(m, n, k) of the products of one step, with the shorter side of X first: A = X X',
    B = b A + c A A, X = a X + B X.
    """
    m, n = minimum(rows, columns), maximum(rows, columns)
    return (m, m, n), (m, m, m), (m, n, m)
