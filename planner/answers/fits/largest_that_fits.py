"""The last number of a range that still leaves room."""

from __future__ import annotations

from collections.abc import Callable

LENGTH_STEP = 256  # tokens of a sequence: lengths are tried in such steps


def largest_that_fits(spare: Callable[[int], float], low: int, high: int) -> int:
    """The last number of low to high that leaves something; low if none does.

    The larger a number, the less it leaves.  That is nearly a line, so a number is tried where the
    line through both ends is zero; every third time the middle, in case it is far from a line.
    """
    if high <= low or (missing := -spare(high)) <= 0.0:
        return max(low, high)
    left, tries = spare(low), 0
    while left >= 0.0 and high - low > 1:
        share = left / (left + missing) if (tries := tries + 1) % 3 else 0.5
        tried = min(max(low + int(share * (high - low)), low + 1), high - 1)
        found = spare(tried)
        if found >= 0.0:
            low, left = tried, found
        else:
            high, missing = tried, -found
    return low
