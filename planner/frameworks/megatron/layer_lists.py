"""Options of Megatron-LM with a digit for each layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from planner.frameworks.arguments import Arguments

_ITEM = re.compile(r"\[([\d,\s]*)\](?:\s*\*\s*(\d{1,5}))?")


def list_expression(digits: Sequence[int]) -> str:
    """One number per layer as the shorter list expression that Megatron-LM evaluates."""
    runs = ((digit, len(list(run))) for digit, run in groupby(digits))
    return min(
        "+".join(f"[{digit}]*{length}" for digit, length in runs),
        f"[{','.join(map(str, digits))}]",
        key=len,
    )


def listed(text: str, layers: int, counted: tuple[int, int] = (1, 0)) -> list[int]:
    """The 0 or 1 of each layer in an option's value, `N` or `([0]*1+[1]*2)*3`.

    counted: for `N`, the digits of layers whose number from 0 is a multiple of N, and of others.
    Raises ValueError if the value is no such list, or does not have one digit per layer.
    """
    plain = re.sub(r"\s", "", text)
    if re.fullmatch(r"\d{1,6}", plain):
        step = int(plain)
        if step < 1:
            raise ValueError("a period of at least 1 is needed")
        return [counted[bool(i % step)] for i in range(layers)]
    group = re.fullmatch(r"\((.*)\)(?:\*(\d{1,5}))?", plain)
    body, times = (group[1], int(group[2] or 1)) if group else (plain, 1)
    found: list[int] = []
    for part in body.split("+"):
        item = _ITEM.fullmatch(part)
        if item is None:
            raise ValueError("it is not a sum of lists")
        values = [int(value) for value in item[1].split(",") if value]
        found += values * min(int(item[2] or 1), layers + 1)
        if len(found) > layers:
            break
    found = (found * min(times, layers + 1))[: layers + 1]
    if len(found) != layers or not set(found) <= {0, 1}:
        raise ValueError(f"it does not give 0 or 1 for each of {layers} layers")
    return found


def _ends_of_periods(text: str, layers: int, last: int) -> list[int]:
    """As `listed`, but `N` gives the last of every N layers the digit `last`, unlike the rest."""
    if re.fullmatch(r"\s*\d{1,6}\s*", text):
        return listed(text, layers + 1, (last, 1 - last))[1:]
    return listed(text, layers)


def digits_of(args: Arguments, name: str, layers: int, last: int) -> list[int]:
    """An option's digit for each layer; empty if it is not given or refused."""
    text = args.text(name)
    if not text:
        return []
    try:
        return _ends_of_periods(text, layers, last)
    except ValueError as error:
        args.refuse(f"{name} {text[:100]}: {error}", name)
        return []
