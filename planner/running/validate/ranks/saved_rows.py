"""Maps the tensors that autograd saves to rows of the estimate's table.

A saved tensor is identified by the module that saved it and the operator that created it
(`memory.SavedTensor`); the tables below give its row in `cost_models.activation_memory`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cost_models.fields import Spec
from cost_models.package_files import text


class Saved(Protocol):
    """The fields of memory.SavedTensor, so that this module need not import torch."""

    @property
    def module(self) -> str: ...
    @property
    def maker(self) -> str: ...
    @property
    def operator(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def bytes(self) -> int: ...


class SavedRow(Spec):
    """Saved tensors of one name and shape; bytes: of one of them."""

    name: str
    module: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    count: int


_ENCODER = re.compile(r"^encoders\.\d+\.?")
_BLOCK = re.compile(r"^(encoders\.\d+\.)?blocks\.\d+\.?")


def _patterns(file: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """The lines of a file: a pattern, a tab and the row; the first pattern that matches counts."""
    lines = (line.split("\t") for line in text(__package__ or "", file).splitlines())
    return tuple((re.compile(pattern), name) for pattern, name in lines)


# Patterns of "part:operator" (part of a layer or stage, operator that created the tensor).
_ROWS = _patterns("saved_rows.tsv")
# The same for blocks of layer patterns, tried first.  The text is "part that saved the tensor|part
# that created it operator dimensions", and " longer" for more tokens than others of that part have.
_MADE_ROWS = _patterns("saved_rows_of_patterns.tsv")
# Inputs of attention, in the order that its kernel and a checkpoint around it save them.
_INPUTS, _CHECKPOINTED = ("key", "query", "value"), ("query", "key", "value")
_MASK = ("", "masked_fill")
# Operators inside attention whose results it saves; its other saved tensors are inputs.
_RESULTS = re.compile(
    r"\S*(scaled_dot_product|softmax|dropout)|mul\.Tensor|empty_like|bernoulli|logaddexp|where"
)


def rows(saved: Iterable[Saved]) -> tuple[SavedRow, ...]:
    """The tensors that one forward pass saved; equal ones of different layers form one row."""
    counts: Counter[SavedRow] = Counter()
    for name, t in _named(tuple(saved)):
        row = SavedRow(
            name=name, module=_BLOCK.sub(r"\1blocks.*.", t.module).rstrip("."),
            operator=t.operator, shape=t.shape, dtype=t.dtype, bytes=t.bytes, count=1,
        )  # fmt: skip
        counts[row] += 1
    return tuple(row.model_copy(update={"count": count}) for row, count in counts.items())


def _part(tensor: Saved) -> str:
    """The module of a tensor inside its block, or where it stands outside of all."""
    return _BLOCK.sub("", tensor.module) or ("block" if _BLOCK.match(tensor.module) else "stage")


def _kept_for_the_core(part: str, tensor: Saved) -> str:
    """What attention reads besides its inputs; empty for other tensors."""
    if part == "attention.core" and tensor.maker.endswith("attention.indexer"):
        return "indexer choice"
    # A mask is created once, in the first step, for all layers.
    return "window mask" if part == "attention.core" and tensor.operator in _MASK else ""


@dataclass(frozen=True)
class _Modules:
    """What all saved tensors together say of their modules.

    exchanged: which exchange heads for tokens; inputs: how many each attention has; ran: which
    attention ran in this pass; tokens: the fewest of a module's tensors.
    """

    exchanged: set[str]
    inputs: Counter[str]
    ran: set[str]
    tokens: dict[str, int]

    @classmethod
    def of(cls, saved: tuple[Saved, ...]) -> _Modules:
        tokens: dict[str, int] = {}
        for t in saved:
            if len(t.shape) == 3:
                tokens[t.module] = min(t.shape[1], tokens.get(t.module, t.shape[1]))
        return cls(
            {s.module.removesuffix("output").rstrip(".") for s in saved if _joined(s)},
            Counter(s.module for s in saved if _is_input(s)),
            {s.module for s in saved if _RESULTS.match(s.operator)},
            tokens,
        )


def _named(saved: tuple[Saved, ...]) -> Iterator[tuple[str, Saved]]:
    dropped: Counter[str] = Counter()
    inputs: Counter[str] = Counter()
    modules = _Modules.of(saved)
    for tensor in saved:
        part = _part(tensor)
        if part == "block" and tensor.maker == tensor.module:
            dropped[tensor.module] += 1
            name = ("attention", "mlp")[dropped[tensor.module] > 1] + " dropout mask"
        elif known := _kept_for_the_core(part, tensor):
            name = known
        elif _is_input(tensor):
            order = _INPUTS if tensor.module in modules.ran else _CHECKPOINTED
            has_several = modules.inputs[tensor.module] > 1
            name = order[inputs[tensor.module] % 3] if has_several else "query"
            inputs[tensor.module] += 1
        elif part == "mlp" and not f"{tensor.maker}.".startswith(f"{tensor.module}."):
            name = "mlp norm output"  # the input of a recomputed MLP
        else:
            longer = len(tensor.shape) == 3 and tensor.shape[1] > modules.tokens[tensor.module]
            name = _made_row(part, tensor, longer) or _row(part, tensor)
        # If context parallelism exchanges heads for tokens, the projection's input is a new tensor.
        if name == "attention output" and part == "attention.core":
            name += " by heads" * (tensor.module.removesuffix(".core") in modules.exchanged)
        yield "encoder " * bool(_ENCODER.match(tensor.module)) + name, tensor


def _is_input(tensor: Saved) -> bool:
    """Whether a tensor is an input of attention."""
    made = _RESULTS.match(tensor.operator) or tensor.operator in _MASK
    made = (made and not tensor.maker.endswith("_norm")) or tensor.maker.endswith("indexer")
    return _BLOCK.sub("", tensor.module) == "attention.core" and not made


def _joined(tensor: Saved) -> bool:
    """Whether a tensor is attention's output with joined heads, for the projection or gate."""
    part = _BLOCK.sub("", tensor.module)
    made = _made_row(part, tensor)
    return (part == "attention.output" and not made) or made == "attention output"


def _made_row(part: str, tensor: Saved, longer: bool = False) -> str:
    maker = _BLOCK.sub("", tensor.maker)
    text = f"{part}|{maker} {tensor.operator} {len(tensor.shape)}{' longer' * longer}"
    return next((name for pattern, name in _MADE_ROWS if pattern.match(text)), "")


def _row(part: str, tensor: Saved) -> str:
    statistics = " stat" if tensor.shape and tensor.shape[-1] == 1 else ""
    text = f"{part}:{tensor.operator} {tensor.dtype} {len(tensor.shape)}{statistics}"
    for pattern, name in _ROWS:
        if match := pattern.match(text):
            return match.expand(name)
    return f"{part}: {tensor.operator}"
