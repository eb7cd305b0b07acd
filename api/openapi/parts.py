"""Pieces of the OpenAPI document's schemas."""

from __future__ import annotations

from typing import Any

PREFIX = "#/components/schemas/"


def ref(name: str) -> dict[str, Any]:
    """What stands for a schema by its name."""
    return {"$ref": PREFIX + name}


def closed(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """An object without other properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }


def text(description: str) -> dict[str, Any]:
    """A string."""
    return {"type": "string", "description": description}
