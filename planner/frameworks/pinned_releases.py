"""Releases of libraries that a repository pins, whose defaults a launch has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Release = tuple[int, ...]
NAME = "requirements.txt"  # pins that are found stand among the files under this name
# Files with pins, from the one that says most of what was installed.
_FILES = ("requirements*.txt", "environment*.y*ml", "pyproject.toml", "setup.py", "uv.lock")
_LIBRARIES = ("trl",)
_PIN = re.compile(
    rf"^[^#\n]*?(?<![\w-])({'|'.join(_LIBRARIES)})[\"']?\s*(?:==|~=|<=?)\s*v?(\d+(?:\.\d+)*)",
    re.MULTILINE,
)
_MOST_BYTES = 1 << 18
_MOST_FILES = 16


def pinned(files: Mapping[str, str], library: str) -> Release | None:
    """The release of a library that one of the files pins; None if none does."""
    texts = (text for name, text in files.items() if name.rsplit("/", 1)[-1] == NAME)
    found = (match for text in texts for match in _PIN.finditer(text) if match[1] == library)
    return next((_release(match[2]) for match in found), None)


def pins_near(roots: Sequence[Path]) -> tuple[Path, str] | None:
    """The first file of these folders that pins a library, and its pins as lines of their own."""
    for path in _candidates(roots):
        try:
            text = path.read_text("utf-8") if path.stat().st_size <= _MOST_BYTES else ""
        except (OSError, UnicodeDecodeError):
            continue
        if pins := "".join(f"{one[1]}=={one[2]}\n" for one in _PIN.finditer(text)):
            return path, pins
    return None


def _candidates(roots: Sequence[Path]) -> Iterator[Path]:
    found = (path for root in roots for form in _FILES for path in sorted(root.glob(form)))
    for _, path in zip(range(_MOST_FILES), found, strict=False):
        yield path


def _release(text: str) -> Release:
    return tuple(int(part[:6]) for part in text.split(".")[:3])
