"""Files beside a package's modules: tables as JSON, and templates of what a framework is given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def text(package: str, name: str) -> str:
    """The text of a file."""
    # importlib.resources takes longer to import than all of these files to read.
    folder = Path(import_module(package).__file__ or "").parent
    return (folder / name).read_text(encoding="utf-8")


@cache
def table(package: str, name: str) -> dict[str, Any]:
    """The object of a JSON file."""
    document: dict[str, Any] = json.loads(text(package, name))
    return document


def filled(template: str, values: Mapping[str, object]) -> str:
    """The template with the word of that name, in lower case, for each @NAME@."""
    return re.sub(r"@([A-Z][A-Z_]*)@", lambda mark: str(values[mark[1].lower()]), template)
