"""The OpenAPI description of a log that a site learns from."""

from __future__ import annotations

from typing import Any

from api.openapi.parts import closed, text


def request(posted: dict[str, Any]) -> dict[str, Any]:
    """What POST /v1/sites/{name}/runs takes, given the schema of a request."""
    properties = {name: posted["properties"][name] for name in ("model", "cluster")}
    texts = {
        "log": "the text of a training log, or a CSV with the columns of the accuracy table",
        "name": "name of the log; default: log",
        "script": "the launch script, for what the log leaves open",
    }
    settings = "values that log and script leave open, by path, such as plan.recompute"
    fields = {
        **{name: text(description) for name, description in texts.items()},
        **properties,
        "settings": {"type": "object", "description": settings},
        "keep": {"type": "boolean", "default": False},
    }
    return closed(fields, ["log", "cluster"])
