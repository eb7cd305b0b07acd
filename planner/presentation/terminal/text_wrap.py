"""Line wrapping that keeps pieces of text whole and indents the lines after the first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.text import Text

# A number belongs to the degree before it, or to the word behind it: its unit, what it counts.
_WORDS = re.compile(r"(?:[tcpdve]+p|stage|zero_stage) \d\S*|[^\s\d]*\d\S* \S+|\S+", re.I)


class Flow:
    """Pieces on as few lines as they take, a separator between them."""

    def __init__(
        self,
        pieces: Iterable[str | Text],
        separator: str = " · ",
        indent: int = 0,
        style: str = "",
        head: str = "",
    ) -> None:
        """head: what the first piece, a plain text, begins with."""
        pieces = list(pieces)
        if head and pieces:
            pieces[0] = f"{head}{pieces[0]}"
        self.pieces = [Text(piece, style) if isinstance(piece, str) else piece for piece in pieces]
        self.separator, self.indent = separator, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        line, started = Text(), False
        separator = self.separator.rstrip()
        for i, piece in enumerate(self.pieces):
            last = i == len(self.pieces) - 1
            needed = piece.cell_len + (0 if last else len(separator))
            if started and line.cell_len + len(self.separator) + needed > options.max_width:
                yield line.append(separator)
                line, started = Text(" " * self.indent), False
            if started:
                line.append(self.separator)
            line.append_text(piece)
            started = True
        yield line

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max((piece.cell_len for piece in self.pieces), default=0) + self.indent
        width = sum(piece.cell_len + len(self.separator) for piece in self.pieces)
        return Measurement(longest, max(longest, width)).with_maximum(options.max_width)


def prose(text: str, indent: int = 2, hanging: int = 0) -> Flow:
    """A sentence, indented; `hanging`: further, where it goes on."""
    words = _WORDS.findall(text)
    return Flow(words, " ", indent + hanging, head=" " * indent)


def notes(title: str, lines: Iterable[str], hanging: int = 2) -> list[RenderableType]:
    """A blank line, a title and a sentence for each line; nothing where there is none."""
    rows = [prose(line, hanging=hanging) for line in lines]
    return [Text(), Text(title, "bold"), *rows] if rows else []
