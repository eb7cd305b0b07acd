"""The calls of a NeMo 2 script: the recipe that it takes, or the parts that it trains with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from planner.frameworks.python.static_evaluation import Program
from planner.frameworks.python.static_values import Call, Unknown
from planner.frameworks.read_results import Unreadable

TITLE = "NeMo 2"
FUNCTIONS = ("pretrain_recipe", "finetune_recipe")
# Functions of nemo.collections.llm.api that train what they are handed.
_API = ("train", "pretrain", "finetune")
OVERLAP = "MegatronCommOverlapCallback"


class Followed(Program):
    """Evaluates a file statically, with calls of its own functions and added callbacks."""

    def statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))) if (
                name in self.functions or name in _API
            ):
                self.value(node.value, scope)
            case ast.If(test=test, body=body) if "__name__" in ast.unparse(test):
                self.body(body, scope)
            case _:
                super().statement(node, scope)

    def extend(self, target: ast.expr, verb: str, one: ast.expr, scope: dict[str, Any]) -> None:
        """Records the callback for overlap if it is added to a recipe's callbacks."""
        owner = self.value(target, scope)
        if not (isinstance(owner, Call) and owner.name == "recipe.trainer.callbacks"):
            super().extend(target, verb, one, scope)
            return
        for added in [self.value(one, scope)] if verb == "append" else self.items(one, scope):
            if isinstance(added, Call) and class_of(added) == OVERLAP:
                owner.set(OVERLAP, added, added.line)


def class_of(call: Call) -> str:
    """The class of run.Config(Class, ...), or of Class(...)."""
    if call.short not in ("run.Config", "run.Partial", "Config", "Partial", "nemo_run.Config"):
        return call.short
    first = call.args[0] if call.args else None
    if isinstance(first, Unknown):
        return first.source.rsplit(".", 1)[-1]
    return first.short if isinstance(first, Call) else str(first)


def last_made(text: str, file: str) -> Call:
    """The last recipe of a file, or the last call that trains without one.  Raises Unreadable."""
    made: list[Call] = []

    def library(call: Call) -> Any:
        if call.short not in FUNCTIONS and not _is_whole(call):
            return call
        said = {} if call.short in FUNCTIONS else call.kwargs
        one = Call("recipe", call.line, kwargs=dict(said), lines=dict(call.lines))
        one.args = (call,)
        made.append(one)
        return one

    program = Followed(text, file, library, section)
    # Functions without arguments come first: those of others are in no file.
    functions = sorted(program.functions.values(), key=lambda one: _required(one) > 0)
    for function in functions:
        if not made:
            program.invoke(function, [], {})
    if not made:
        what = f"no recipe of {TITLE} can be followed in it"
        raise Unreadable(f"{what}: write its function's arguments out", file)
    return made[-1]


def _required(function: ast.FunctionDef) -> int:
    return len(function.args.args) - len(function.args.defaults)


def section(call: Call, name: str) -> Any:
    """A part of a recipe, created when it is first used; None for other objects."""
    if call.name == "recipe" or call.name.startswith("recipe."):
        call.kwargs[name] = Call(f"{call.name}.{name}", call.line)
        return call.kwargs[name]
    return None


def _is_whole(call: Call) -> bool:
    """Whether a call trains what it is handed, without a recipe: llm.train(model, data, ...)."""
    name = class_of(call) if call.args and call.short != class_of(call) else call.name
    own = name.rsplit(".", 1)[-1] in _API and (call.name != name or "llm" in name.split("."))
    return own and isinstance(call.kwargs.get("trainer"), Call)


def leaves(call: Call, path: str) -> Iterator[tuple[str, Any, int]]:
    """The values set below a recipe, by path; those of one owner in the order of the file."""
    for name, value in call.kwargs.items():
        key, line = f"{path}{name}", call.lines.get(name, call.line)
        if isinstance(value, Call) and value.name == f"recipe.{key}":
            yield from leaves(value, f"{key}.")
        else:
            yield key, value, line
