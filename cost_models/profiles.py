"""Efficiency profiles: the fraction of peak that kernels and links reach in practice.

A profile is one JSON file in `catalog/profiles/`, each block with its source: the measured
systems, a `generic` fallback (their medians), and short files that extend another one with what
is known of their own accelerator.  The files keep the units of the measurements (GFLOP buckets,
MB, microseconds); what is loaded from them is in bytes, FLOP and seconds.  A calibration
(calibrations.py) lays the points of one machine over one of them; its file may stand there too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cost_models.catalog.names import resolve
from cost_models.measured_tables import Measured

FloatArray = NDArray[np.float64]
ProfileKind = Literal["built in", "scaled", "fallback", "calibrated"]

FALLBACK = "generic"
_DIRECTORY = Path(__file__).parent / "catalog" / "profiles"


@dataclass(frozen=True, eq=False)
class Curve:
    """y over a strictly increasing x, both read-only float64 of shape (n,)."""

    x: FloatArray
    y: FloatArray

    def __post_init__(self) -> None:
        if self.x.ndim != 1 or self.x.shape != self.y.shape or not self.x.size:
            raise ValueError(f"a curve of {self.x.shape} points and {self.y.shape} values")
        if np.any(np.diff(self.x) <= 0):
            raise ValueError("the points of a curve must increase strictly")

    def moved(self, x: float) -> Curve:
        """The curve with every point moved by `x` to the right."""
        return Curve(_array(self.x + x), self.y)


@dataclass(frozen=True, eq=False)
class GemmEfficiency:
    """How fast a matrix multiplication of (m, k) by (k, n) runs: tiles in waves.

    A tile of C stays on one multiprocessor; tiles run in waves of as many as there are.
    """

    tile_fraction: float
    """Fraction of the dense peak inside a tile of 256 x 128."""
    small_tile_fraction: float
    """What of it a tile of half the size keeps."""
    tile_overhead_s: float
    """Filling and draining one tile of 256 x 128."""
    wave_share: float
    """How much of the last wave's idle multiprocessors is lost: 1 all of it, 0 nothing."""
    floor_s: float
    """Time of the shortest kernel, added to each."""
    memory_fraction: float
    """Fraction of the memory bandwidth that a memory-bound multiplication reaches."""
    multiprocessors: int


@dataclass(frozen=True, eq=False)
class AttentionEfficiency:
    """Fraction of the dense peak; FLOPs counted as executed.

    Forward is 4 b h s^2 d FLOP, half of it when causal; backward is 2.5 times forward.
    """

    seq_length: FloatArray
    """(S,) ascending."""
    head_dim: FloatArray
    """(D,) ascending."""
    fraction: FloatArray
    """(D, S)."""


@dataclass(frozen=True, eq=False)
class CollectiveTable:
    """Measured time of a collective inside the fastest domain.

    Bytes as in nccl-tests: the full buffer of an all-reduce, the gathered output of an
    all-gather, the full input of a reduce-scatter, the send buffer of one rank of an all-to-all.
    """

    ranks: FloatArray
    """(R,) ascending."""
    bytes: FloatArray
    """(B,) ascending."""
    seconds: FloatArray
    """(R, B), never decreasing with the bytes."""


@dataclass(frozen=True, eq=False)
class EfficiencyProfile:
    """Everything measured (or inferred, see `notes`) about one kind of accelerator."""

    id: str
    name: str
    source: str
    kind: ProfileKind
    gemm: dict[str, GemmEfficiency]
    """By precision: 'bf16', 'fp16', 'fp8', 'fp4', 'fp32'."""
    attention: dict[tuple[str, str, bool], AttentionEfficiency]
    """By (kernel, pass, causal): ('flash' | 'unfused', 'forward' | 'backward', bool)."""
    family: str
    """Generation, such as 'ampere', 'hopper', 'tpu'; 'other' of parts without a profile."""
    steady: str | float
    """Steady over single-kernel matrix rate, or whose fitted one it has (fitted.py): its own, where
    runs tell it, else its family's."""
    grouped_gemm: tuple[float, float, float]
    """Rate of grouped GEMMs over one of equal tiles: forward, input gradient, weight gradient."""
    attention_tile_rows: int
    """Queries one multiprocessor takes at a time."""
    memory: Curve
    """x = log2(bytes moved), y = fraction of the memory bandwidth."""
    memory_floor_s: float
    """Time of the shortest memory-bound kernel."""
    collectives: dict[str, CollectiveTable]
    """Inside the fastest domain: 'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all',
    'send_recv'; empty or partial where not measured."""
    collective_link_bytes_per_s: float | None
    """Link bandwidth per direction of the machine that `collectives` was measured on; None
    without tables."""
    network_fraction: float
    """Fraction of the NIC bandwidth that ring collectives reach across nodes."""
    all_to_all_fraction: float
    """The same for all-to-all."""
    p2p_fraction: float
    """The same for one send and receive."""
    domain_fraction: float
    """Fraction of the link bandwidth that large ring collectives reach inside the domain; for
    what `collectives` lacks."""
    notes: tuple[str, ...]
    """What is inferred or assumed rather than measured."""
    measured: Measured | None = None
    """What a calibration measured on one machine; it goes before all of the above."""
    measured_terms: tuple[str, ...] = ()
    """Names of what it measured."""
    extends: str = ""
    """The profile that has the rest."""


class Accelerator(Protocol):
    """The parts of an AcceleratorSpec that choose and scale a profile."""

    @property
    def efficiency_profile(self) -> str: ...
    @property
    def memory_bytes_per_s(self) -> float: ...
    @property
    def large_gemm_fraction(self) -> float | None: ...


@cache
def profiles() -> tuple[str, ...]:
    """The ids of all built-in profiles, sorted."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.json")))


@lru_cache(maxsize=256)
def profile(name: str) -> EfficiencyProfile:
    """The profile with that id, as measured.  Raises UnknownName."""
    document = _document(name)
    if "points" not in document:
        return read(document)
    from cost_models.calibrations import Calibration, over_base  # which needs pydantic

    return over_base(Calibration.model_validate_json(json.dumps(document)))


def profile_for(accelerator: Accelerator) -> EfficiencyProfile:
    """The profile that an accelerator names, the generic one if it names none.

    A generic curve is moved to the accelerator's own bandwidth: a kernel that would ideally take
    equally long reaches an equal fraction.  Large matrix products are as fast as was measured on
    the accelerator itself; smaller ones follow.
    """
    return _profile_at(
        accelerator.efficiency_profile or FALLBACK,
        accelerator.memory_bytes_per_s,
        accelerator.large_gemm_fraction,
    )


@lru_cache(maxsize=256)  # accelerators may be the user's own numbers: no end of them
def _profile_at(
    name: str, bytes_per_s: float, large_gemm_fraction: float | None
) -> EfficiencyProfile:
    base, document = profile(name), _document(name)
    if "reference" in document:
        by_bytes = np.log2(bytes_per_s / document["reference"]["memory_bytes_per_s"])
        base = replace(base, memory=base.memory.moved(by_bytes))
    if large_gemm_fraction is None or base.measured is not None:
        return base
    scale = large_gemm_fraction / document["gemm"]["bf16"]["large_fraction"]
    gemm = {precision: _scaled(table, {"scale": scale}) for precision, table in base.gemm.items()}
    # A short loop that is slower than such products usually are (L4, T4) ran at the power limit:
    # its clock is the steady one.  The others lose to it what the profile's accelerator loses.
    return replace(base, gemm=gemm, steady=1.0 if scale < 1 else base.steady)


@lru_cache(maxsize=256)
def _document(name: str) -> dict[str, Any]:
    """The JSON of a profile, merged over the one that it extends."""
    name = resolve(name, {known: known for known in profiles()}, "efficiency profile")
    document = json.loads((_DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))
    # A calibration lays its points over the other profile.
    if "extends" not in document or "points" in document:
        return cast(dict[str, Any], document)
    base = _document(document.pop("extends"))
    merged = _overlaid(base, document)
    merged["notes"] = [*document["notes"], *(f"{base['id']}: {note}" for note in base["notes"])]
    return merged


def _overlaid(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` laid over `base`, block by block; null removes a block."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merged[key] = _overlaid(old, value)
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if value is not None}


def read(document: Mapping[str, Any]) -> EfficiencyProfile:
    """A profile from a complete document (one that extends no other).

    Raises ValueError or KeyError if the document is not a profile.
    """
    attention = document["attention"]
    memory = document["memory"]
    network = document["network"]
    collectives = document.get("collectives", {})
    gemm: dict[str, GemmEfficiency] = {}
    for precision, block in document["gemm"].items():
        like = block.get("like")
        gemm[precision] = _scaled(gemm[like], block) if like else _gemm(block)
    # Full fp32 was measured nowhere: the tiles of bf16, as fast in their own peak.
    gemm.setdefault("fp32", gemm["bf16"])
    return EfficiencyProfile(
        id=document["id"],
        name=document["name"],
        source=document["source"],
        kind=document["kind"],
        gemm=gemm,
        attention={
            (case["kernel"], case["pass"], case["causal"]): AttentionEfficiency(
                seq_length=_array(attention["seq_length"]),
                head_dim=_array(attention["head_dim"]),
                fraction=_array(np.asarray(case["fraction"]) * attention.get("scaled_to", 1.0)),
            )
            for case in attention["cases"]
        },
        family=document["sustained"]["family"],
        steady=_steady(document["sustained"]),
        grouped_gemm=tuple(document["grouped_gemm"]["fraction"]),
        attention_tile_rows=attention["tile_rows"],
        memory=Curve(
            _array(np.log2(np.asarray(memory["megabytes"]) * 1e6)),
            # Single passes read from the L2 or only one stream: no more than a plain copy reaches.
            _array(np.minimum(memory["fraction"], memory["copy_fraction"])),
        ),
        memory_floor_s=memory["floor_us"] * 1e-6,
        collectives={
            name: _collective(table) for name, table in collectives.get("tables", {}).items()
        },
        collective_link_bytes_per_s=collectives.get("link_bytes_per_s"),
        network_fraction=network["network_fraction"],
        all_to_all_fraction=network["all_to_all_fraction"],
        p2p_fraction=network["p2p_fraction"],
        domain_fraction=document["domain"]["fraction"],
        notes=tuple(document["notes"]),
    )


def _steady(block: Mapping[str, Any]) -> str | float:
    """A published fraction, else whose fitted one."""
    named: str | float = block.get("fraction", block.get("like", block["family"]))
    return named


def _gemm(block: Mapping[str, Any]) -> GemmEfficiency:
    """Where `scaled_to` is given, only the level of large operations is known, and scaled to."""
    large = block["large_fraction"]
    return GemmEfficiency(
        tile_fraction=block["tile_fraction"] * block.get("scaled_to", large) / large,
        small_tile_fraction=block["small_tile_fraction"],
        tile_overhead_s=block["tile_overhead_us"] * 1e-6,
        wave_share=block["wave_share"],
        floor_s=block["floor_us"] * 1e-6,
        memory_fraction=block["memory_fraction"],
        multiprocessors=block["multiprocessors"],
    )


def _scaled(like: GemmEfficiency, block: Mapping[str, Any]) -> GemmEfficiency:
    """The tiles of another precision, as fast in their own peak but for the scale."""
    return replace(like, tile_fraction=like.tile_fraction * block["scale"])


def _collective(table: Mapping[str, Any]) -> CollectiveTable:
    seconds = np.asarray(table["microseconds"], dtype=np.float64) * 1e-6
    return non_decreasing(table["ranks"], table["bytes"], seconds)


def non_decreasing(ranks: ArrayLike, sizes: ArrayLike, seconds: FloatArray) -> CollectiveTable:
    """Times that never decrease with size: a smaller message takes no longer than a larger one."""
    enough = np.minimum.accumulate(seconds[:, ::-1], axis=1)[:, ::-1]
    return CollectiveTable(_array(ranks), _array(sizes), _array(enough))


def _array(values: ArrayLike) -> FloatArray:
    """A read-only float64 copy."""
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array
