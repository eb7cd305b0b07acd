"""Numbers as people write them: 8k, 15T, 1_000, 8,192.  Values that are numbers stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

_NUMBER = re.compile(r"(\d{1,3}(?:[,_]\d{3})+|\d{1,15}(?:\.\d{1,15})?)\s?([kKmMbBgGtT]?)", re.ASCII)
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_BINARY = {"": 1, "k": 2**10, "m": 2**20}
# Lengths and batches: 8k tokens of a sequence are 8,192, whereas 15T tokens are 15e12.
LENGTHS = frozenset(
    {
        "seq_length", "global_batch_size", "encoder_tokens", "sample_lengths", "prompt_tokens",
        "response_tokens", "max_response_tokens", "max_position_embeddings", "sliding_window",
        "critical_batch_size", "lengths",
    }
)  # fmt: skip


def written_out(document: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """The document with such numbers written out in the fields of a spec that hold numbers."""
    numeric = _numeric(model)
    return {
        name: _value(name, item, numeric[name]) if name in numeric else item
        for name, item in document.items()
    }


def number(text: str, *, length: bool) -> float | None:
    """The number that a text with a suffix or separators stands for; None: it is none."""
    match = _NUMBER.fullmatch(text.strip())
    powers = _BINARY if length else _DECIMAL
    if match is None or match[2].lower() not in powers or text.strip().isdigit():
        return None
    value = float(re.sub("[,_]", "", match[1])) * powers[match[2].lower()]
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _value(name: str, item: Any, integral: bool) -> Any:
    """The number that a text stands for; integral: the field holds no fractions."""
    if isinstance(item, list | tuple):
        return type(item)(_value(name, element, integral) for element in item)
    parsed = number(item, length=name in LENGTHS) if isinstance(item, str) else None
    if parsed is None:
        return item
    return parsed if integral else float(parsed)


@cache
def _numeric(model: type[BaseModel]) -> dict[str, bool]:
    """The fields that hold numbers and no text; whether they are whole."""
    integral = {}
    for name, field in model.model_fields.items():
        kinds = {kind for kind in _leaves(field.annotation) if isinstance(kind, type)}
        if kinds & {int, float} and str not in kinds:
            integral[name] = float not in kinds
    return integral


def _leaves(annotation: Any) -> set[Any]:
    arguments = get_args(annotation)
    return {leaf for item in arguments for leaf in _leaves(item)} if arguments else {annotation}
