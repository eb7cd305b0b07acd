"""Which rows of `planner accuracy` belong together, on its screen and its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from planner.learning.accuracy.accuracy_answer import Ranking, Row

Groups = list[tuple[str, Ranking]]


def open_rows(rows: Iterable[Row]) -> list[Row]:
    """The rows with open inputs, those that are furthest off first."""
    listed = (row for row in rows if row.table == "open")
    return sorted(listed, key=lambda row: -abs(row.ln_ratio or 0.0))


def large_groups_and_pairs(groups: Mapping[str, Ranking]) -> tuple[Groups, Groups]:
    """(groups of three plans or more, the largest first; groups of two)."""
    ordered = sorted(groups.items(), key=lambda item: -item[1].n)
    return [g for g in ordered if g[1].n > 2], [g for g in ordered if g[1].n == 2]


def pairs_in_order(pairs: Sequence[tuple[str, Ranking]]) -> str:
    """How many pairs of plans are ranked as they were measured."""
    right = sum((group.kendall_tau or 0.0) > 0 for _, group in pairs)
    return f"{right:,} of {len(pairs):,} pairs of plans in the right order"


def hundredths(value: float) -> str:
    """A figure with two decimals."""
    return f"{value:.2f}"
