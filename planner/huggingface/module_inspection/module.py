"""A module of a model as named matrices and other parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Matrix:
    """A weight that tokens are multiplied with."""

    name: str
    inputs: int
    outputs: int
    bias: int = 0


@dataclass
class Module:
    """A module's parameters by path; taken: those that a block accounts for.

    A name is the path inside the module, without a trailing `.weight`.
    """

    source: nn.Module
    taken: set[str] = field(default_factory=set)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter; embedding tables, which no GEMM reads, are flattened."""
        tables = {
            f"{name}.weight".lstrip(".")
            for name, part in self.source.named_modules()
            if isinstance(part, nn.Embedding)
        }
        return {
            name: (p.numel(),) if name in tables else tuple(p.shape)
            for name, p in self.source.named_parameters()
        }

    @cached_property
    def matrices(self) -> dict[str, Matrix]:
        """Two-dimensional weights of linear layers, in either storage order."""
        found = {}
        for name, part in self.source.named_modules():
            weight = getattr(part, "weight", None)
            if weight is None or weight.dim() != 2 or isinstance(part, nn.Embedding):
                continue
            rows, columns = weight.shape
            # GPT-2's Conv1D stores the transpose.
            outputs, inputs = (
                (columns, rows) if type(part).__name__ == "Conv1D" else (rows, columns)
            )
            bias = getattr(part, "bias", None)
            found[name] = Matrix(
                name, inputs, outputs, bias=0 if bias is None else int(bias.numel())
            )
        return found

    def find(self, *endings: str) -> str | None:
        """The first parameter, or module with a weight, whose path ends with one of the names."""
        names = [name.removesuffix(".weight") for name in self.shapes]
        for ending in endings:
            for name in names:
                if name == ending or name.endswith("." + ending):
                    return name
        return None

    def matrix(self, *endings: str) -> Matrix | None:
        """The first matrix with one of the names; marks it and its bias as taken."""
        for ending in endings:
            for name, matrix in self.matrices.items():
                if name == ending or name.endswith("." + ending):
                    self.take(name)
                    return matrix
        return None

    def take(self, *names: str) -> None:
        """Mark parameters, or a module's weight and bias, as taken."""
        every = {f"{name}{end}" for name in names for end in ("", ".weight", ".bias")}
        self.taken |= every & self.shapes.keys()

    def size(self, *endings: str) -> int | None:
        """Elements of the first parameter with one of the names, now taken; None: not found."""
        name = self.find(*endings)
        if name is None:
            return None
        shape = self.shapes.get(name) or self.shapes[f"{name}.weight"]
        self.take(name)
        return elements(shape)

    def left(self) -> dict[str, tuple[int, ...]]:
        """The parameters that are not taken."""
        return {name: shape for name, shape in self.shapes.items() if name not in self.taken}

    def attribute(self, *names: str) -> Any:
        """The first integer attribute with one of the names, of the module or a submodule."""
        for part in self.source.modules():
            for name in names:
                value = getattr(part, name, None)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return None

    @property
    def total(self) -> int:
        return sum(map(elements, self.shapes.values()))


def elements(shape: Iterable[int]) -> int:
    """The product of the dimensions."""
    count = 1
    for size in shape:
        count *= size
    return count


def lists_of_layers(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """Every ModuleList that may hold layers: it has parameters and is in no other such list."""
    inside: list[str] = []
    for name, part in model.named_modules():
        if not isinstance(part, nn.ModuleList) or any(name.startswith(p + ".") for p in inside):
            continue
        if len(part) and any(True for _ in part.parameters()):
            inside.append(name)
            yield name, part
