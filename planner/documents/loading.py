"""Read a request from text: JSON or YAML, hardened, as plain lists, mappings and scalars.

Text from strangers can be small and still ask for unbounded work: aliases of aliases, nesting
without end, numbers of a million digits.  Everything here is bounded before it is built, and
whatever is wrong is a RequestError.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from planner.documents.problems import RequestError, join, refuse, shown

MAX_BYTES = 1 << 20
MAX_NODES = 20_000  # values in one document, aliases counted as often as they are used
MAX_DEPTH = 32
MAX_INTEGER = 10**40  # far beyond every field's limit, and still cheap to print and compare
MAX_STRING = 10_000
# Keys of a Hugging Face config.json, which Python writes with Infinity and NaN where they stand.
CONFIG_MARKS = frozenset({"model_type", "architectures"})

# Tags that say of a plain value what it is.
_OF_YAML = "tag:yaml.org,2002:"
_TAGS = tuple(f"{_OF_YAML}{one}" for one in ("float", "int", "bool", "null", "str"))
# The core schema of YAML 1.2 with digit separators: 010 is ten, `no` a string, 1e12 a number.
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPECIAL_FLOAT = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def load_document(source: str | Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, or on standard input when the source is `-`.

    Raises RequestError for whatever is wrong with the file or its text.
    """
    if str(source) == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        try:
            with Path(source).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            reason = getattr(error, "strerror", None) or error
            raise refuse("", "no_file", f"cannot read {shown(str(source))!r}: {reason}") from None
    if len(data) > MAX_BYTES:
        raise refuse("", "too_large", f"a request has at most {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise refuse("", "not_text", "is not UTF-8 text") from None
    document = parse_text(text)
    if not isinstance(document, dict):
        got = "nothing" if document is None else shown(document)
        raise refuse("", "wrong_type", f"must be a mapping of names to values, got {got}")
    return document


def parse_text(text: str, repeated: list[str] | None = None) -> Any:
    """The value of a JSON or YAML text, within the limits of this module.

    repeated: takes the pointers of YAML's keys that stand twice, of which the last counts; without
    it they are refused.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(text)
        except json.JSONDecodeError:
            pass  # a YAML flow mapping may start alike
    return _parse_yaml(text, repeated)


def parse_json(text: str | bytes, longest: int = MAX_STRING) -> Any:
    """The value of a JSON text, within the limits of this module.

    longest: characters of a string, where files are expected in strings.
    Raises json.JSONDecodeError or UnicodeDecodeError where it is not JSON at all, RequestError
    where it is and goes beyond a limit, repeats a key or, outside of a config.json, has NaN or an
    infinity.
    """
    try:
        value = json.loads(
            text, parse_int=_integer, parse_constant=_no_constant, object_pairs_hook=_mapping
        )
    except RecursionError:
        raise _too_deep("") from None
    return plain(value, longest=longest)


def plain(value: Any, pointer: str = "", longest: int = MAX_STRING) -> Any:
    """A copy of plain data within the limits of this module; tuples become lists.

    In a config.json NaN and the infinities become their names, so that a key that matters is
    refused where it is read, and every other (such as `time_step_limit`) does no harm.
    """
    budget = [MAX_NODES]
    try:
        return _plain_copy(value, MAX_DEPTH, budget, longest)
    except RequestError as error:
        raise (_too_many() if budget[0] < 0 else error.under(pointer)) from None


def _keys(value: Any) -> Iterable[Any]:
    """The keys of an object, the places of a list."""
    if isinstance(value, (list, tuple)):
        yield from range(len(value))
    elif not isinstance(value, dict):
        raise refuse("", "wrong_type", f"must be plain data, got a {type(value).__name__}")
    else:
        for key in value:
            if not isinstance(key, str):
                raise refuse("", "wrong_type", "keys must be strings", key)
            yield key


def _plain_copy(
    value: Any, depth: int, budget: list[int], longest: int, config: bool = False
) -> Any:
    """The copy; pointers of errors grow on their way out, since few documents have any."""
    budget[0] -= 1
    if budget[0] < 0:
        raise _too_many()
    if value is None or isinstance(value, bool):
        return value
    if config and isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, (int, float, str)):
        return _scalar(value, longest=longest)
    if depth == 0:
        raise _too_deep("")
    copy: dict[Any, Any] = {}
    config = config or (isinstance(value, dict) and not CONFIG_MARKS.isdisjoint(value))
    for key in _keys(value):
        try:
            copy[_scalar(key)] = _plain_copy(value[key], depth - 1, budget, longest, config)
        except RequestError as error:
            raise error.under(join("", key)) from None
    return copy if isinstance(value, dict) else list(copy.values())


def _scalar(
    value: int | float | str, pointer: str = "", longest: int = MAX_STRING
) -> int | float | str:
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse(pointer, "not_finite", "must be a finite number", value)
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise refuse(pointer, "too_large", "is an integer far beyond every limit", value)
    if isinstance(value, str) and len(value) > longest:
        raise refuse(pointer, "too_large", f"has more than {longest} characters", value)
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        raise refuse(pointer, "not_text", "holds half of a surrogate pair, which is no text", value)
    return value


def _integer(digits: str) -> int:
    # Python refuses to convert very long digit strings, with a message of its own.
    return int(digits) if len(digits) <= 100 else 10 * MAX_INTEGER


def _no_constant(name: str) -> float:
    return float(name.replace("Infinity", "inf"))


def _mapping(
    pairs: Iterable[tuple[str, Any]], pointer: str = "", repeated: list[str] | None = None
) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping and repeated is not None:
            repeated.append(join(pointer, key))
        elif key in mapping:
            detail = f"the key {shown(key)!r} stands twice in one object"
            raise refuse(pointer, "duplicate_key", detail)
        mapping[key] = value
    return mapping


def _too_deep(pointer: str) -> Exception:
    return refuse(pointer, "too_deep", f"is nested deeper than {MAX_DEPTH} levels")


def _too_many() -> Exception:
    return refuse("", "too_large", f"has more than {MAX_NODES} values")


def _parse_yaml(text: str, repeated: list[str] | None = None) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader), repeated).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML or JSON"
        raise refuse("", "malformed", f"cannot be read: {problem}{position}") from None


class _Builder:
    """Builds plain data from YAML events, counting what it builds.

    An alias costs as many values as what it stands for, so the count bounds every later walk.
    """

    def __init__(self, events: Iterator[Any], repeated: list[str] | None = None) -> None:
        self.events, self.repeated = events, repeated
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.nodes = 0

    def document(self) -> Any:
        import yaml

        value, documents = None, 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise refuse("", "malformed", "holds more than one document")
                value = self.value(next(self.events), "", MAX_DEPTH)
        return value

    def value(self, event: Any, pointer: str, depth: int) -> Any:
        import yaml

        nodes_before = self.nodes
        self.nodes += 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise refuse(pointer, "malformed", f"no anchor {shown(event.anchor)!r}")
            value, size = self.anchors[event.anchor]
            self.nodes += size
            self._check()
            return value
        self._check()
        if event.tag not in (None, "!") and not _is_plain(event):
            raise refuse(pointer, "malformed", f"YAML tags are not read: {shown(event.tag)}")
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar_of(event, pointer)
        elif depth == 0:
            raise _too_deep(pointer)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(pointer, depth)
        else:
            value = _mapping(self._pairs(pointer, depth), pointer, self.repeated)
        if event.anchor:
            self.anchors[event.anchor] = (value, self.nodes - nodes_before)
        return value

    def _sequence(self, pointer: str, depth: int) -> list[Any]:
        import yaml

        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.value(event, join(pointer, len(items)), depth - 1))
        return items

    def _pairs(self, pointer: str, depth: int) -> Iterator[tuple[str, Any]]:
        import yaml

        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise refuse(pointer, "wrong_type", "keys must be strings")
            yield event.value, self.value(next(self.events), join(pointer, event.value), depth - 1)

    def _check(self) -> None:
        if self.nodes > MAX_NODES:
            raise _too_many()


def _is_plain(event: Any) -> bool:
    """Whether a tag is of a plain value, which it only says once more: `!!float 1e-6`."""
    return event.tag in _TAGS and hasattr(event, "value")


def _scalar_of(event: Any, pointer: str) -> Any:
    text: str = event.value
    if event.tag == f"{_OF_YAML}str":
        return _scalar(text, pointer)
    if event.tag == f"{_OF_YAML}float":
        with contextlib.suppress(ValueError):
            return _scalar(float(text.replace("_", "")), pointer)
    if event.tag not in _TAGS and not event.implicit[0]:  # quoted, or a block of text
        return _scalar(text, pointer)
    return scalar(text, pointer)


def scalar(text: str, pointer: str = "") -> Any:
    """What a bare word stands for: null, a truth value, a number or itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        return _scalar(_integer(text.replace("_", "")), pointer)
    if _FLOAT.match(text):
        return _scalar(float(text.replace("_", "")), pointer)
    if _SPECIAL_FLOAT.match(text):
        return _scalar(float(text.replace(".", "")), pointer)
    return _scalar(text, pointer)
