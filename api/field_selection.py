"""A part of an answer: the fields that a call names."""

from __future__ import annotations

import json
from typing import Any

from planner.documents.problems import RequestError, unknown_field

Fields = tuple[str, ...]


def chosen(content: bytes, fields: Fields) -> bytes:
    """These fields of a JSON document; all of it where none is named.

    `.` leads to a part, through a list to that part of each entry.  Raises RequestError where
    there is no such field.
    """
    if not fields:
        return content
    given = frozenset(fields)
    wanted: dict[str, Any] = {}
    for field in fields:
        names, part = field.split("."), wanted
        if given.isdisjoint(".".join(names[:k]) for k in range(1, len(names))):
            for name in names:
                part = part.setdefault(name, {})
    return json.dumps(_part(json.loads(content), wanted, ""), separators=(",", ":")).encode()


def _part(value: Any, wanted: dict[str, Any], at: str) -> Any:
    if not wanted or value is None:
        return value
    if isinstance(value, list):
        return [_part(item, wanted, at) for item in value]
    known = value if isinstance(value, dict) else {}
    if unknown := [name for name in wanted if name not in known]:
        raise RequestError(unknown_field(f"/fields{at}", name, known) for name in unknown)
    return {name: _part(value[name], below, f"{at}/{name}") for name, below in wanted.items()}
