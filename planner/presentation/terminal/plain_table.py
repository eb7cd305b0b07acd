"""A table without lines, as most screens have it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich.table import Table


def plain_table(
    headings: Iterable[str] = (),
    text_columns: Collection[str] = (),
    *,
    style: str = "bold",
    gap: int = 2,
    **column: Any,
) -> Table:
    """A table with these headings; text_columns: those aligned left; column: options of each."""
    table = Table(box=None, padding=(0, gap, 0, 0), header_style=style, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in text_columns else "right", **column)
    return table
