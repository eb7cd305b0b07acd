"""Reads a Python file that takes a public recipe of Megatron-Bridge and changes some of it.

The file is evaluated statically, never run (planner/frameworks/python/static_evaluation.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.frameworks.launch_files import CONFIG, GivenValues
from planner.frameworks.megatron_bridge import recipes
from planner.frameworks.megatron_bridge.attributes import RECIPE_OVERRIDES, SECTIONS, SHAPES
from planner.frameworks.megatron_bridge.recipes import Recipe
from planner.frameworks.python.static_evaluation import Program
from planner.frameworks.python.static_values import Call, Unknown
from planner.frameworks.read_results import StatedValue, Unreadable

CONTAINER = "ConfigContainer"
_TAKES = re.compile(r"from megatron\.bridge\.(recipes[\w.]*) import (\w+)")
_KNOWN = "recipes have their model in their names, as llama3_8b_pretrain_config; give one of them"
STARTS = ("pretrain", "finetune")
_SHAPING = frozenset(f"model.{name}" for name in (*SHAPES, *RECIPE_OVERRIDES))
_SHOWS = ("print", "info", "debug", "pprint")
_READ = (*SECTIONS, "mixed_precision", "dataset", "tokenizer")


def is_one(files: Mapping[str, str]) -> bool:
    """Whether some Python file imports a recipe of Bridge."""
    return _file(files) is not None


def _file(files: Mapping[str, str]) -> str | None:
    named = (name for name, text in files.items() if name.endswith(".py") and _imports(text))
    return next(named, None)


def _imports(text: str) -> bool:
    return "megatron.bridge" in text and "_pretrain_" in text and "_config" in text


def recipe_and_settings(
    files: Mapping[str, str], given: GivenValues
) -> tuple[Recipe, dict[str, StatedValue], str]:
    """The recipe, the settings that the file overrides, and the file's name.  Raises Unreadable."""
    file = _file(files)
    assert file is not None
    made = _containers(files[file], file)
    wanted = given.values.get(CONFIG, "")
    if wanted and wanted not in made:
        known = ", ".join(made) or "none"
        raise Unreadable(f"there is no function {wanted[:80]} that sets a recipe ({known})", file)
    if not made:
        taken = ", ".join(f"{name} of {path}" for path, name in _TAKES.findall(files[file])[:3])
        raise Unreadable(f"{taken or 'what it starts'} is no recipe that is known: {_KNOWN}", file)
    chosen = [made[wanted]] if wanted else _distinct(made)
    if len(chosen) != 1:
        known = ", ".join(made) or "none"
        raise Unreadable(f"which function is the recipe? ({known}); give --config", file)
    container = chosen[0]
    place = StatedValue(None, file, container.line)
    recipe = recipes.find(str(container.args[0]), place.file, place.line)
    return recipe, dict(_set(container, file)), file


class _Followed(Program):
    """Evaluates a file statically, with calls of its own functions and of those in STARTS."""

    def statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            super().statement(node, scope)
            return
        name = ast.unparse(node.value.func).rsplit(".", 1)[-1]
        if name in self.functions or name in STARTS:
            self.value(node.value, scope)
            return
        words = [*node.value.args, *(one.value for one in node.value.keywords)]
        for one in words:
            if name in _SHOWS or not _is_recipe_part(self.value(one, scope)):
                continue
            text = f"`{ast.unparse(node)[:100]}` may change the recipe and is not in the file"
            raise Unreadable(text, self.file, node.lineno)


def _is_recipe_part(value: Any) -> bool:
    """Whether a value is a recipe, or a section of one."""
    return _is_container(value) or (isinstance(value, Call) and value.name in _READ)


def _distinct(made: Mapping[str, Call]) -> list[Call]:
    found: list[Call] = []
    for one in made.values():
        if not any(one is other for other in found):
            found.append(one)
    return found


def _containers(text: str, file: str) -> dict[str, Call]:
    """The recipes by name: those that functions return or start, and those in global variables."""
    started: list[Call] = []

    def library(call: Call) -> Any:
        if call.short in STARTS:
            words = (*call.args, *call.kwargs.values())
            started.extend(one for one in words if _is_container(one))
            return call
        known = call.short in recipes.document()["recipes"]
        known = known or call.short in recipes.document()["aliases"]
        return _container(call, file) if known else call

    program = _Followed(text, file, library, _section)
    made = {name: one for name, one in program.globals.items() if _is_container(one)}
    for one in started:
        made.setdefault("pretrain", one)
    for name, function in program.functions.items():
        if function.args.args or function.args.kwonlyargs:
            continue
        started.clear()
        returned = program.call(name)
        for one in [returned, *started]:
            if _is_container(one):
                made[name] = one
    return made


def _is_container(value: Any) -> bool:
    return isinstance(value, Call) and value.name == CONTAINER


def _container(call: Call, file: str) -> Call:
    """The container that a call of a public recipe returns; it records what is set on it."""
    if call.args or call.kwargs:
        shown = ", ".join(call.kwargs) or "its arguments"
        text = f"{call.short}({shown}=...): recipes take no arguments; set the container's fields"
        raise Unreadable(text, file, call.line)
    made = Call(CONTAINER, call.line)
    made.args = (call.short,)
    return made


def _section(call: Call, name: str) -> Any:
    """Creates a section of a container when it is first used; None for other objects."""
    if _is_container(call):
        call.kwargs[name] = Call(name, call.line)
        return call.kwargs[name]
    return None


def _set(container: Call, file: str) -> Iterator[tuple[str, StatedValue]]:
    """Every field that the file sets, with its line.  Raises Unreadable."""
    for section, owner in container.kwargs.items():
        line = container.lines.get(section, 0)
        if section not in _READ:
            continue
        replaced = not (isinstance(owner, Call) and owner.name == section)
        if section == "model" and replaced:
            text = "the whole model is replaced: give it (--model) and its parallelism as fields"
            raise Unreadable(text, file, line)
        if replaced and section in ("mixed_precision", "comm_overlap"):
            yield (
                section,
                StatedValue(owner.short if isinstance(owner, Call) else owner, file, line),
            )
        if not isinstance(owner, Call):
            continue
        for name, value in owner.kwargs.items():
            key, place = f"{section}.{name}", owner.lines.get(name, line)
            if isinstance(value, Unknown) and key not in recipes.relevant() | _SHAPING:
                continue
            yield key, StatedValue(_plain(value, key, file), file, place)


def _plain(value: Any, name: str, file: str) -> Any:
    if isinstance(value, Unknown):
        text = f"{name} is `{value.source[:80]}`, which the file does not say: write the value out"
        raise Unreadable(text, file, value.line)
    if isinstance(value, Call):
        return value.short
    return list(value) if isinstance(value, tuple) else value
