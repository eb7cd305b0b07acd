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
_NAMED = "|".join(_LIBRARIES)
_PIN = re.compile(
    rf"^[^#\n]*?(?<![\w-])({_NAMED})(?:\[[^\]\n]*\])?[\"']?[ \t]*(?:>=?[ \t]*[\d.]+[ \t]*,[ \t]*)?"
    r"(==|~=|<=?|=)[ \t]*[\"']?[\^~]?v?(\d{1,6}(?:\.\d{1,6})*)",
    re.MULTILINE,
)
_LOCKED = re.compile(
    rf'^name = "({_NAMED})"\n(version) = "(\d{{1,6}}(?:\.\d{{1,6}})*)', re.MULTILINE
)
_BELOW = 999_999  # the last part of any release before another
_MOST_BYTES = 1 << 18
_MOST_FILES = 16


def pinned(files: Mapping[str, str], library: str) -> Release | None:
    """The release of a library that one of the files pins; None if none does."""
    texts = (text for name, text in files.items() if name.rsplit("/", 1)[-1] == NAME)
    found = (pin for text in texts for pin in _pins(text) if pin[0] == library)
    return next((release for _, release in found), None)


def pins_near(roots: Sequence[Path]) -> tuple[Path, str] | None:
    """The first file of these folders that pins a library, and its pins as lines of their own."""
    for path in _candidates(roots):
        try:
            text = path.read_text("utf-8") if path.stat().st_size <= _MOST_BYTES else ""
        except (OSError, UnicodeDecodeError):
            continue
        if pins := list(_pins(text)):
            lines = (f"{name}=={'.'.join(map(str, release))}\n" for name, release in pins)
            return path, "".join(lines)
    return None


def _pins(text: str) -> Iterator[tuple[str, Release]]:
    """The libraries that a text pins, with the newest release that it allows."""
    for one in (*_PIN.finditer(text), *_LOCKED.finditer(text)):
        release = tuple(map(int, one[3].split(".")[:3]))
        yield one[1], _before(release) if one[2] == "<" else release


def _before(release: Release) -> Release:
    """A release that is older than this one, and newer than all others before it."""
    last = next((i for i in reversed(range(len(release))) if release[i]), 0)
    return (*release[:last], max(release[last] - 1, 0), _BELOW)


def _candidates(roots: Sequence[Path]) -> Iterator[Path]:
    found = (path for root in roots for form in _FILES for path in sorted(root.glob(form)))
    for _, path in zip(range(_MOST_FILES), found, strict=False):
        yield path
