"""Rules, axes and defaults made from what a framework leaves of single fields of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import and_, or_
from typing import TYPE_CHECKING

import numpy as np

from cost_models.plans import (
    RECOMPUTE_MODULES,
    AttentionKernel,
    ParallelPlan,
    Plans,
    encoded,
    is_one_of,
)
from cost_models.spec import ClusterSpec
from planner.constraints import BoolArray, Context, Level, Rule
from planner.documents.formats import value_words
from planner.documents.request import OPENED, Value
from planner.frameworks.read_results import has_effect

if TYPE_CHECKING:
    from planner.frameworks.base import Field

# Of rules on the attention kernels of an accelerator, and on what fp16 needs of gradients.
ATTENTION_CODE, SCALING_CODE = "attention_kernel", "gradient_scaling"
# Field -> the reason code of its refusals; others are unsupported by the framework.
_CODES = {
    **dict.fromkeys(("cp", "cp_kind"), "cp_seq"),
    "etp": "experts_not_divisible",
    **dict.fromkeys(("zero_stage", "dp_shard", "reshard_after_forward"), "zero_stage"),
    **dict.fromkeys(
        ("recompute", "recompute_modules", "recompute_method", "recompute_num_layers",
         "recompute_layers"), "recompute",
    ),
    **dict.fromkeys(
        ("first_stage_layers", "last_stage_layers", "stage_layers"), "layers_not_divisible"
    ),
    **dict.fromkeys(("offload_optimizer", "offload_activations", "offload_num_layers"), "offload"),
}  # fmt: skip
_LEVELS: dict[str, Level] = {
    **dict.fromkeys(("tp", "cp", "pp"), "degrees"),
    **dict.fromkeys(("ep", "etp", "sequence_parallel"), "groups"),
    **dict.fromkeys(("vpp", "first_stage_layers", "last_stage_layers", "stage_layers"), "layout"),
}  # fmt: skip
# Fields of which a search tries every value, unless it is told which.
_SEARCHED = ("tp", "cp", "pp", "ep", "etp", "sequence_parallel", "zero_stage", "schedule",
             "recompute")  # fmt: skip


def rules(fields: Mapping[str, Field]) -> tuple[Rule, ...]:
    """One rule for all fields that have other values excluded for the same reason."""
    found: dict[tuple[str, str, Level], dict[str, Field]] = {}
    for name, field in fields.items():
        if field.only:
            why = name if field.supported else field.note
            key = why, _CODES.get(name, "framework_unsupported"), _LEVELS.get(name, "plan")
            found.setdefault(key, {})[name] = field
    return tuple(_rule(code, level, left) for (_, code, level), left in found.items())


def axes(fields: Mapping[str, Field]) -> dict[str, tuple[Value, ...]]:
    """The values that a search takes of fields that it would else try, or hold, at others.

    Of fields that it holds unless they are opened, only a single value.
    """
    usual = ParallelPlan()
    found: dict[str, tuple[Value, ...]] = {"runtime": fields["runtime"].only[:1]}
    for name, field in fields.items():
        if not field.only or name == "runtime":
            continue
        opened = name in OPENED and len(field.only) == 1
        if opened or name in _SEARCHED or field.only[0] != getattr(usual, name):
            found[name] = field.only
    return found


def _rule(code: str, level: Level, left: Mapping[str, Field]) -> Rule:
    """Each of these fields has a value that the framework leaves, where it has an effect."""
    numbers = {name: [_number(name, value) for value in one.only] for name, one in left.items()}

    def legal(c: Context, p: Plans) -> BoolArray:
        return reduce(
            and_,
            (
                reduce(or_, (np.equal(getattr(p, name), number) for number in allowed))
                | ~has_effect(name, p, c.model)
                for name, allowed in numbers.items()
            ),
        )

    def explain(c: Context, p: ParallelPlan) -> str:
        row = Plans.of(p)
        broken = [
            name
            for name, field in left.items()
            if getattr(p, name) not in field.only and has_effect(name, row, c.model)
        ]
        return "; ".join(_refusals(broken, left, p))

    return Rule(code, legal, explain, level)


def _refusals(broken: list[str], left: Mapping[str, Field], plan: ParallelPlan) -> Iterator[str]:
    """What the plan has and what the framework leaves, with the reason before or behind it."""
    for i, name in enumerate(broken):
        field = left[name]
        allowed = " or ".join(value_words(value) or "none" for value in field.only)
        words = f"{name} is {allowed}, not {value_words(getattr(plan, name))}"
        if field.supported:
            yield f"{words} ({field.note})" if field.note else words
        else:
            yield words if i else f"{field.note}: {words}"


def _number(name: str, value: Value) -> int:
    """The value as it stands in a column of Plans."""
    if isinstance(value, tuple):  # of the fields by stage only the empty one
        return sum(1 << RECOMPUTE_MODULES.index(module) for module in value)
    return encoded(name, value)


@cache
def attends_by(kernels: tuple[AttentionKernel, ...]) -> Rule:
    """On accelerators without FlashAttention 2, attention runs by one of these kernels."""

    def legal(c: Context, p: Plans) -> BoolArray:
        able = is_one_of(p.attention_kernel, "attention_kernel", *kernels) > 0
        return np.asarray(able | (not _before_ampere(c.cluster)))

    def explain(c: Context, p: ParallelPlan) -> str:
        return (
            "FlashAttention 2 and later, and cuDNN's, need compute capability 8.0 (Ampere), which "
            f"{' and '.join(_before_ampere(c.cluster))} does not have: attention_kernel is "
            f"{' or '.join(kernels)}, not {p.attention_kernel}"
        )

    return Rule(ATTENTION_CODE, legal, explain)


def _before_ampere(cluster: ClusterSpec) -> list[str]:
    """The names of the cluster's accelerators that are older than Ampere."""
    found = (group.accelerator for group in cluster.groups)
    return sorted({one.name for one in found if one.before_ampere})
