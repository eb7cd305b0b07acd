"""Ids of answers: the same question to the same version has the same id."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from planner.version import __version__


def answer_id(kind: str, question: Mapping[str, Any] | Sequence[Any]) -> str:
    """The id of the answer to a resolved question, such as pl_3f2a...; kind: its first letters."""
    content = json.dumps([__version__, question], sort_keys=True, separators=(",", ":"))
    return f"{kind}_{hashlib.sha256(content.encode()).hexdigest()[:32]}"


def packed(request: Mapping[str, Any]) -> str:
    """A request as the page has it in its address: canonical JSON, deflated, base64url."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = squeeze.compress(text.encode()) + squeeze.flush()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
