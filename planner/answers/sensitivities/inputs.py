"""The inputs of an answer: their places in a request, what they affect, and changed requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any, Literal

import numpy as np

from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan
from cost_models.profiles import Curve, EfficiencyProfile
from planner.answers.sensitivities.documents import Unit
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import cost_model

# What an input affects: only money; times, but not which plans are legal and fit; or everything.
Reach = Literal["money", "time", "all"]
Path = tuple[str | int, ...]

_LONGEST_NAME = 24  # characters of a tier's name
_PEAKS = ("bf16", "fp16", "fp8", "fp4", "fp32")


@dataclass(frozen=True)
class Input:
    """One number that the answer depends on.

    paths: its places in the request's document; empty if it is in the efficiency profile.
    slows: a larger value takes more time.  whole: an integer.  least, most: bounds of valid values.
    """

    name: str
    title: str
    unit: Unit
    value: float
    paths: tuple[Path, ...] = ()
    reach: Reach = "time"
    slows: bool = False
    whole: bool = False
    least: float = 0.0
    most: float = float("inf")

    def at(self, factor: float) -> float:
        """Its value times a factor."""
        return float(round(self.value * factor)) if self.whole else self.value * factor

    @property
    def pointers(self) -> tuple[str, ...]:
        return tuple("/" + "/".join(map(str, path)) for path in self.paths)


@dataclass(frozen=True)
class Variant:
    """A request with one input changed, and its cost model."""

    request: PlanRequest
    model: CostModel


def changed(request: PlanRequest, input_: Input, factor: float) -> Variant:
    """The request with an input multiplied.  Raises RequestError if the result is invalid."""
    if not input_.paths:
        usual = cost_model(request)
        profile = _SCALED[input_.name](usual.context.profile, factor)
        return Variant(request, cost_model(request, profile))
    document = request.document()
    for path in input_.paths:
        *way, last = path
        place: Any = document
        for step in way:
            place = place[step]
        value = place[last] * factor
        place[last] = round(value) if input_.whole else value
    again = parse_request(document)
    return Variant(again, cost_model(again))


def held_in(variant: Variant, plan: ParallelPlan) -> ParallelPlan:
    """A plan on the cluster of a variant, with dp adapted to its number of accelerators."""
    rest = plan.tp * plan.cp * plan.pp
    return plan.model_copy(update={"dp": max(1, variant.request.cluster.accelerators // rest)})


def _matrix(profile: EfficiencyProfile, factor: float) -> EfficiencyProfile:
    """The profile with the arithmetic of all matrix multiplications faster by a factor."""
    gemm = {
        name: replace(
            own,
            tile_fraction=own.tile_fraction * factor,
            tile_overhead_s=own.tile_overhead_s / factor,
        )
        for name, own in profile.gemm.items()
    }
    return replace(profile, gemm=gemm)


def _attention(profile: EfficiencyProfile, factor: float) -> EfficiencyProfile:
    attention = {
        key: replace(own, fraction=own.fraction * factor) for key, own in profile.attention.items()
    }
    return replace(profile, attention=attention)


def _memory(profile: EfficiencyProfile, factor: float) -> EfficiencyProfile:
    """The profile with all memory-bound work faster by a factor, matrix multiplications too."""
    gemm = {
        name: replace(own, memory_fraction=own.memory_fraction * factor)
        for name, own in profile.gemm.items()
    }
    curve = Curve(profile.memory.x, profile.memory.y * factor)
    return replace(profile, memory=curve, gemm=gemm)


_SCALED: dict[str, Callable[[EfficiencyProfile, float], EfficiencyProfile]] = {
    "matrix_efficiency": _matrix,
    "attention_efficiency": _attention,
    "memory_efficiency": _memory,
}


def inputs_of(request: PlanRequest) -> Iterator[Input | tuple[str, str]]:
    """The inputs of a request that may affect the answer; (name, reason) for those that cannot."""
    yield from _efficiencies(request)
    yield from _accelerator(request)
    yield from _tiers(request)
    yield from _batch(request)
    yield from _host(request)
    yield from _money(request)


def _efficiencies(request: PlanRequest) -> Iterator[Input]:
    machine = cost_model(request).context.machine
    profile = machine.profile
    used = [profile.gemm[name] for name in {request.training.precision, machine.wide}]
    fastest = max(gemm.tile_fraction for gemm in used)
    flash = max(float(np.max(own.fraction)) for own in profile.attention.values())
    copy = float(np.max(profile.memory.y))
    most = max(copy, *(gemm.memory_fraction for gemm in used))
    rows = (
        ("matrix_efficiency", "matrix efficiency", fastest, fastest),
        ("attention_efficiency", "attention efficiency", flash, flash),
        ("memory_efficiency", "memory-bound efficiency", copy, most),
    )
    for name, title, value, highest in rows:
        # No kernel runs above its peak.
        yield Input(name, title, "share", value, most=max(1.0, value) * value / highest)


def _accelerator(request: PlanRequest) -> Iterator[Input]:
    first = request.cluster.groups[0].accelerator
    places = _places(request, "accelerator")
    known = [f"peak_{name}_flop_per_s" for name in _PEAKS]
    peaks = tuple(
        (*path, name)
        for path, group in zip(places, request.cluster.groups, strict=True)
        for name in known
        if getattr(group.accelerator, name) is not None
    )
    peak = first.peak_flop_per_s(request.training.precision)
    assert peak is not None  # a request without it would have been refused
    yield Input("peak_flop_per_s", "peak FLOP/s", "FLOP/s", peak, peaks)
    yield _field("memory_bytes_per_s", "memory bandwidth", "bytes/s", first, places)
    yield _field("memory_bytes", "accelerator memory", "bytes", first, places, reach="all")


def _tiers(request: PlanRequest) -> Iterator[Input | tuple[str, str]]:
    """Bandwidth, latency, waits and oversubscription of each level of the network."""
    group, seen = request.cluster.groups[0], set[str]()
    inside = 1
    for i, tier in enumerate(group.network):
        called = shorten(tier.name, _LONGEST_NAME, placeholder="...")
        slug = re.sub(r"[^a-z0-9]+", "_", called.lower()).strip("_") or f"tier_{i}"
        while slug in seen:
            slug += "_"
        seen.add(slug)
        places = [
            path
            for path, one in zip(
                _places(request, "network", i), request.cluster.groups, strict=True
            )
            if i < len(one.network)
        ]
        rows = [
            _field("bandwidth_bytes_per_s", f"{called} bandwidth", "bytes/s", tier, places),
            _field("latency_s", f"{called} latency", "s", tier, places, slows=True),
        ]
        if tier.collective_wait_s:
            title = f"{called} wait of a collective's step"
            rows.append(_field("collective_wait_s", title, "s", tier, places, slows=True))
        if i:  # the innermost tier has no oversubscription
            title = f"{called} oversubscription"
            rows.append(
                _field("oversubscription", title, "ratio", tier, places, slows=True, least=1.0)
            )
        for row in rows:
            name = f"{slug}_{row.name}"
            if inside >= request.cluster.accelerators:
                yield name, "no link of this tier is crossed: the cluster ends inside it"
            elif row.value:
                yield replace(row, name=name)
            else:
                yield name, "is 0"
        inside = tier.domain_accelerators or request.cluster.accelerators


def _batch(request: PlanRequest) -> Iterator[Input | tuple[str, str]]:
    training, group = request.training, request.cluster.groups[0]
    rows = (("global_batch_size", "global batch size"), ("seq_length", "sequence length"))
    for name, title in rows:
        yield _field(name, title, "count", training, [("training",)], reach="all", whole=True)
    yield _field("nodes", "nodes", "count", group, _places(request), reach="all", whole=True)
    moe = request.model.moe
    if moe is None:
        yield "imbalance_factor", "the model has no experts"
        return
    yield _field(
        "imbalance_factor", "expert imbalance", "ratio", moe, [("model", "moe")],
        reach="all", slows=True, least=1.0,
    )  # fmt: skip


def _host(request: PlanRequest) -> Iterator[Input | tuple[str, str]]:
    group, name = request.cluster.groups[0], "host_link_bytes_per_s"
    offloads = ("offload_optimizer", "offload_activations")
    if not any(
        getattr(request.plan, field, False)
        or field in request.search.open
        or field in request.search.limits
        for field in offloads
    ):
        yield name, "nothing is offloaded"
    elif group.host_link_bytes_per_s is not None:
        yield _field(name, "host link", "bytes/s", group, _places(request))
    reserved = "reserved_bytes_per_accelerator"
    if not request.cluster.reserved_bytes_per_accelerator:
        yield reserved, "is computed for each plan, not given"
    else:
        yield _field(
            reserved, "reserved memory", "bytes", request.cluster, [("cluster",)], reach="all",
            slows=True,
        )  # fmt: skip


def _money(request: PlanRequest) -> Iterator[Input | tuple[str, str]]:
    """The inputs that change cost and energy but not time."""
    cluster, group = request.cluster, request.cluster.groups[0]
    rows: tuple[tuple[str, str, Unit, Any, list[Path], str], ...] = (
        ("price_usd_per_accelerator_hour", "price", "USD/h", group, _places(request), "price"),
        ("node_power_watts", "power of a node", "W", group, _places(request), "power"),
        ("pue", "PUE", "ratio", cluster, [("cluster",)], "PUE"),
    )
    for name, title, unit, spec, places, what in rows:
        if not getattr(spec, name):
            yield name, f"no {what} is known"
        elif request.training.tokens is None and request.search.objective != "cost":
            yield name, "without training tokens there are no days, cost or energy"
        else:
            least = 1.0 if name == "pue" else 0.0
            yield _field(name, title, unit, spec, places, reach="money", least=least)


def _places(request: PlanRequest, *rest: str | int) -> list[Path]:
    """The path `rest` in every node group."""
    return [("cluster", "groups", i, *rest) for i in range(len(request.cluster.groups))]


def _field(name: str, title: str, unit: Unit, spec: Any, places: list[Path], **more: Any) -> Input:
    """The input for a field of a spec; places: the paths of the spec in the document."""
    paths = tuple((*place, name) for place in places)
    return Input(name, title, unit, float(getattr(spec, name)), paths, **more)
