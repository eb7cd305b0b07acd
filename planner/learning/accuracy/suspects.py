"""Which assumption may be at fault: those of the rows that are off in their source."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from planner.learning.accuracy.accuracy_answer import Row

# An assumption of few rows is judged as if it had this many more of the average error.
_PRIOR_ROWS = 3
_NOTABLE = 0.01


@dataclass(frozen=True)
class Assumption:
    """What was assumed: its number in the listings, its rows, and how much further off they are."""

    number: int
    text: str
    rows: int
    excess_abs_ln: float

    @property
    def where(self) -> str:
        """How many rows assume it."""
        return f"{self.rows:,} row{'s' * (self.rows != 1)}"


def assumptions(rows: Sequence[Row]) -> dict[str, Assumption]:
    """Every assumption by its text, the most frequent first.

    excess_abs_ln: how much larger |ln| of its rows is than the mean of their source, on average,
    drawn to zero where the rows are few; what a whole source shares has none.  A hint where to
    look: assumptions that always go together cannot be told apart.
    """
    frequent = Counter(text for row in rows for text in row.assumptions)
    sizes: dict[str, list[float]] = defaultdict(list)
    excess: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.ln_ratio is not None:
            sizes[row.source_key].append(abs(row.ln_ratio))
    means = {source: sum(errors) / len(errors) for source, errors in sizes.items()}
    for row in rows:
        if row.ln_ratio is not None:
            for text in row.assumptions:
                excess[text].append(abs(row.ln_ratio) - means[row.source_key])
    ordered = sorted(frequent, key=lambda text: (-frequent[text], text))
    return {
        text: Assumption(
            number, text, frequent[text], sum(excess[text]) / (len(excess[text]) + _PRIOR_ROWS)
        )
        for number, text in enumerate(ordered, 1)
    }


def suspects(row: Row, assumptions: dict[str, Assumption], count: int = 2) -> list[Assumption]:
    """The assumptions of a row whose rows are clearly further off than others, worst first."""
    known = [
        assumptions[text] for text in row.assumptions if assumptions[text].excess_abs_ln > _NOTABLE
    ]
    return sorted(known, key=lambda assumption: -assumption.excess_abs_ln)[:count]


def worst(rows: Sequence[Row], count: int) -> list[Row]:
    """The scored rows that are furthest off."""
    scored = [row for row in rows if row.table == "scored"]
    return sorted(scored, key=lambda row: -abs(row.ln_ratio or 0.0))[:count]
