"""When a field of a document has an effect: a condition that is declared with the field.

A condition names other fields of the same document, each with a JSON Schema of the value that it
must have; a field may have several conditions, of which one must hold.  The schema of the document
has them as `x-read-where`, for code that shows or collapses fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cost_models.fields import Spec

READ_WHERE = "x-read-where"
Rule = Mapping[str, Any]
Condition = Mapping[str, Rule]

GIVEN: Rule = {"minItems": 1}


def above(value: float) -> Rule:
    """The schema of values above a number."""
    return {"exclusiveMinimum": value}


def equal(value: Any) -> Rule:
    """The schema of a single value."""
    return {"const": value}


def read_where(description: str, *conditions: Condition) -> dict[str, Any]:
    """Arguments of a pydantic Field that is read only where one of the conditions holds."""
    text = " or ".join(" and ".join(_as_text(*i) for i in each.items()) for each in conditions)
    return {
        "description": f"{description}; read where {text}",
        "json_schema_extra": {READ_WHERE: [dict(each) for each in conditions]},
    }


@cache
def conditions(document: type[Spec], field: str) -> tuple[Condition, ...]:
    """The conditions of a field; empty: it is always read."""
    extra = document.model_fields[field].json_schema_extra
    declared = extra.get(READ_WHERE, []) if isinstance(extra, dict) else []
    return tuple(declared)  # type: ignore[arg-type]


def is_read(document: Spec, field: str) -> bool:
    """Whether a field of a document has an effect, given its other fields."""
    rules = conditions(type(document), field)
    return not rules or any(
        all(_fits(getattr(document, name), rule) for name, rule in each.items()) for each in rules
    )


def _fits(value: Any, rule: Rule) -> bool:
    if "const" in rule:
        return bool(value == rule["const"])
    if "minItems" in rule:
        return len(value) >= int(rule["minItems"])
    return bool(value > rule["exclusiveMinimum"])


def _as_text(name: str, rule: Rule) -> str:
    if "const" in rule:
        return name if rule["const"] is True else f"{name} is {rule['const']}"
    return f"{name} are given" if "minItems" in rule else f"{name} > {rule['exclusiveMinimum']}"
