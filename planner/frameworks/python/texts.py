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


# What stands for a folder that only running knows: the names below it are known.
SOME_FOLDER = "${folder}"


def joined_path(*parts: str) -> str:
    return posixpath.join(*parts)


def method(owner: str | dict[Any, Value] | list[Value], name: str, call: Call) -> Value:
    """The value of a call of a method; None where it is not worked out."""
    if isinstance(owner, dict):
        return _of_mapping(owner, name, call)
    if isinstance(owner, list):
        return list(owner) if name == "copy" else None
    if name in ("open", "read_text"):  # of a path
        return Call("open", call.line, args=(owner,))
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
    if name not in ("enumerate", "zip", "sorted", "reversed") or not call.args:
        return None
    lists = call.args[:1] if name == "enumerate" else call.args
    if not all(isinstance(one, list | tuple | dict) and len(one) <= MAX_ITEMS for one in lists):
        return None
    first, *others = (list(one) for one in lists)
    if name == "zip":
        return list(zip(first, *others, strict=False))
    if name == "enumerate":
        start = next(iter((*call.args[1:], *call.kwargs.values())), 0)
        return list(enumerate(first, start if isinstance(start, int) else 0))
    if name == "reversed":
        return first[::-1]
    return sorted(first) if all(isinstance(one, str) for one in first) else first


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
