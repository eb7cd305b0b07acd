"""Limits on plan fields: what `search` may say of them, as Bounds."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from cost_models.plans import RECOMPUTE_MODULES, VOCABULARIES, ParallelPlan, RecomputeModule
from planner.documents.problems import RequestError, from_validation, join, refuse, unknown_field
from planner.documents.request import Bounds
from planner.documents.typed_values import check_field

_TUPLE_FIELDS = frozenset({"recompute_modules", "recompute_layers", "stage_layers"})


def bounds(pointer: str, field: str, value: Any) -> Bounds:
    """Limits on one plan field: a value, a list of values, {"min", "max"} or {"values"}."""
    if isinstance(value, dict):
        known = Bounds.model_fields
        if unknown := [unknown_field(pointer, n, known) for n in value if n not in known]:
            raise RequestError(unknown)
        if value.get("values") is not None:
            pointer, value = join(pointer, "values"), value["values"]
        else:
            return _range(pointer, field, value)
    single = not isinstance(value, list) or (
        field in _TUPLE_FIELDS and not any(isinstance(item, list) for item in value)
    )
    if single:
        return Bounds(values=(_value(pointer, field, value),))
    if not 1 <= len(value) <= 256:
        raise refuse(pointer, "length", f"must have 1 to 256 values, got {len(value)}")
    values = [_value(join(pointer, i), field, item) for i, item in enumerate(value)]
    return Bounds(values=tuple(dict.fromkeys(values)))


def _value(pointer: str, field: str, value: Any) -> Any:
    """One allowed value; a set of modules or a list of layers is never empty."""
    if field in _TUPLE_FIELDS and value == []:
        raise refuse(pointer, "empty", f"name at least one of the {field}")
    checked = check_field(pointer, ParallelPlan, field, value)
    return modules(pointer, checked) if field == "recompute_modules" else checked


def modules(pointer: str, names: tuple[RecomputeModule, ...]) -> tuple[RecomputeModule, ...]:
    """A set of recompute modules in the order of the vocabulary; none stands in it twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise refuse(pointer, "duplicate_value", f"names {', '.join(twice)} twice")
    return tuple(sorted(names, key=RECOMPUTE_MODULES.index))


def _range(pointer: str, field: str, value: dict[str, Any]) -> Bounds:
    if not _is_integer(field):
        raise refuse(pointer, "not_a_range", f"{field} has no order; give values")
    stated = {name: item for name, item in value.items() if item is not None}
    if not stated:
        raise refuse(pointer, "missing", "give min, max or values")
    try:
        return Bounds.model_validate(stated, strict=True)
    except ValidationError as error:
        raise RequestError(from_validation(error, pointer, stated, Bounds)) from None


def _is_integer(field: str) -> bool:
    return field not in VOCABULARIES and ParallelPlan.model_fields[field].annotation is int
