"""Text of scripts, with the line number of every position."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

_LONGEST_SOURCE = 80
_CLOSED_BY = {"$((": "))", "$(": ")", "${": "}", "`": "`"}


def short(source: str) -> str:
    """The source of a value, cut so that a script that holds it can be parsed."""
    if len(source) <= _LONGEST_SOURCE:
        return source
    begin = next((one for one in _CLOSED_BY if source.startswith(one)), "")
    inner = re.sub(r"[^\w ./-]", "", source[len(begin) : _LONGEST_SOURCE // 2])
    return f"{begin}{inner}...{_CLOSED_BY.get(begin, '')}"


class Source:
    """Text made of runs, with the line number of every position."""

    def __init__(self, runs: Iterable[tuple[str, int]], file: str) -> None:
        self.file = file
        parts, self.starts, self.lines, position = [], [0], [1], 0
        for text, line in runs:
            for piece in text.splitlines(keepends=True) if "\n" in text else [text]:
                parts.append(piece)
                self.starts.append(position)
                self.lines.append(line)
                position += len(piece)
        self.text = "".join(parts)
        self._same = (file, self.text, tuple(self.lines))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self._same == other._same

    def __hash__(self) -> int:
        return hash(self._same)

    def line(self, position: int) -> int:
        return self.lines[bisect_right(self.starts, position) - 1]

    def cut(self, start: int, end: int) -> Iterator[tuple[str, int]]:
        """The runs between two positions."""
        run = bisect_right(self.starts, start) - 1
        while start < end:
            stop = self.starts[run + 1] if run + 1 < len(self.starts) else end
            yield self.text[start : min(stop, end)], self.lines[run]
            start, run = stop, run + 1


def whole(text: str, file: str, first: int = 1) -> Source:
    """The text of a file, or of a part of it that begins on line `first`."""
    lines = text.split("\n")
    runs = [(f"{line}\n", number) for number, line in enumerate(lines, first)]
    return Source(runs, file)
