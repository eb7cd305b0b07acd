"""What is wrong with a request: one error, a list of problems, each with a JSON pointer.

The command line prints the document of `problem_document` and the service sends it (RFC 9457).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from planner.documents.answer import Reason
from planner.documents.short_names import SHORT_NAMES

Scalar = str | int | float | bool | None
T = TypeVar("T")

MAX_PROBLEMS = 20  # limit on the problems that one error lists
_MAX_SHOWN = 80  # limit on the characters of a value that a message repeats
_MORE = "more"
_MAX_EXACT = 2**53  # integers beyond it do not survive a JSON reader that uses doubles
# ModelSpec derives these from other fields, so the user has to correct those other fields.
_DERIVED = frozenset({"num_query_groups", "head_dim", "ffn_hidden_size", "norm_bias"})
_KINDS = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


_LONGEST_LIST = 400  # characters of what is allowed, in a text


class Problem(BaseModel):
    """One problem of a request: its place in the user's document, and what would be valid."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pointer: str
    code: str
    detail: str
    got: Scalar = None
    allowed: tuple[Scalar, ...] = ()
    did_you_mean: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The problem as a document, without empty members."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.detail}{self._hint()}"

    def _hint(self) -> str:
        if self.did_you_mean:
            return f"; did you mean {' or '.join(self.did_you_mean)}?"
        allowed = ", ".join(map(str, self.allowed))
        said = not allowed or allowed in self.detail or len(allowed) > _LONGEST_LIST
        return "" if said else f"; allowed: {allowed}"


class RequestError(ValueError):
    """A request that cannot be understood, with the problems found in it.

    At most MAX_PROBLEMS, and then one more (its code is `more`) that says how many others.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = _shortened(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[Any, ...]:
        """How to make the error again in another process: from its problems and its attributes."""
        return _unpickled, (type(self), self.problems), self.__dict__

    def under(self, pointer: str) -> RequestError:
        """The problems of a document that stands at `pointer` in another one."""
        return RequestError(
            item.model_copy(update={"pointer": pointer + item.pointer}) for item in self.problems
        )


def _unpickled(kind: type[RequestError], problems: tuple[Problem, ...]) -> RequestError:
    error = kind.__new__(kind)
    RequestError.__init__(error, problems)
    return error


class Gathered(list[Problem]):
    """What is wrong with several parts of a request, to be raised at once."""

    def of(self, parse: Callable[[], T], pointer: str = "") -> T | None:
        """What a part says; None where it is wrong.  pointer: where its document stands."""
        try:
            return parse()
        except RequestError as error:
            self += error.under(pointer).problems
            return None

    def check(self) -> None:
        """Raise RequestError where anything is wrong."""
        if self:
            raise RequestError(self)


class ServiceError(Exception):
    """A service that was asked has not answered; the text is one sentence that says why.

    document: its problem document, or one in its place.  passing: it may answer later.
    """

    def __init__(
        self, sentence: str, document: Mapping[str, Any] | None = None, passing: bool = False
    ) -> None:
        super().__init__(sentence)
        no_document = {"type": "about:blank", "title": "No answer of the service", "status": 502}
        self.document = {**(document or no_document), "detail": sentence}
        self.passing = passing


class Contradiction(RequestError):
    """Parts of a request that are fine alone and cannot be asked together."""


def _shortened(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    all_problems = tuple(problems)
    listed = [item for item in all_problems if item.code != _MORE]
    hidden = sum(int(item.got or 0) for item in all_problems if item.code == _MORE)
    hidden += max(0, len(listed) - MAX_PROBLEMS)
    if not hidden:
        return all_problems
    rest = problem("", _MORE, f"{hidden:,} more problems", hidden)
    return (*listed[:MAX_PROBLEMS], rest)


def problem_document(problems: Sequence[Problem]) -> dict[str, Any]:
    """The problem document (RFC 9457) of a request that is not valid."""
    count = sum(int(p.got or 0) if p.code == _MORE else 1 for p in problems)
    return {
        "type": "/problems/validation",
        "title": "Request is not valid",
        "status": 422,
        "detail": f"{count:,} problem{'s' * (count != 1)} in the request",
        "errors": [item.document() for item in problems],
    }


def from_reasons(reasons: Iterable[Reason]) -> tuple[Problem, ...]:
    """Why a given plan cannot run, as problems of the request."""
    return tuple(problem("/plan", reason.code, reason.text) for reason in reasons)


def problems_of(error: Exception) -> tuple[Problem, ...] | None:
    """What is wrong with a request, by an error that it caused; None for any other error."""
    if reasons := getattr(error, "reasons", ()):  # IllegalPlan, Unsupported
        return from_reasons(reasons)
    return getattr(error, "problems", None)  # RequestError, SpaceTooLarge


def failure_document(slug: str, title: str, detail: str) -> dict[str, Any]:
    """The problem document of work that did not end well."""
    return {"type": f"/problems/{slug}", "title": title, "status": 500, "detail": detail}


def internal_document() -> dict[str, Any]:
    """The problem document of a fault of ours; it says nothing of its inside."""
    detail = "This is a fault of the planner, not of the request. Please report it."
    return failure_document("internal", "The planner failed", detail)


def problem(pointer: str, code: str, detail: str, got: Any = None, **more: Any) -> Problem:
    """A problem with the value that causes it, as an error may repeat it."""
    return Problem(pointer=pointer, code=code, detail=detail, got=shown(got), **more)


def refuse(pointer: str, code: str, detail: str, got: Any = None, **more: Any) -> RequestError:
    """The error of one problem."""
    return RequestError([problem(pointer, code, detail, got, **more)])


def missing(name: str, pointer: str = "") -> Problem:
    """A field that an object lacks."""
    return problem(join(pointer, name), "missing", "is required")


def unknown_field(pointer: str, name: str, names: Iterable[str]) -> Problem:
    """A field that its object does not have, with the nearest that it has."""
    detail, known = f"no field {shown(name)!r} here", list(names)
    if not pointer and (part := _part_with(name, known)):
        return problem(join("", name), "unknown_field", f"{detail}: it stands in /{part}")
    long = SHORT_NAMES.get(name)
    close = (long,) if long in known else nearest(name, known)
    return problem(join(pointer, name), "unknown_field", detail, did_you_mean=close)


def _part_with(name: str, parts: Collection[str]) -> str | None:
    """The part of a request whose field this is."""
    from cost_models.plans import FIELDS
    from cost_models.spec import TrainingSpec

    fields = {"training": TrainingSpec.model_fields, "plan": FIELDS}
    return next((part for part in fields if part in parts and name in fields[part]), None)


def nearest(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Up to three known names that look like this one."""
    return tuple(difflib.get_close_matches(name[:_MAX_SHOWN].lower(), list(names), n=3, cutoff=0.6))


def join(pointer: str, *parts: str | int) -> str:
    """A JSON pointer (RFC 6901), longer by these parts."""
    escaped = (str(shown(part)).replace("~", "~0").replace("/", "~1") for part in parts)
    return "/".join((pointer, *escaped))


def shown(value: Any) -> Scalar:
    """A value as an error may repeat it: short, printable, valid in JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_EXACT else _integer_text(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)  # NaN compares false
    if isinstance(value, str):
        text = value[: _MAX_SHOWN + 1]
        text = "".join(char if char.isprintable() else "?" for char in text)
        return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
    if isinstance(value, Mapping):
        return f"an object of {len(value)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return f"a {type(value).__name__}"


def _integer_text(value: int) -> str:
    # Not str(value): past some thousand digits Python refuses, and it takes quadratic time.
    return str(value) if abs(value) < 10**40 else "an integer of more than 40 digits"


def from_validation(
    error: ValidationError, pointer: str, document: Mapping[str, Any], model: type[BaseModel]
) -> list[Problem]:
    """Translate what pydantic found in `document`, which stands at `pointer` of the request."""
    errors = error.errors(include_url=False)
    own = [f for f in errors if not _derived(f["loc"], document)] or errors
    wrong_items = {f["loc"][:-1] for f in own if f["loc"]}
    # What lacks items since they are wrong themselves says nothing new.
    own = [f for f in own if f["type"] != "too_short" or f["loc"] not in wrong_items]
    listed, rest = own[:MAX_PROBLEMS], own[MAX_PROBLEMS:]
    return [
        *(
            translate(
                dict(f), join(pointer, *_resolved_location(model, f["loc"])[0]), model, f["loc"]
            )
            for f in listed
        ),
        # Only counted: see RequestError.
        *(problem(pointer, f["type"], f["msg"]) for f in rest),
    ]


def _derived(location: tuple[int | str, ...], document: Mapping[str, Any]) -> bool:
    """Whether an error stands at a field that was filled from others, not given."""
    return len(location) == 1 and location[0] in _DERIVED and location[0] not in document


def unprintable(pointer: str, got: Any) -> Problem:
    """A text with control characters."""
    detail = f"must be printable, without control characters; got {shown(got)!r}"
    return problem(pointer, "string_pattern_mismatch", detail, got)


def translate(
    error: Mapping[str, Any], pointer: str, model: type[BaseModel], location: tuple[int | str, ...]
) -> Problem:
    """One of pydantic's errors as a problem; `location` is its place inside `model`."""
    code, context, got = error["type"], error.get("ctx", {}), error.get("input")
    if code == "extra_forbidden":
        owner = _model_at(model, location[:-1])
        fields = owner.model_fields if owner else ()
        return unknown_field(pointer.rpartition("/")[0], str(location[-1]), fields)
    if code == "missing":
        return problem(pointer, code, "is required")
    if code == "literal_error":
        return choice(pointer, got, _literals(model, location))
    if code in _KINDS:
        return wrong_type(pointer, _KINDS[code], got)
    if code in ("union_tag_invalid", "union_tag_not_found") and isinstance(got, Mapping):
        tags = [tag for m in _resolved_location(model, location)[1] for tag in _tags(m)]
        return choice(join(pointer, "kind"), got.get("kind"), tags)
    limits = {
        "greater_than": "> {gt}",
        "greater_than_equal": ">= {ge}",
        "less_than": "< {lt}",
        "less_than_equal": "<= {le}",
    }
    if code in limits:
        detail = f"must be {limits[code].format(**context)}, got {shown(got)}"
        return problem(pointer, code, detail, got)
    if code in ("too_short", "too_long"):
        bound = f"at least {context['min_length']}" if code == "too_short" else (
            f"at most {context['max_length']}"
        )  # fmt: skip
        detail = f"must have {bound} values, got {context['actual_length']}"
        return problem(pointer, code, detail, got)
    if code == "string_pattern_mismatch":
        return unprintable(pointer, got)
    if code == "value_error":
        return problem(pointer, "inconsistent", str(context["error"]))
    return problem(pointer, code, error["msg"], got)


def wrong_type(pointer: str, expected: str, got: Any) -> Problem:
    """A value of the wrong type, such as a string where a number belongs."""
    value = shown(got)
    described = f"the string {value!r}" if isinstance(got, str) else str(_json_word(value))
    if expected == "an integer" and isinstance(got, float) and got.is_integer():
        described += ", a number with a point or an exponent"
    return problem(pointer, "wrong_type", f"must be {expected}, got {described}", got)


def choice(pointer: str, got: Any, allowed: Sequence[Scalar]) -> Problem:
    """A value outside a closed set."""
    names = ", ".join(str(_json_word(value)) for value in allowed)
    detail = f"must be one of {names}; got {_json_word(shown(got))}"
    texts = [value for value in allowed if isinstance(value, str)]
    close = nearest(got, texts) if isinstance(got, str) else ()
    return problem(pointer, "not_allowed", detail, got, allowed=allowed, did_you_mean=close)


def _json_word(value: Scalar) -> Scalar:
    """The words of JSON for null, true and false; other values as they are."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else value


def _literals(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[Scalar, ...]:
    """The values of the Literal at a location."""
    *path, name = [part for part in location if isinstance(part, str)]
    owner = _model_at(model, path)
    return tuple(_leaves(owner.model_fields[name].annotation)) if owner else ()


def _leaves(annotation: Any) -> Iterable[Scalar]:
    for argument in get_args(annotation):
        if isinstance(argument, (str, int)):
            yield argument
        else:
            yield from _leaves(argument)


def _model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """The document type at a location; None where there is none."""
    models = _resolved_location(model, location)[1]
    return models[0] if models else None


def _resolved_location(
    model: type[BaseModel], location: Sequence[int | str]
) -> tuple[tuple[int | str, ...], list[type[BaseModel]]]:
    """(a location as the document has it, the document types that may stand there).

    Pydantic adds to a location which of several types it took.
    """
    resolved: list[int | str] = []
    current = [model]
    for part in location:
        tagged = [m for m in current if len(current) > 1 and part in _tags(m)]
        if tagged:
            current = tagged
            continue
        resolved.append(part)
        if isinstance(part, str):
            fields = [m.model_fields[part] for m in current if part in m.model_fields]
            current = _documents_in(fields[0].annotation) if fields else []
    return tuple(resolved), current


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    return tuple(field.default for name, field in model.model_fields.items() if name == "kind")


def _documents_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [document for argument in get_args(annotation) for document in _documents_in(argument)]
