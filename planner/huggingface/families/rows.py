"""The rows of a family's table: keys of a config.json and the fields that they give.

A table is read forwards, key by key, and written backwards from the same rows.  A part of a table
is a mapping of fixed fields, a row, or a function of (config, fields read before) where a family
computes something.  A field of an inner object has a dotted name: moe.top_k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from cost_models.blocks import SUBLAYERS, Sublayer
from cost_models.layers import layers_of
from cost_models.spec import ModelSpec
from planner.huggingface.config import Config

Fields = dict[str, Any]
Keys = dict[str, Any]
Read = Callable[[Config, Fields], Fields]
Part = Mapping[str, Any] | Read

SPEC_OF = {each.model_fields["kind"].default: each for each in SUBLAYERS}


class NotWritten(Exception):
    """A family has no keys for a model: it lacks a part that the family always has."""


class Derived(NamedTuple):
    """A default that follows from fields read before, and how notes call it."""

    value: Callable[[Fields], int]
    because: str


class Bounds(NamedTuple):
    """The type of a field, whether it may be none, and the range of a number."""

    type: type
    optional: bool
    least: int
    most: int


@cache
def bounds_of(spec: type[BaseModel], path: str) -> Bounds:
    """The bounds of a field of a document, or of one of its inner documents."""
    outer, _, inner = path.partition(".")
    info = spec.model_fields[outer]
    choices = (info.annotation, *get_args(info.annotation))
    types = [getattr(choice, "__origin__", choice) for choice in choices]
    if inner:
        own = next(t for t in types if isinstance(t, type) and issubclass(t, BaseModel))
        return bounds_of(own, inner)
    inside = [mark for choice in choices for mark in getattr(choice, "__metadata__", ())]
    marks = [*info.metadata, *(m for each in inside for m in each.metadata)]
    found = {name: getattr(m, name) for m in marks for name in ("ge", "le") if hasattr(m, name)}
    known = next((t for t in (bool, int, float) if t in types), str)
    return Bounds(known, type(None) in types, found.get("ge", 0), found.get("le", 0))


@dataclass(frozen=True)
class Key:
    """A key of config.json and the fields that it gives; their type and bounds are its own.

    names: the key, under which it is written, and other spellings of it.  fields: of the model or,
    in the table of a block, of the block.  default: of the family's class; None: the key is
    required or, where the field may be none, its default is null.  null: whether null is none.
    means: the values of the field for true and false.
    """

    names: str
    fields: str
    default: Any = None
    null: bool = True
    means: tuple[Any, Any] | None = None

    def __call__(self, config: Config, fields: Fields, spec: type[BaseModel] = ModelSpec) -> Fields:
        return dict.fromkeys(self.fields.split(), self._value(config, fields, spec))

    def _value(self, config: Config, fields: Fields, spec: type[BaseModel]) -> Any:
        default, because, stated = self.default, "", config.spelled(self.names)
        if self.means is not None:
            return self.means[not config.flag(stated, default)]
        known = bounds_of(spec, self.fields.split()[0])
        if known.type is bool:
            return config.flag(stated, default)
        if known.type is float:
            return config.probability(stated, default)
        if isinstance(default, Derived):
            because, default = default.because, default.value(fields)
            if config.value(stated) == "auto":
                config.guess(stated, default, because)
                return default
        elif known.optional and self.null:
            return config.optional(stated, most=known.most, default=default)
        return config.count(
            *self.names.split(),
            least=known.least,
            most=known.most,
            default=default,
            because=because,
        )

    def keys(self, source: BaseModel) -> Keys:
        """The key for a model or a block."""
        value: Any = source
        for name in self.fields.split()[0].split("."):
            if value is None:
                raise NotWritten
            value = getattr(value, name)
        value = value if self.means is None else value == self.means[0]
        return {self.names.split()[0]: value}


@dataclass(frozen=True)
class FixedKey:
    """A key that can have only one value, and why; a file may leave it out."""

    name: str
    value: Any
    reason: str

    def __call__(self, config: Config, fields: Fields) -> Fields:
        value = self.value(fields) if callable(self.value) else self.value
        config.require(self.name, value, self.reason)
        return {}


@dataclass(frozen=True)
class Hook:
    """What a family computes: fields from keys, and keys from a model."""

    read: Callable[[Config, Fields], Fields] = lambda config, fields: {}
    keys: Callable[[ModelSpec], Keys] = lambda model: {}

    def __call__(self, config: Config, fields: Fields) -> Fields:
        return self.read(config, fields)


def keys_of(part: Part | Any, model: ModelSpec) -> Keys:
    """The keys that a part of a table writes; fixed fields and plain functions write none."""
    write = None if isinstance(part, Mapping) else getattr(part, "keys", None)
    return write(model) if write else {}


class Table:
    """Parts in the order in which they are read and written."""

    def __init__(self, *parts: Part | Table) -> None:
        self.parts: tuple[Part, ...] = tuple(
            one for part in parts for one in (part.parts if isinstance(part, Table) else (part,))
        )

    def __call__(self, config: Config, fields: Fields, spec: type[BaseModel] = ModelSpec) -> Fields:
        found: Fields = {}
        for part in self.parts:
            known = {**fields, **found}
            if isinstance(part, Key):
                found |= part(config, known, spec)
            else:
                found |= part if isinstance(part, Mapping) else part(config, known)
        return found

    def keys(self, model: ModelSpec) -> Keys:
        return {name: key for part in self.parts for name, key in keys_of(part, model).items()}

    def spelled(self, **names: str) -> Table:
        """The table with other names for some of its keys."""
        return self._changed("names", names)

    def by_default(self, **values: Any) -> Table:
        """The table with other defaults of some of its keys."""
        return self._changed("default", values)

    def _changed(self, name: str, values: Mapping[str, Any]) -> Table:
        parts = list(self.parts)
        for i, part in enumerate(parts):
            if isinstance(part, Key) and part.names.split()[0] in values:
                parts[i] = replace(part, **{name: values[part.names.split()[0]]})
        return Table(*parts)


def nested(fields: Mapping[str, Any]) -> Fields:
    """Fields with dotted names as inner objects; those with an underscore were for later parts."""
    found: Fields = {}
    for name, value in fields.items():
        outer, _, inner = name.partition(".")
        if inner:
            found.setdefault(outer, {})[inner] = value
        elif not name.startswith("_"):
            found[name] = value
    return found


def is_like(mixer: Mapping[str, Any] | Block, block: Sublayer) -> bool:
    """Whether a block of a model is one that a table describes, by its kind and its reach."""
    options = {*mixer} if isinstance(mixer, Mapping) else mixer.options
    kind = mixer["kind"] if isinstance(mixer, Mapping) else mixer.kind
    reach = ((getattr(block, name, None), name in options) for name in ("window", "chunk"))
    return block.kind == kind and all(bool(value) == has for value, has in reach)


def blocks_of(model: ModelSpec) -> Iterator[Sublayer]:
    """The blocks of a model's layers, branches of parallel blocks included, each kind once."""
    for kind in layers_of(model).kinds:
        for block in kind.sublayers:
            yield from (block, *getattr(block, "branches", ()))


class Block:
    """A block of some layers and the keys of its fields; rows are as in a table."""

    def __init__(self, kind: str, *rows: Part) -> None:
        self.kind, self.table, self.spec = kind, Table(*rows), SPEC_OF[kind]
        named = (row.fields.split() if isinstance(row, Key) else row for row in self.table.parts)
        self.options = {name for row in named if not callable(row) for name in row}

    def __call__(self, config: Config, fields: Fields) -> Fields:
        return nested({"kind": self.kind, **self.table(config, fields, self.spec)})

    def keys(self, model: ModelSpec) -> Keys:
        """The keys of the first such block of a model."""
        block = next((one for one in blocks_of(model) if is_like(self, one)), None)
        if block is None:
            raise NotWritten
        return {
            name: value for row in self.table.parts if isinstance(row, Key)
            for name, value in row.keys(block).items()
        }  # fmt: skip


@dataclass(frozen=True)
class Family:
    """The table of a family, its own defaults of keys, and the architectures built from it."""

    architectures: tuple[str, ...]
    table: Table
    defaults: Mapping[str, Any]

    def read(self, config: Config) -> Fields:
        """The fields of the model that a config describes."""
        config.defaults = self.defaults
        return nested(self.table(config, {}))

    def keys(self, model: ModelSpec) -> Keys:
        """The keys of a config.json for a model; none where a part of the family is missing."""
        try:
            return self.table.keys(model)
        except NotWritten:
            return {}


def family(architectures: str, *parts: Part | Table, **defaults: Any) -> Family:
    """A family with this table; defaults: of keys, where they differ from those of the rows."""
    return Family(tuple(architectures.split()), Table(*parts), defaults)
