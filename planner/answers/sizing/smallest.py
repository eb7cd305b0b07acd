"""The fewest accelerators of a kind that a model trains on."""

from __future__ import annotations

from math import ceil

from cost_models.catalog import hardware
from planner.answers.sizing.answer import Row
from planner.answers.sizing.request import SizingRequest
from planner.answers.sizing.rows import cluster_of_kind, fits_on


def fewest_of_kind(request: SizingRequest, rows: list[Row], kind: str) -> int | None:
    """Bisect between the smallest size that fits and the largest below it that does not."""
    own = [row for row in rows if row.accelerator == kind]
    first = next((i for i, row in enumerate(own) if row.reason is None), None)
    if first is None:
        return None
    typical = hardware.accelerator_entry(kind).node.accelerators
    parts = [2**k for k in range(typical.bit_length()) if 2**k < typical]
    below = own[first - 1].accelerators if first else 0
    most = own[first].accelerators
    counts = [*parts, *range(typical, most, typical)]
    open_counts = [count for count in counts if below < count < most]
    low, high = 0, len(open_counts)
    while low < high:
        middle = (low + high) // 2
        nodes, per_node = ceil(open_counts[middle] / typical), min(open_counts[middle], typical)
        cluster = cluster_of_kind(kind, nodes, per_node, request.sizing)
        if fits_on(request, cluster):
            high = middle
            most = cluster.accelerators
        else:
            low = middle + 1
    return most
