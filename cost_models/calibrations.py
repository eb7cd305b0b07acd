"""Calibrations: the measured points of one machine, and the profile that follows from them.

`planner calibrate` writes them: the points with their spread, over a built-in profile whose other
terms still hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from cost_models.fields import Spec
from cost_models.measured_tables import Measured, RateGrid, linear_through
from cost_models.profiles import (
    CollectiveTable,
    EfficiencyProfile,
    non_decreasing,
    profile,
)

K = TypeVar("K")
Direction = Literal["forward", "backward"]
Size = Annotated[float, Field(gt=0, le=1e18)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
Word = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 _-]{0,39}$")]
Text = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
PROFILE_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
MAX_POINTS = 20_000
ACCELERATOR = "accelerator"  # whose id stands under it in the hardware of a calibration


class Point(Spec):
    """One measurement: the median of `repeats` runs, with the range that holds 80 % of them."""

    seconds: Seconds
    low_s: Seconds
    high_s: Seconds
    repeats: Annotated[int, Field(ge=1, le=1_000_000)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low_s <= self.seconds <= self.high_s:
            raise ValueError("a median lies between low_s and high_s")
        return self


class GemmPoint(Point):
    """y[m,n] = x[m,k] w[n,k]^T, or one of its two gradients, in the layouts of a linear layer."""

    precision: Word
    product: Literal["forward", "input_gradient", "weight_gradient"]
    m: Size
    n: Size
    k: Size


class AttentionPoint(Point):
    """Causal attention of a whole micro-batch; flop: executed, of this direction."""

    precision: Word
    direction: Direction
    head_dim: Size
    seq_length: Size
    flop: Size


class PassPoint(Point):
    """A memory-bound kernel by name; bytes: as the cost model counts them for that size."""

    precision: Word
    kernel: Word
    direction: Direction
    bytes: Size


class CollectivePoint(Point):
    """A collective or message; bytes: by the convention of CollectiveTable."""

    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    ranks: Annotated[int, Field(ge=2, le=1_000_000)]
    bytes: Size


class HostPoint(Point):
    """The time of a layer in addition to its kernels and collectives; seconds of the direction.

    layer: modules, views and autograd; tensor_parallel and sequence_parallel: what DTensor adds.
    """

    runtime: Literal["layer", "tensor_parallel", "sequence_parallel"]
    direction: Direction


class WrapperPoint(Point):
    """The time that the data-parallel wrapper adds to a block with these parameters, on one rank.

    forward: unsharding; backward: hooks and accumulation; reduce: copies of the reduction.
    """

    wrapper: Literal["replicate", "fully_shard"]
    direction: Literal["forward", "backward", "reduce"]
    parameters: Size


class OptimizerPoint(Point):
    """Gradient norm, clipping, update and zeroing of these numbers of parameters and tensors."""

    parameters: Size
    tensors: Size


class CrowdingPoint(Point):
    """Seconds of kernels while `ranks` ranks of the node work; alone_s: with one rank."""

    kernel: Literal["gemm", "memory"]
    ranks: Annotated[int, Field(ge=2, le=1_000_000)]
    alone_s: Annotated[float, Field(gt=0, le=1e6)]


class ContentionPoint(Point):
    """Seconds that kernels lose while a collective of `collective_s` runs concurrently."""

    ranks: Annotated[int, Field(ge=2, le=1_000_000)]
    collective_s: Annotated[float, Field(gt=0, le=1e6)]


class Points(Spec):
    """All points of a calibration, by benchmark."""

    gemm: tuple[GemmPoint, ...] = Field((), max_length=MAX_POINTS)
    attention: tuple[AttentionPoint, ...] = Field((), max_length=MAX_POINTS)
    passes: tuple[PassPoint, ...] = Field((), max_length=MAX_POINTS)
    collectives: tuple[CollectivePoint, ...] = Field((), max_length=MAX_POINTS)
    host: tuple[HostPoint, ...] = Field((), max_length=100)
    wrapper: tuple[WrapperPoint, ...] = Field((), max_length=100)
    optimizer: tuple[OptimizerPoint, ...] = Field((), max_length=100)
    crowding: tuple[CrowdingPoint, ...] = Field((), max_length=100)
    contention: tuple[ContentionPoint, ...] = Field((), max_length=100)


_KERNELS = ("forward", "backward", "recompute")
# Measured term -> the parts of the step's time that it prices.
PARTS_OF_TERM: dict[str, tuple[str, ...]] = {
    "gemm": _KERNELS,
    "attention": _KERNELS,
    "passes": _KERNELS,
    "collectives": ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm"),
    "host": _KERNELS,
    "wrapper": ("dp_comm",),
    "optimizer": ("optimizer",),
    "crowding": (*_KERNELS, "dp_comm", "optimizer"),
    "contention": ("tp_comm", "cp_comm", "ep_comm", "dp_comm"),
}


class Calibration(Spec):
    """A profile file: everything measured on one machine, over a built-in profile.

    extends: the built-in profile whose other terms still hold.
    """

    schema_version: Literal[1] = 1
    id: Annotated[str, Field(pattern=PROFILE_NAME)]
    extends: Word
    measured_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    device: Literal["cpu", "cuda"]
    hardware: dict[Word, Text] = Field(max_length=32)
    software: dict[Word, Text] = Field(max_length=32)
    notes: tuple[Text, ...] = Field((), max_length=32)
    points: Points


def over_base(calibration: Calibration) -> EfficiencyProfile:
    """A calibration over the built-in profile that it extends.  Raises UnknownName."""
    base = profile(calibration.extends)
    tables = _measured_collectives(calibration.points.collectives)
    device = calibration.hardware.get("device", calibration.device)
    return replace(
        base,
        id=calibration.id,
        name=f"{calibration.id}, measured on {device}",
        source=f"planner calibrate, {calibration.measured_at}; other terms: {base.name}",
        kind="calibrated",
        collectives={**base.collectives, **tables},
        collective_link_bytes_per_s=None if tables else base.collective_link_bytes_per_s,
        extends=base.id,
        notes=(*calibration.notes, *(f"{base.id}: {note}" for note in base.notes)),
        measured=measured(calibration.points, calibration.device == "cpu"),
        measured_terms=tuple(
            name
            for name in type(calibration.points).model_fields
            if getattr(calibration.points, name)
        ),
    )


def _measured_collectives(points: Iterable[CollectivePoint]) -> dict[str, CollectiveTable]:
    """Tables over the bytes of all points of an operation, interpolated between them."""
    tables: dict[str, CollectiveTable] = {}
    ordered = sorted(points, key=lambda p: (p.ranks, p.bytes))
    for op in {p.op for p in ordered}:
        of_op = [p for p in ordered if p.op == op]
        ranks, sizes = sorted({p.ranks for p in of_op}), sorted({p.bytes for p in of_op})
        rows = []
        for count in ranks:
            row = [(math.log2(p.bytes), math.log2(p.seconds)) for p in of_op if p.ranks == count]
            x, y = zip(*row, strict=True)
            rows.append(np.exp2(np.interp(np.log2(sizes), x, y)))
        tables[op] = non_decreasing(ranks, sizes, np.array(rows))
    return tables


def _optimizer_s(points: Points) -> tuple[float, float]:
    """Seconds of an optimizer step per tensor, and per parameter."""
    sizes = [(o.parameters / o.tensors, o.seconds / o.tensors) for o in points.optimizer]
    per = linear_through(sizes)
    return per.fixed_s, per.per_unit_s


def measured(points: Points, synchronous: bool) -> Measured:
    """The tables of these points."""
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for w in points.wrapper:
        lines.setdefault((w.wrapper, w.direction), []).append((w.parameters, w.seconds))
    ratios: dict[str, list[tuple[int, float]]] = {}
    for c in points.crowding:
        ratios.setdefault(c.kernel, [(1, 1.0)]).append((c.ranks, c.seconds / c.alone_s))
    lost = [c.seconds / c.collective_s for c in points.contention]
    sent = [(p.bytes, p.seconds) for p in points.collectives if p.op == "send_recv"]
    return Measured(
        gemm=_grids(
            (
                (g.precision, g.product),
                (g.m, g.n, g.k),
                2.0 * g.m * g.n * g.k / _positive_seconds(g),
            )
            for g in points.gemm
        ),
        attention=_grids(
            ((a.precision, a.direction), (a.head_dim, a.seq_length), a.flop / _positive_seconds(a))
            for a in points.attention
        ),
        passes=_grids(
            ((p.precision, p.kernel, p.direction), (p.bytes,), p.bytes / _positive_seconds(p))
            for p in points.passes
        ),
        host={(h.runtime, h.direction): h.seconds for h in points.host},
        wrapper={key: linear_through(samples) for key, samples in lines.items()},
        optimizer=_optimizer_s(points) if points.optimizer else None,
        crowding={kernel: tuple(sorted(samples)) for kernel, samples in ratios.items()},
        contention=float(np.median(lost)) if lost else None,
        message=linear_through(sent) if sent else None,
        synchronous=synchronous,
    )


def _positive_seconds(point: Point) -> float:
    return max(point.seconds, 1e-9)


def _grids(measurements: Iterable[tuple[K, tuple[float, ...], float]]) -> dict[K, RateGrid]:
    """A grid per key of (key, sizes, rate)."""
    by: dict[K, list[tuple[tuple[float, ...], float]]] = {}
    for key, sizes, rate in measurements:
        by.setdefault(key, []).append((sizes, rate))
    return {k: RateGrid.of([s for s, _ in v], [r for _, r in v]) for k, v in by.items()}
