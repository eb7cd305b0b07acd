"""A part of an answer: the fields that a caller names."""

from __future__ import annotations

from typing import Any

from planner.documents.problems import RequestError, unknown_field

Fields = tuple[str, ...]


def selected(document: Any, fields: Fields) -> Any:
    """The document reduced to these fields; all of it where none is named.

    `.` leads to a part, through a list to that part of each entry.  Raises RequestError where
    there is no such field.
    """
    whole = frozenset(fields)
    tree: dict[str, Any] = {}
    for field in fields:
        names, part = field.split("."), tree
        if whole.isdisjoint(".".join(names[:k]) for k in range(1, len(names))):
            for name in names:
                part = part.setdefault(name, {})
    return _part(document, tree, "")


def _part(value: Any, tree: dict[str, Any], at: str) -> Any:
    if not tree or value is None:
        return value
    if isinstance(value, list):
        return [_part(item, tree, at) for item in value]
    known = value if isinstance(value, dict) else {}
    if unknown := [name for name in tree if name not in known]:
        raise RequestError(unknown_field(f"/fields{at}", name, known) for name in unknown)
    return {name: _part(value[name], below, f"{at}/{name}") for name, below in tree.items()}
