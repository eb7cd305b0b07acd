"""Methods of texts, lists and mappings whose values are worked out."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import Any

from planner.frameworks.python.expressions import MAX_ITEMS
from planner.frameworks.python.static_values import Call, Value

# Methods of texts that make no longer text.
_OF_TEXT = ("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "split",
            "rsplit", "title", "removeprefix", "removesuffix")  # fmt: skip


def joined_path(*parts: str) -> str:
    return posixpath.join(*parts)


def method(owner: str | dict[Any, Value] | list[Value], name: str, call: Call) -> Value:
    """The value of a call of a method; None where it is not worked out."""
    if isinstance(owner, dict):
        return _of_mapping(owner, name, call)
    if isinstance(owner, list):
        return list(owner) if name == "copy" else None
    if name == "join" and call.args and isinstance(call.args[0], list | tuple):
        return _joined(owner, call.args[0])
    if name not in _OF_TEXT or not all(isinstance(one, str | int) for one in call.args):
        return None
    try:
        return getattr(owner, name)(*call.args)
    except (TypeError, ValueError):
        return None


def of_iterables(name: str, call: Call) -> list[Value] | None:
    """The items that enumerate, zip and their like make of known lists; None for other calls."""
    args = [list(one) if isinstance(one, dict) else one for one in call.args]
    if name not in ("enumerate", "zip", "sorted", "reversed") or not args:
        return None
    lists = args[:1] if name == "enumerate" else args
    if not all(isinstance(one, list | tuple) and len(one) <= MAX_ITEMS for one in lists):
        return None
    first: list[Value] = list(args[0])
    if name == "zip":
        return list(zip(*args, strict=False))
    if name == "reversed":
        return first[::-1]
    if name == "sorted":
        return sorted(first) if all(isinstance(one, str) for one in first) else first
    start = next((one for one in (*args[1:], *call.kwargs.values()) if isinstance(one, int)), 0)
    return list(enumerate(first, start))


def _joined(owner: str, parts: Sequence[Value]) -> Value:
    if not all(isinstance(one, str) for one in parts):
        return None
    whole = sum(len(one) + len(owner) for one in parts)
    return owner.join(parts) if whole < MAX_ITEMS else None


def _of_mapping(owner: dict[Any, Value], name: str, call: Call) -> Value:
    key, usual = (*call.args, None, None)[:2]
    if name in ("get", "pop", "setdefault") and isinstance(key, str | int):
        return owner.get(key, usual)
    if name == "update":
        for one in (*call.args, call.kwargs):
            owner.update(one if isinstance(one, dict) else {})
        return owner
    views: dict[str, Callable[[], Value]] = {
        "items": lambda: [tuple(one) for one in owner.items()],
        "keys": lambda: list(owner),
        "values": lambda: list(owner.values()),
        "copy": lambda: dict(owner),
    }
    return views[name]() if name in views else None
