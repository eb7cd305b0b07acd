"""Placements of virtual stages: the route of a micro-batch over (rank, chunk)."""

from __future__ import annotations

from cost_models.schedules.base import Route


def loop(stages: int, chunks: int, micro_batch: int) -> Route:
    """Chunk after chunk over all ranks: virtual stage c p + r on rank r (SC'21, 2.2.2)."""
    return tuple((rank, chunk) for chunk in range(chunks) for rank in range(stages))


def wave(stages: int, chunks: int, micro_batch: int) -> Route:
    """Every second chunk runs back, so that each turn stays on one rank; two chunks: a V."""
    return tuple(
        (rank if chunk % 2 == 0 else stages - 1 - rank, chunk)
        for chunk in range(chunks)
        for rank in range(stages)
    )
