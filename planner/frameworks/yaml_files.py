"""YAML configs: writes keys with comments, and reads keys with their lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from planner.documents.loading import parse_text
from planner.documents.problems import RequestError
from planner.frameworks.base import Flag
from planner.frameworks.bash_writer import comment
from planner.frameworks.config_files import not_loaded
from planner.frameworks.read_results import Setting, Unreadable

LONGEST = 10_000  # characters of a value that a setting keeps
_LONGEST_VALUE = 2000  # characters of a value outside a file
_SHORT = 200  # characters of a value that is kept as YAML
# Dotted key (a number stands for a place in a list), value, why.
Row = tuple[str, Any, str]


def scalar(value: Any) -> str:
    """One value as YAML, quoted if YAML could read it as another."""
    short = isinstance(value, str) and len(value) <= _SHORT
    # Of floats that are 0, one has a sign and equals the other.
    plain = short or isinstance(value, int) or (isinstance(value, float) and value != 0.0)
    return _plain_scalar(value) if plain else _scalar(value)


@lru_cache(maxsize=4096, typed=True)
def _plain_scalar(value: str | float) -> str:
    """What configs say again and again; True, 1 and 1.0 are told apart."""
    return _scalar(value)


def _scalar(value: Any) -> str:
    import yaml

    listed = yaml.safe_dump([value], default_flow_style=True, width=10_000)
    return listed.strip()[1:-1]


def flags(group: str, rows: Iterable[Row]) -> tuple[Flag, ...]:
    """The keys as flags of a bundle."""
    return tuple(Flag(name=key, value=scalar(v), why=why, group=group) for key, v, why in rows)


def document(rows: Iterable[Row]) -> str:
    """Nested mappings and lists from dotted keys, each value with its why."""
    tree: dict[str, Any] = {}
    for path, value, why in rows:
        *parents, last = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = f"{scalar(value)}  {comment(why)}"
    return "\n".join(_lines(tree, "")) + "\n"


def _lines(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, child in tree.items():
        if isinstance(child, str):
            yield f"{indent}{key}: {child}"
        elif key.isdigit():
            first, *rest = _lines(child, indent + "  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}{key}:"
            yield from _lines(child, indent + "  ")


@dataclass(frozen=True)
class YamlFile:
    """A YAML file as PyYAML, which frameworks use, loads it, with the line of each key.

    repeated: keys that occur twice; the last of each counts.
    """

    name: str
    values: dict[str, Any]
    lines: Mapping[str, int]
    repeated: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """Warnings about keys that occur twice."""
        return [
            f"{self.name}: {key} occurs twice, the last one counts (line {self.lines.get(key, 0)})"
            for key in self.repeated
        ]

    def settings(self) -> tuple[Setting, ...]:
        """Every value with its dotted key and line, in the order of the file."""
        return tuple(
            Setting(name=path, value=_shown(value), file=self.name, line=self.lines.get(path, 0))
            for path, value in _leaves(self.values, "")
        )


# A value with a placeholder of a template, outside quotes, and a line of its logic.
_PLACEHOLDER = re.compile(
    r"""^([ \t]*(?:-[ \t]+)?(?:[\w.-]+:[ \t]+)?)([^\s#'"][^#'"\n]*?)([ \t]*(?:#.*)?)$""",
    re.MULTILINE,
)
_LOGIC = re.compile(r"^(?=[ \t]*\{%.*%\}[ \t]*$)", re.MULTILINE)


# A place to fill in that YAML takes for a tag: !!CHANGETHIS!!.
_TAG = re.compile(r"""(:[ \t]+)(!+[A-Z_]+!+)([ \t]*(?:#.*)?)$""", re.MULTILINE)


def _as_text(text: str) -> str:
    """A template as YAML: its placeholders are texts, and lines of its logic comments."""
    text = _TAG.sub(r"\1'\2'\3", text)
    if "{{" not in text and "{%" not in text:
        return text
    quoted = _PLACEHOLDER.sub(
        lambda line: f"{line[1]}'{line[2]}'{line[3]}" if "{{" in line[2] else line[0], text
    )
    return _LOGIC.sub("# ", quoted)


def read(text: str, name: str) -> YamlFile:
    """The file, within the limits of planner.documents.loading; raises Unreadable."""
    import yaml

    text = _as_text(text)
    repeated: list[str] = []
    try:
        parse_text(text, repeated)
        values = yaml.load(text, Loader=_loader())
        lines = _positions(text)
    except RequestError as error:
        raise not_loaded(error, name) from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise Unreadable(f"is not YAML: {error}", name, mark.line + 1 if mark else 0) from None
    if not isinstance(values, dict):
        raise Unreadable("must be a mapping of keys to values", name)
    keys = tuple(one.strip("/").replace("/", ".") for one in repeated)
    return YamlFile(name, values, lines, keys)


def value(text: str) -> Any:
    """A value as Hydra and argparse convert it: a number, a bool, a list, None or a text."""
    import yaml

    if len(text) > _LONGEST_VALUE:
        return text[:_LONGEST_VALUE]
    try:
        made = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return made if isinstance(made, int | float | str | bool | list | None) else text


def _loader() -> Any:
    """PyYAML's safe loader, in C where it has been built so: ten times as fast."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _shown(value: Any) -> str:
    return (value if isinstance(value, str) else scalar(value))[:LONGEST]


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Values other than mappings and lists of mappings, with their dotted keys."""
    if isinstance(node, dict) and node:
        children: Iterable[tuple[Any, Any]] = node.items()
    elif isinstance(node, list) and any(isinstance(item, dict) for item in node):
        children = enumerate(node)
    else:
        yield path, node
        return
    for key, child in children:
        yield from _leaves(child, f"{path}.{key}" if path else str(key))


def _positions(text: str) -> dict[str, int]:
    """The line of every dotted key, from 1; keys behind an alias have the alias's line."""
    import yaml

    found: dict[str, int] = {}
    stack: list[list[Any]] = []  # [path, next list index or None, key without value or None]
    for event in yaml.parse(text, Loader=_loader()):
        if isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            stack.pop()
            continue
        if not isinstance(event, yaml.NodeEvent) or event.start_mark is None:
            continue
        path = ""
        if stack:
            top = stack[-1]
            if top[1] is None and top[2] is None:
                top[2] = event.value if isinstance(event, yaml.ScalarEvent) else ""
                path = f"{top[0]}.{top[2]}".lstrip(".")
                found[path] = event.start_mark.line + 1
                continue
            if top[1] is None:
                path, top[2] = f"{top[0]}.{top[2]}".lstrip("."), None
            else:
                path, top[1] = f"{top[0]}.{top[1]}".lstrip("."), top[1] + 1
                found[path] = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            is_list = isinstance(event, yaml.SequenceStartEvent)
            stack.append([path, 0 if is_list else None, None])
    return found
