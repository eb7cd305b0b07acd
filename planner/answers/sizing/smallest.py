"""The fewest accelerators of a kind that a model trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

from cost_models.catalog import hardware
from planner.answers.sizing.answer import Row
from planner.answers.sizing.request import SizingRequest
from planner.answers.sizing.rows import cluster_of_kind, fits_on

# Numbers that are tried between one that does not fit and twice as many.
STEPS = 16


def fewest_of_kind(request: SizingRequest, rows: list[Row], kind: str) -> int | None:
    """The fewest on which a plan fits: parts of a node or whole nodes, in steps of a doubling.

    Of nodes doubled until a plan fits, and of STEPS numbers from the last doubling on, the first
    that fits: whether a model can be split well hangs on the divisors of a number, so that more do
    not always fit where fewer do.  rows: what is known already; it does not change the answer.
    """
    known = {row.accelerators: row.reason is None for row in rows if row.accelerator == kind}
    most = min((count for count, fits in known.items() if fits), default=None)
    if most is None:
        return None
    typical = hardware.accelerator_entry(kind).node.accelerators

    def fits(count: int) -> bool:
        if count not in known:
            nodes, per_node = ceil(count / typical), min(count, typical)
            cluster = cluster_of_kind(kind, nodes, per_node, request.sizing)
            known[count] = fits_on(request, cluster)
        return known[count]

    below, most = _bracket(fits, list(_doublings(typical, most)), most)
    if below < typical:
        return most
    step = max(below // (STEPS * typical), 1) * typical
    return next((count for count in range(below + step, most, step) if fits(count)), most)


def _doublings(typical: int, most: int) -> Iterator[int]:
    """Parts of a node and nodes, each twice the one before, below a number."""
    parts = (2**k for k in range(typical.bit_length()) if 2**k < typical)
    yield from (count for count in parts if count < most)
    count = typical
    while count < most:
        yield count
        count *= 2


def _bracket(fits: Callable[[int], bool], counts: list[int], most: int) -> tuple[int, int]:
    """The last of these that does not fit, 0 where all do, and the least above it that does."""
    for count in reversed(counts):
        if not fits(count):
            return count, most
        most = count
    return 0, most
