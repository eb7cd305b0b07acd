"""Help in which long names go on in the next line instead of being cut."""

from __future__ import annotations


def fold_names() -> None:
    """Have typer's tables of options fold what is too long for a column."""
    from rich.text import Text
    from typer import rich_utils

    for name in ("highlighter", "negative_highlighter"):
        kind = type(getattr(rich_utils, name))

        class Folding(kind):  # type: ignore[misc,valid-type]
            def __call__(self, text: str | Text) -> Text:
                folded: Text = super().__call__(text)
                folded.overflow = "fold"
                return folded

        setattr(rich_utils, name, Folding())
