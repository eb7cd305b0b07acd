"""Addresses of the page in a chosen state, as its Share button writes them."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

# A question that is answered in a moment.
SMALL: dict[str, Any] = {
    "model": "gpt2",
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 1, "accelerators_per_node": 4},
    "training": {"seq_length": 1024, "global_batch_size": 64, "tokens": 1e10},
    "search": {"framework": "megatron"},
}
# Megatron-Bridge has a recipe for it.
OF_8B: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 16, "accelerators_per_node": 8},
    "training": {"seq_length": 8192, "global_batch_size": 512},
    "search": {"framework": "megatron"},
}
SIZING = {"accelerators": ["h100-sxm-80gb", "mi300x"], "sizes": [8, 16], "deadline_days": 60}


def link(**state: Any) -> str:
    """The page with this state; the small request unless there is another."""
    document = json.dumps({"request": SMALL, **state}, sort_keys=True).encode()
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = base64.urlsafe_b64encode(deflate.compress(document) + deflate.flush())
    return f"/#q={packed.decode().rstrip('=')}"


def unpacked(address: str) -> Any:
    """The state in an address of the page."""
    packed = address.partition("#q=")[2]
    padded = packed + "=" * (-len(packed) % 4)
    return json.loads(zlib.decompress(base64.urlsafe_b64decode(padded), wbits=-zlib.MAX_WBITS))
