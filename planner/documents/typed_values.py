"""Values of a document as the types of the specs, and what is wrong with them as problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from cost_models.catalog.names import UnknownName
from cost_models.spec import NodeGroup
from planner.documents.loading import plain
from planner.documents.numbers import written_out
from planner.documents.problems import (
    Problem,
    RequestError,
    from_validation,
    join,
    missing,
    refuse,
    shown,
    translate,
    unknown_field,
    wrong_type,
)

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


def looked_up(pointer: str, find: Callable[[], T]) -> T:
    """What the catalog has; what it refuses is a problem at this place."""
    try:
        return find()
    except UnknownName as error:
        raise refuse(
            pointer,
            "unknown_name",
            f"no {error.kind} {shown(error.name)!r}",
            error.name,
            did_you_mean=error.nearest,
            allowed=error.known,
        ) from None
    except ValidationError as error:
        raise RequestError(from_validation(error, pointer, {}, NodeGroup)) from None
    except ValueError as error:
        raise refuse(pointer, "inconsistent", str(error)) from None


def validate(pointer: str, value: Mapping[str, Any], model: type[M]) -> M:
    """The spec of a document, read strictly: of strings only 8k and the like are numbers."""
    try:
        return model.model_validate(_tuples(written_out(value, model)), strict=True)
    except ValidationError as error:
        raise RequestError(from_validation(error, pointer, value, model)) from None


def check_field(pointer: str, model: type[BaseModel], field: str, value: Any) -> Any:
    """One value as a field of a spec would take it."""
    try:
        value = written_out({field: value}, model)[field]
        return _field_type(model, field).validate_python(_tuples(value), strict=True)
    except ValidationError as error:
        raise RequestError(
            translate(detail, join(pointer, *detail["loc"]), model, (field, *detail["loc"]))
            for detail in error.errors(include_url=False)
        ) from None


@cache
def _field_type(model: type[BaseModel], field: str) -> TypeAdapter[Any]:
    info = model.model_fields[field]
    annotated: Any = (
        Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    )
    return TypeAdapter(annotated)


def plain_object(document: Any, pointer: str = "", expected: str = "an object") -> dict[str, Any]:
    """A copy of an object's plain data.  Raises RequestError."""
    value = plain(document, pointer)
    require_object(pointer, value, expected)
    assert isinstance(value, dict)
    return value


def require_string(pointer: str, value: Any, expected: str = "a string") -> str:
    """A text.  Raises RequestError."""
    if not isinstance(value, str):
        raise RequestError([wrong_type(pointer, expected, value)])
    return value


def require_object(pointer: str, value: Any, expected: str = "an object") -> None:
    """Raise RequestError where a value is no object."""
    if not isinstance(value, dict):
        raise RequestError([wrong_type(pointer, expected, value)])


def field_problems(
    document: Mapping[str, Any], fields: tuple[str, ...], required: Iterable[str]
) -> list[Problem]:
    """Fields of a document that are unknown, and required ones that it lacks."""
    unknown = [unknown_field("", name, fields) for name in document if name not in fields]
    return unknown + [missing(name) for name in required if document.get(name) is None]


def _tuples(value: Any) -> Any:
    """Lists as tuples, which is what the specs hold."""
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value
