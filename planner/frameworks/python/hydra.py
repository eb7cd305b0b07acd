"""Hydra's composition of a program's configuration: its YAML, defaults lists, and overrides.

As hydra 1.3 composes: the options of `hydra.main`, `--config-name`, `group=option`, `a.b=c`,
`+a.b=c`, `~a.b`, and `${a.b}` of OmegaConf.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.frameworks import yaml_files
from planner.frameworks.read_results import Unreadable

YAML = (".yaml", ".yml")
_MAIN = re.compile(r"(hydra\.)?main")
_OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w./@-]*)(?:=(.*))?", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_NAMED = re.compile(r"(?:--config[-_]name|-cn)(?:=(.*))?")
_ROW = re.compile(r"\s*-\s*(?:override\s+)?/?([\w./-]+)(?:\s*:\s*([\w./-]+))?\s*")
_DEEPEST = 16


def options(node: ast.FunctionDef) -> dict[str, str] | None:
    """The arguments of a function's `hydra.main`; None for a function without one."""
    for one in node.decorator_list:
        if isinstance(one, ast.Call) and _MAIN.fullmatch(ast.unparse(one.func)):
            constants = ((word.arg, word.value) for word in one.keywords)
            return {name: str(value.value) for name, value in constants
                    if name and isinstance(value, ast.Constant)}  # fmt: skip
    return None


def named(text: str) -> Iterator[str]:
    """The files that a program's `hydra.main`, or a YAML's defaults list, may name."""
    for call in re.findall(r"@(?:hydra\.)?main\(([^()]*)\)", text):
        said = dict(re.findall(r"config_(path|name)\s*=\s*[\"']([^\"']+)", call))
        if "name" in said:
            yield f"{said.get('path', '.')}/{said['name'].removesuffix('.yaml')}.yaml"
    block = re.search(r"^defaults:[ \t]*\n((?:[ \t]*(?:-.*|#.*)?\n)+)", text, re.MULTILINE)
    for row in block[1].splitlines() if block else ():
        if found := re.fullmatch(
            r"\s*-\s*(?:override\s+)?/?([\w./-]+)(?:\s*:\s*([\w./-]+))?\s*", row
        ):
            yield f"{found[1]}/{found[2]}.yaml" if found[2] else f"{found[1]}.yaml"


def in_groups(words: Sequence[str], folder: str = "") -> Iterator[str]:
    """The files that words of a command line may choose: `model=llama`, `--config-name x`."""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if found := _NAMED.fullmatch(word):
            yield f"{folder}/{(found[1] or after).removesuffix('.yaml')}.yaml".lstrip("/")
        elif re.fullmatch(r"\+?[\w/]+=[\w./-]+", word):
            yield word.lstrip("+").replace("=", "/") + ".yaml"


def composed(files: Mapping[str, str], name: str) -> dict[str, Any]:
    """The keys of a YAML and of the files that its defaults list names; raises Unreadable."""
    own = yaml_files.read(files[name], name).values
    if not isinstance(own.get("defaults"), list):
        return dict(own)
    tree = Composition(files, ()).composed(name.rpartition(".")[0], "", 0)
    return {key: _resolved(one, tree, 0) for key, one in tree.items()}


class Composition:
    """The configuration of a program among the files for the words of its command line."""

    def __init__(self, files: Mapping[str, str], words: Sequence[str]) -> None:
        self.files, self.words = files, words
        self.chosen: dict[str, str] = {}
        self.missing: dict[str, None] = {}

    def of_main(self, main: Mapping[str, str]) -> dict[str, Any] | None:
        """The configuration that a function with these arguments of hydra.main is given."""
        name = main.get("config_name", "")
        for word, after in zip(self.words, [*self.words[1:], ""], strict=False):
            if found := _NAMED.fullmatch(word):
                name = found[1] or after
        if not name or name == "None":
            return None
        overrides = [
            one for one in map(_OVERRIDE.fullmatch, self.words) if one and one[3] is not None
        ]
        self.chosen = {one[2].partition("@")[0]: one[3] for one in overrides if "." not in one[2]}
        tree = self.composed(name, "", 0)
        for one in overrides:
            if not self._chooses(one[2], one[3]):
                _set(tree, one[2], _plain(one[3]))
        return {key: _resolved(one, tree, 0) for key, one in tree.items()}

    def _chooses(self, key: str, option: str) -> bool:
        return self._file(f"{key.partition('@')[0]}/{option}") is not None

    def composed(self, name: str, group: str, depth: int) -> dict[str, Any]:
        """A YAML with all that its defaults list names."""
        file = self._file(name)
        if file is None or depth > _DEEPEST:
            self.missing[f"{name}.yaml"] = None
            return {}
        values = dict(yaml_files.read(self.files[file], file).values)
        rows = values.pop("defaults", None) or ["_self_"]
        tree = dict[str, Any]()
        for row in rows if isinstance(rows, list) else ():
            _merge(tree, values if row == "_self_" else self._of_row(row, group, depth))
        for path, option in self.chosen.items() if not depth else ():
            if path not in tree and "/" not in path and self._chooses(path, option):
                _merge(tree, {path: self.composed(f"{path}/{option}", path, depth + 1)})
        if "_self_" not in rows:
            _merge(tree, values)
        return tree

    def _of_row(self, row: Any, group: str, depth: int) -> dict[str, Any]:
        """What one entry of a defaults list of a group adds to it."""
        tree = dict[str, Any]()
        for key, option in _choices(row):
            path = f"{group}/{key}".strip("/")
            chosen = self.chosen.get(path, option) if key else option
            if chosen in ("null", "None", ""):
                continue
            part = self.composed(f"{path}/{chosen}".strip("/"), path, depth + 1)
            for name in reversed(key.split("/") if key else []):
                part = {name: part}
            _merge(tree, part)
        return tree

    def _file(self, name: str) -> str | None:
        """The YAML of that name, by as many of its folders as are known."""
        wanted = name.removesuffix(".yaml").strip("/")
        known = [one for one in self.files if one.endswith(YAML)]
        for tail in (wanted, wanted.rsplit("/", 1)[-1]):
            for one in known:
                if f"/{one.rpartition('.')[0]}".endswith(f"/{tail}"):
                    return one
        return None


def _choices(row: Any) -> Iterator[tuple[str, str]]:
    """Group and option of each entry of a defaults list; a group of "" for a file beside."""
    if isinstance(row, str):
        yield "", row
    elif isinstance(row, dict):
        for key, option in row.items():
            group = re.sub(r"^(override|optional)\s+", "", str(key)).partition("@")[0].strip("/")
            if group.startswith("hydra"):
                continue
            for one in option if isinstance(option, list) else [option]:
                yield group, str(one)


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, one in other.items():
        held = tree.get(key)
        if isinstance(held, dict) and isinstance(one, dict):
            _merge(held, one)
        else:
            tree[key] = dict(one) if isinstance(one, dict) else one


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        inner = tree.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        tree = inner
    tree[last] = value


def _plain(text: str) -> Any:
    """A value as an override writes it."""
    try:
        return yaml_files.read(f"value: {text}", "overrides").values["value"]
    except (Unreadable, KeyError):
        return text.strip("\"'")


def _resolved(value: Any, tree: Mapping[str, Any], depth: int) -> Any:
    """A value with `${a.b}` as OmegaConf resolves it; what is not there stays as written."""
    if depth > _DEEPEST:
        return value
    if isinstance(value, dict):
        return {key: _resolved(one, tree, depth + 1) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    if (found := _REFERENCE.fullmatch(value)) is not None:
        held = _at(tree, found[1])
        return value if held is None else _resolved(held, tree, depth + 1)
    return _REFERENCE.sub(lambda one: str(_resolved(one[0], tree, depth + 1)), value)


def _at(tree: Mapping[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node
