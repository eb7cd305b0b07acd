"""The options of a Python script: argparse's, and transformers' parser of dataclasses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.frameworks import yaml_files
from planner.frameworks.python.static_values import Call, Class, Instance, Unknown, Value
from planner.frameworks.read_results import Unreadable
from planner.frameworks.training_calls import whole_option

_PARSERS = re.compile(r"(.*\.)?(ArgumentParser|HfArgumentParser|TrlParser|H4ArgumentParser)")
_PARSES = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config",
           "parse", "parse_dict", "parse_yaml_file", "parse_json_file")  # fmt: skip
# Decorators of click and typer: click.command, app.command, click.option.
_COMMANDS = re.compile(r"\.(command|option)$")
_NAME = re.compile(r"--?[A-Za-z][\w-]*")


class Options:
    """The words of a command line, and what a script's parsers make of them.

    are_parsed: whether some parser was asked for them.
    """

    def __init__(self, files: Mapping[str, str], arguments: Sequence[str]) -> None:
        self.files, self.said = files, dict(_pairs(arguments))
        self.rows: dict[int, dict[str, Value]] = {}
        self.declared: dict[int, list[Call]] = {}
        self.are_parsed = False

    @property
    def plain(self) -> dict[str, Value]:
        """The options by name, as the values that they write."""
        return {key: _plain_of(words) for key, words in self.said.items() if key}

    def of_command(self, node: ast.FunctionDef) -> dict[str, Value]:
        """The arguments of a function that click or typer calls; empty for any other."""
        calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
        if not any(_COMMANDS.search(ast.unparse(one.func)) for one in calls):
            return {}
        known = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
        rows = {key: usual for one in calls for key, usual in _usual(one)}
        return {key: one for key, one in {**rows, **self.plain}.items() if key in known}

    def of_method(self, call: Call) -> Value:
        """The value of a method of a parser or of what belongs to one; else the call."""
        parser = _root(call.owner)
        if parser is None:
            return call
        rows = self.rows.setdefault(id(parser), {})
        if call.name == "add_argument":
            self.declared.setdefault(id(parser), []).append(call)
            self.add(rows, call)
        elif call.name == "set_defaults":
            rows |= call.kwargs
        elif call.name in _PARSES:
            return self.parsed(parser, call, rows)
        return call

    def add(self, rows: dict[str, Value], call: Call) -> None:
        """Keeps one option with its value on this command line, or its default."""
        names = _names(call)
        long = next((one for one in names if one.startswith("--")), next(iter(names), ""))
        key = call.kwargs.get("dest", _key(long))
        given = next((self.said[one] for one in map(_key, names) if one in self.said), None)
        if isinstance(key, str):
            rows[key] = _default(call, long) if given is None else _given(call, given)

    def parsed(self, parser: Call, call: Call, rows: dict[str, Value]) -> Value:
        """What a parser returns."""
        self.are_parsed = True
        kinds = parser.args[0] if parser.args else parser.kwargs.get("dataclass_types")
        if kinds is None or isinstance(kinds, str):
            self._abbreviated(parser, rows)
            found = Call("Namespace", call.line, kwargs=rows)
            return (found, []) if call.name == "parse_known_args" else found
        many = kinds if isinstance(kinds, list | tuple) else (kinds,)
        given = {**self.config(), **self.plain}
        given |= {whole_option(key): one for key, one in self.plain.items()}
        if call.name not in _PARSES[:5]:
            given = self.document(next(iter(call.args), next(iter(call.kwargs.values()), None)))
        own = [one for one in many if isinstance(one, Class) and not one.bases]
        left = _without(given, {key for one in own for key in one.attributes})
        return tuple(_instance(one, given if one in own else left, call.line) for one in many)

    def _abbreviated(self, parser: Call, rows: dict[str, Value]) -> None:
        """Keeps options of which the command line has the first letters alone, as argparse does."""
        declared = self.declared.get(id(parser), [])
        whole = {_key(name) for one in declared for name in _names(one)}
        for said, words in (
            list(self.said.items()) if parser.kwargs.get("allow_abbrev", True) else ()
        ):
            meant = [one for one in declared if len(said) > 1 and said not in whole
                     and any(_key(name).startswith(said) for name in _names(one))]  # fmt: skip
            if len(meant) == 1:
                self.said[_key(_names(meant[0])[-1])] = words
                self.add(rows, meant[0])

    def config(self) -> dict[str, Value]:
        """The keys of the YAML that --config names, or that is the only word."""
        words = self.said.get("config") or self.said.get("") or []
        return self.document(words[0] if words else None)

    def document(self, given: Value) -> dict[str, Value]:
        """The keys of a document, or of the YAML or JSON of that name."""
        if isinstance(given, dict):
            return given
        name = str(given).rsplit("/", 1)[-1]
        if not name.endswith((".yaml", ".yml", ".json")) or name not in self.files:
            return {}
        try:
            return dict(yaml_files.read(self.files[name], name).values)
        except Unreadable:
            return {}


def _names(call: Call) -> list[str]:
    """The names of an option that is declared."""
    return [one for one in call.args if isinstance(one, str)]


def _instance(kind: Value, given: Mapping[str, Value], line: int) -> Value:
    """The object that a parser of dataclasses makes of a class."""
    if isinstance(kind, Class):
        own = {key: one for key, one in given.items() if key in kind.attributes or kind.bases}
        return Instance(kind.name, line, kwargs={**kind.attributes, **own}, kind=kind)
    if isinstance(kind, Call):
        return Call(kind.name, line, kwargs=dict(given))
    return Unknown("options", line)


def _default(call: Call, name: str) -> Value:
    """The value of an option that is not given."""
    if "default" in call.kwargs:
        return call.kwargs["default"]
    if call.kwargs.get("action") in ("store_true", "store_false"):
        return call.kwargs["action"] == "store_false"
    asked = call.kwargs.get("required") is True or not name.startswith("-")
    return Unknown(name, call.line) if asked else None


def _given(call: Call, words: list[str]) -> Value:
    """The value of an option with these words."""
    if call.kwargs.get("action") in ("store_true", "store_false"):
        return call.kwargs["action"] == "store_true"
    plain = [_plain(one) for one in words]
    return plain if call.kwargs.get("nargs") in ("+", "*") else _one(plain)


def _root(owner: Value) -> Call | None:
    """The parser that a call's owner is, or a group of it."""
    for _ in range(8):
        if not isinstance(owner, Call):
            return None
        if _PARSERS.fullmatch(owner.name):
            return owner
        owner = owner.owner
    return None


def _key(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The options of a command line with their words; "" for words before the first."""
    name, values = "", list[str]()
    for word in words:
        before, equals, after = word.partition("=")
        if _NAME.fullmatch(before):
            if name or values:
                yield name, values
            name, values = _key(before), [after] if equals else []
        else:
            values.append(word)
    if name or values:
        yield name, values


def _plain(word: str) -> Value:
    """A word as the value that it writes."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word == "None":
        return None
    try:
        return int(word) if re.fullmatch(r"-?\d{1,15}", word, re.ASCII) else float(word)
    except ValueError:
        return Unknown(word, 0) if "$" in word.rstrip("/").rsplit("/", 1)[-1] else word


def _one(values: list[Value]) -> Value:
    return values[0] if values else True


def _plain_of(words: list[str]) -> Any:
    plain = [_plain(one) for one in words]
    return plain if len(plain) > 1 else _one(plain)


def _usual(decorator: ast.Call) -> Iterator[tuple[str, Value]]:
    """The names of an option of click, each with its default."""
    usual = next((word.value for word in decorator.keywords if word.arg == "default"), None)
    if isinstance(usual, ast.Constant):
        words = (word.value for word in decorator.args if isinstance(word, ast.Constant))
        yield from ((_key(word), usual.value) for word in words if isinstance(word, str))


def _without(given: Mapping[str, Value], claimed: set[str]) -> dict[str, Value]:
    return {key: value for key, value in given.items() if key not in claimed}
