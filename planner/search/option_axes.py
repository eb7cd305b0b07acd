"""The innermost axes: ZeRO stage, recompute, open fields, and switches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, IntArray, Plans, code, encoded
from cost_models.runtimes import RUNTIMES
from cost_models.spec import ClusterSpec
from planner.constraints import BoolArray
from planner.search.axes import SEARCHED, Axes, SpaceTooLarge

_FULL = code("recompute", "full")
# Rows of one request's table of options.
MAX_OPTIONS = 10_000
# Values of switches, each never slower and never more memory than those after it (see Space).
SWITCHES: dict[str, tuple[Any, ...]] = {
    "compile": (True, False),
    "cross_entropy": ("fused", "unfused"),
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "overlap_tp": (True, False),
    "overlap_ep": (True, False),
    "moe_dispatcher": ("hybridep", "deepep", "alltoall"),
}


def weighs_overlaps(cluster: ClusterSpec, plans: Plans) -> BoolArray:
    """Plans for which neither value of overlap_ep is always the better one.

    Before Blackwell an exchange of tokens that overlaps costs tensor-parallel traffic its own
    overlap (cost_models.collectives).
    """
    older = any(group.accelerator.before_blackwell for group in cluster.groups)
    return np.asarray(older & (plans.tp > 1) & (plans.ep > 1))


@dataclass(frozen=True)
class Switches:
    """Combinations of switches, the best first.

    columns: values by field, as they stand in Plans; outdoes: whether the first combination is
    at least as good in every switch as the second; shape (combinations, combinations).  same_ep:
    the same of combinations with one value of overlap_ep, as plans are compared that
    `weighs_overlaps` is true of.
    """

    columns: dict[str, IntArray]
    outdoes: BoolArray
    same_ep: BoolArray

    def of(self, combination: int) -> dict[str, int]:
        """The value of every switch."""
        return {field: int(values[combination]) for field, values in self.columns.items()}


class OptionAxes:
    """The values of all fields that belong neither to process groups nor to layouts."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes

    @cached_property
    def columns(self) -> dict[str, IntArray]:
        """All combinations as one table: ZeRO stage, recompute and other open fields."""
        settled = {*SEARCHED, *self.switches.columns}
        open_fields = [
            field
            for field, values in self._axes.values.items()
            if field not in settled and len(values) != 1
        ]
        axes: list[list[dict[str, int]]] = [
            list(self._zero_rows()),
            list(self._recompute_rows()),
            *([{f: encoded(f, v)} for v in self._axes.values[f]] for f in open_fields),
        ]
        size = prod(len(axis) for axis in axes)
        if size > MAX_OPTIONS:
            raise SpaceTooLarge("combinations of options", size, MAX_OPTIONS)
        rows: list[dict[str, int]] = [{}]
        for axis in axes:
            rows = [{**row, **choice} for row in rows for choice in axis]
        names: tuple[str, ...] = (
            "zero_stage", "recompute", "recompute_modules", "recompute_num_layers",
        )  # fmt: skip
        if any("reshard_after_forward" in row for row in rows):
            names = (*names, "reshard_after_forward")
        return {
            name: np.array([row.get(name, 0) for row in rows], dtype=np.int64)
            for name in (*names, *open_fields)
        }

    @cached_property
    def switches(self) -> Switches:
        """The open switches, whose best values are chosen for each plan instead of searched.

        Empty if the request asks for the whole space, or if a plan's own values count.
        """
        settled = self._axes.full or self._axes.own is not None
        chains = {
            field: [value for value in chain if value in self._axes.values[field]]
            for field, chain in SWITCHES.items()
            if not settled and set(self._axes.values[field]) <= set(chain)
        }
        chains = {field: chain for field, chain in chains.items() if len(chain) > 1}
        indices = list(product(*(range(len(chain)) for chain in chains.values())))
        indices.sort(key=sum)
        ranks = np.array(indices, dtype=np.int64).reshape(len(indices), len(chains))
        no_worse: BoolArray = np.all(ranks[:, None] <= ranks[None, :], axis=2)
        outdoes = np.asarray(no_worse & ~no_worse.T)
        columns = {
            field: np.array([encoded(field, value) for value in chain])[ranks[:, i]]
            for i, (field, chain) in enumerate(chains.items())
        }
        overlaps = columns.get("overlap_ep", np.zeros(len(indices), dtype=np.int64))
        return Switches(columns, outdoes, outdoes & (overlaps[:, None] == overlaps[None, :]))

    def _zero_rows(self) -> Iterator[dict[str, int]]:
        """ZeRO stages; stage 3 of a runtime that can keep gathered weights, both ways."""
        keep = any(RUNTIMES[name].keeps_gathered_weights for name in self._axes.values["runtime"])
        keeps = keep and not self._axes.limited("reshard_after_forward")
        for stage in self._axes.values["zero_stage"]:
            row = {"zero_stage": int(stage)}
            if not keeps:
                yield row
                continue
            yield {**row, "reshard_after_forward": 1}
            if stage == 3:
                yield {**row, "reshard_after_forward": 0}

    def _recompute_rows(self) -> Iterator[dict[str, int]]:
        """none; each selective set; full with n layers (0: all of the chunk)."""
        for name in self._axes.values["recompute"]:
            if name == "none":
                yield {"recompute": 0}
            elif name == "selective":
                for bits in self.selective_sets:
                    yield {"recompute": 1, "recompute_modules": bits}
            else:
                for n in self._full_counts():
                    yield {"recompute": _FULL, "recompute_num_layers": n}

    def _full_counts(self) -> list[int]:
        """Layers that full recompute may be of; 0 is all of a chunk."""
        counts, plan = range(1, self._axes.request.model.num_layers + 1), self._axes.own
        if "recompute_num_layers" in self._axes.request.search.limits:
            return [int(n) for n in self._axes.allowed("recompute_num_layers", counts) if n >= 1]
        if self.every_layer_count:
            return [*counts]
        return [0, plan.recompute_num_layers] if plan and plan.recompute_num_layers else [0]

    @property
    def every_layer_count(self) -> bool:
        """Whether each recompute_num_layers is tried, because no dominance rule decides it."""
        values = self._axes.values
        return (
            self._axes.full
            or self._axes.limited("recompute_num_layers")
            or True in values["offload_activations"]
            or "uniform" in values["recompute_method"]
        )

    @cached_property
    def selective_sets(self) -> tuple[int, ...]:
        """Module sets of selective recompute: a light one (cheap to redo) and a heavy one."""
        bounds = self._axes.request.search.limits.get("recompute_modules")
        if bounds is not None and bounds.values is not None:
            rows = [v if isinstance(v, tuple) else (v,) for v in bounds.values]
            return tuple(_bits(row) for row in rows)
        model = self._axes.request.model
        if "unfused" in self._axes.values["attention_kernel"]:
            return self._with_own((_bits(("core_attn",)),))
        light = ["layernorm"]
        if model.mla is not None:
            light.append("mla_up_proj")
        if model.moe is not None:
            light.append("moe_act")
        heavy = [*light, "mlp"] if "dense" in model.feed_forwards else list(light)
        if model.moe is not None:
            heavy.append("moe")
        return self._with_own((_bits(light), _bits(heavy)))

    def _with_own(self, sets: tuple[int, ...]) -> tuple[int, ...]:
        bits = self._axes.own.recompute_module_bits if self._axes.own is not None else 0
        return sets if bits in (0, *sets) else (*sets, bits)


def _bits(modules: Iterable[Any]) -> int:
    return sum(1 << RECOMPUTE_MODULES.index(m) for m in modules)


def module_names(bits: int) -> tuple[str, ...]:
    """The recompute modules of a bit set."""
    return tuple(m for k, m in enumerate(RECOMPUTE_MODULES) if bits >> k & 1)
