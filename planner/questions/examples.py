"""Examples of what is asked, of the file beside this one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


def examples(kind: str) -> dict[str, Any]:
    """The examples of one kind of document, by name."""
    return _examples()[kind]


@cache
def _examples() -> dict[str, dict[str, Any]]:
    import yaml

    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    documents: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return documents
