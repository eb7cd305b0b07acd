"""A row for each option of Megatron-LM: what it says, how that is spelled, and how it is read.

A row with a codec is written and read from that codec alone.  The value of any other option depends
on several fields, or is not read back as it was written: flags.py writes it, the readers read it.
The kinds of values, and the releases that have an option, are in arguments.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.frameworks.arguments import Arguments
from planner.frameworks.base import Row

# What a launch says: the records that hold its fields, by name; None: it has no such record.
Records = Mapping[str, Any]


@dataclass(frozen=True)
class Codec:
    """How an option says a field.

    spell: from the field to the option's value; True for a switch, None to leave the option out.
    read: from the options, the option's name and the value without it to the field.
    usual: the field without the option, or a function that makes it from the others of its record.
    """

    spell: Callable[[Any], object]
    read: Callable[[Arguments, str, Any], Any]
    usual: Any = None


def _same(value: Any) -> object:
    return value


def whole(usual: int | Callable[[Mapping[str, Any]], int] = 1) -> Codec:
    """A whole number of at least 1."""
    return Codec(_same, Arguments.positive, usual)


def share(usual: float) -> Codec:
    """A number of at least 0 and below 1."""
    return Codec(_same, Arguments.share, usual)


def named(words: Mapping[Any, str], usual: Any) -> Codec:
    """One of some names, each of which has a word; `usual` for any other word."""
    values = {word: value for value, word in words.items()}
    return Codec(
        lambda value: words[value],
        lambda args, name, usual: values.get(args.text(name), usual),
        usual,
    )


def switch(off: Any = False, on: Any = True) -> Codec:
    """A switch for a field with two values."""
    return Codec(
        lambda value: True if value == on else None,
        lambda args, name, usual: on if args.has(name) else usual,
        off,
    )


def _positive(args: Arguments, name: str, usual: None) -> float | None:
    value = args.number(name)
    return value if value > 0 else None


# The field is None without the option.
OPTIONAL_WHOLE = Codec(
    _same, lambda args, name, usual: args.positive(name) if args.has(name) else None
)
NUMBER = Codec(_same, _positive)
WHOLE_NUMBER = Codec(lambda value: int(value) if value == int(value) else None, _positive)
# The field is 0 or None without the option.
COUNT = Codec(lambda value: value or None, Arguments.integer, 0)
OPTIONAL_COUNT = Codec(_same, lambda args, name, usual: args.integer(name) or None)


@dataclass(frozen=True)
class Option:
    """An option of Megatron-LM.

    field: the record and the field that it says alone; no field behind the record: it has the value
    `codec.usual` in every launch with the record.
    says: the fields of a plan that it says together with other options.
    bridge: Megatron-Bridge's settings with semicolons between them, each `section.name` or
    `section.name=source`, where {} is the option's text, {list} a list of its words, {slashes} the
    number of slashes in it and {dtype} torch's name of a type; empty: none; None: the attribute in
    the section of the row's group.
    attribute: the attribute that the parser sets, if it does not have the option's own name.
    off: whether a switch sets its attribute to false; --no-... does that too.
    numbers: whether its text is a pair of numbers or a list with one per layer.
    when: whether a launch that has the record is given the option.
    """

    name: str
    why: str = ""
    field: str = ""
    codec: Codec | None = None
    bridge: str | None = None
    says: tuple[str, ...] = ()
    attribute: str = ""
    off: bool = False
    numbers: bool = False
    when: Callable[[Records], object] = lambda records: True
    group: str = ""
    section: str = ""

    @property
    def record(self) -> str:
        return self.field.partition(".")[0]

    @property
    def own(self) -> str:
        """The name of the field in its record."""
        return self.field.partition(".")[2]

    @property
    def fields_of_plan(self) -> tuple[str, ...]:
        """The fields of a plan that it says, alone or with others."""
        return (*((self.own,) if self.record in PLANS and self.own else ()), *self.says)


PLANS = ("plan", "expert_plan")


def alone(name: str, field: str, codec: Codec, why: str, **more: Any) -> Option:
    """An option that says one field."""
    return Option(name, why, field, codec, **more)


def always(name: str, record: str, value: object, why: str, **more: Any) -> Option:
    """An option that every launch with the record has; a switch if its value is True."""
    codec = Codec(_same, lambda args, one, usual: args.has(one), value)
    return Option(name, why, f"{record}.", codec, **more)


def computed(name: str, *plan_fields: str, **more: Any) -> Option:
    """An option whose value or presence depends on several fields."""
    return Option(name, says=plan_fields, **more)


def grouped(group: str, section: str, *rows: Option | str) -> Iterator[Option]:
    """The rows of one group of the script, and of one section of Megatron-Bridge's settings.

    A name alone is a computed option.
    """
    for row in rows:
        one = computed(row) if isinstance(row, str) else row
        yield replace(one, group=group, section=section)


def spelled(rows: Iterable[Option], records: Records) -> Iterator[tuple[Option, object]]:
    """The rows with a codec that a launch is given, with the value of each."""
    for row in rows:
        if row.codec is None:
            continue
        record = records[row.record]
        if record is None or not row.when(records):
            continue
        value = getattr(record, row.own) if row.own else row.codec.usual
        if value is not None and (text := row.codec.spell(value)) is not None:
            yield row, text


def as_row(option: Option, value: object) -> Row:
    """The option as a writer yields it."""
    return (option.name, option.why) if value is True else (option.name, value, option.why)


def rows_of(options: Iterable[Option], records: Records) -> Iterator[Row]:
    """The rows with a codec as a writer yields them."""
    return (as_row(*one) for one in spelled(options, records))


def read(rows: Iterable[Option], args: Arguments, record: str, **usual: Any) -> dict[str, Any]:
    """The fields of a record.

    usual: fields without their options, in place of those of the rows.
    """
    found: dict[str, Any] = {}
    codecs = [(row, row.codec) for row in rows if row.codec is not None and row.record == record]
    defaults = {row.own: usual.get(row.own, codec.usual) for row, codec in codecs}
    for row, codec in sorted(codecs, key=lambda one: callable(defaults[one[0].own])):
        default = defaults[row.own]
        value = default(found) if callable(default) else default
        found[row.own] = codec.read(args, row.name, value)
    found.pop("", None)
    return found
