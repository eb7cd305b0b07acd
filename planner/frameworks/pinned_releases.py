"""Releases of libraries that a repository pins, whose defaults a launch has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Release = tuple[int, ...]
NAME = "requirements.txt"  # pins that are found stand among the files under this name
# Files with pins, from the one that says most of what was installed.
_FILES = ("requirements*.txt", "environment*.y*ml", "pyproject.toml", "setup.py", "uv.lock")
_LIBRARIES = ("trl",)
_NAMED = "|".join(_LIBRARIES)
# In a line: trl==1.2, trl[vllm]>=1,<2, trl=1.2 of conda, trl = "^1.2" of Poetry.
_PIN = re.compile(
    rf"(?<![\w-])({_NAMED})(?:\[[^\]]*\])?[\"']?[ \t]*(?:>=?[ \t]*[\d.]+[ \t]*,[ \t]*)?"
    r"(==|~=|<=?|=)[ \t]*[\"']?[\^~]?v?(\d{1,6}(?:\.\d{1,6})*)"
)
_LOCKED = re.compile(
    rf'^name = "({_NAMED})"\n(version) = "(\d{{1,6}}(?:\.\d{{1,6}})*)', re.MULTILINE
)
_BELOW = 999_999  # the last part of any release before another
_LONGEST = 500  # characters of a line
_MOST_BYTES = 1 << 18
_MOST_FILES = 16


class Pin(NamedTuple):
    """A library, the release to take its defaults from, and how the file names that."""

    library: str
    release: Release
    said: str


def pinned(files: Mapping[str, str], library: str) -> Pin | None:
    """The release of a library that one of the files pins; None if none does."""
    texts = (text for name, text in files.items() if name.rsplit("/", 1)[-1] == NAME)
    found = (pin for text in texts for pin in _pins(text) if pin.library == library)
    return next(found, None)


def pins_near(roots: Sequence[Path]) -> tuple[Path, str] | None:
    """The first file of these folders that pins a library, and its pins as lines of their own."""
    for path in _candidates(roots):
        try:
            text = path.read_text("utf-8") if path.stat().st_size <= _MOST_BYTES else ""
        except (OSError, UnicodeDecodeError):
            continue
        if lines := [
            f"{one[1]}{'<' if one[2] == '<' else '=='}{one[3]}\n" for one in _matches(text)
        ]:
            return path, "".join(lines)
    return None


def _matches(text: str) -> Iterator[re.Match[str]]:
    for line in text.splitlines():
        code = line[:_LONGEST].partition("#")[0]
        yield from filter(None, (_PIN.search(code),))
    yield from _LOCKED.finditer(text)


def _pins(text: str) -> Iterator[Pin]:
    """The libraries that a text pins: by the release that it names, or the last before that."""
    for one in _matches(text):
        release = tuple(map(int, one[3].split(".")[:3]))
        if one[2] == "<":
            yield Pin(one[1], _before(release), f"before {one[3]}")
        else:
            yield Pin(one[1], release, one[3])


def _before(release: Release) -> Release:
    """A release that is older than this one, and newer than all others before it."""
    last = next((i for i in reversed(range(len(release))) if release[i]), 0)
    return (*release[:last], max(release[last] - 1, 0), _BELOW)


def _candidates(roots: Sequence[Path]) -> Iterator[Path]:
    found = (path for root in roots for form in _FILES for path in sorted(root.glob(form)))
    for _, path in zip(range(_MOST_FILES), found, strict=False):
        yield path
