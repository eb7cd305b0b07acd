"""A part of an answer as it is sent: the fields that a call names."""

from __future__ import annotations

import json

from planner.documents.field_selection import Fields, selected


def chosen(content: bytes, fields: Fields) -> bytes:
    """The JSON document reduced to these fields; all of it, as it stands, where none is named."""
    if not fields:
        return content
    return json.dumps(selected(json.loads(content), fields), separators=(",", ":")).encode()
