"""Static evaluation of Python expressions: their values, as far as they are known."""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sized
from dataclasses import replace
from typing import Any

from planner.frameworks.python.static_values import Call, Library, Unknown, Value
from planner.frameworks.read_results import Unreadable

MAX_STEPS = 2_000_000
MAX_ITEMS = 100_000
MAX_NUMBER = 10**18


def _is_short(found: Sized) -> bool:
    """Whether it has at most MAX_ITEMS items; len() of a huge range overflows."""
    return not found[MAX_ITEMS:] if isinstance(found, range) else len(found) <= MAX_ITEMS


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_BUILTINS: dict[str, Callable[..., Any]] = {
    "len": len, "int": int, "float": float, "max": max, "min": min, "list": list, "tuple": tuple,
    "round": round, "str": str, "bool": bool,
}  # fmt: skip
_REPLACES = ("dataclasses.replace", "copy.replace")
_COPIES = (*_REPLACES, "copy.deepcopy", "copy.copy", "typing.cast")


class Expressions(ABC):
    """Evaluates the expressions of one file.

    library: the value of a call that is not evaluated; the call itself if unknown.
    missing: the value of an attribute that a Call was not given.
    """

    def __init__(
        self, file: str, library: Library, missing: Callable[[Call, str], Value] | None
    ) -> None:
        self.file, self.library, self.missing = file, library, missing
        self.steps, self.depth = 0, 0
        self.notes: list[str] = []
        self.functions: dict[str, ast.FunctionDef] = {}
        self.imported: dict[str, str] = {}
        self.globals: dict[str, Value] = {}

    @abstractmethod
    def assign(self, target: ast.expr, value: Value, scope: dict[str, Value]) -> None:
        """Assign a value to a name, an attribute or several of them."""

    @abstractmethod
    def invoke(
        self, function: ast.FunctionDef, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """The return value of a function of the file for these arguments."""

    def note(self, node: ast.AST, text: str) -> None:
        line = f"{self.file}:{getattr(node, 'lineno', 0)}: {text}"
        if line not in self.notes:
            self.notes.append(line)

    def charge(self, node: ast.AST, size: int = 1) -> None:
        self.steps += size
        if self.steps > MAX_STEPS:
            raise Unreadable(
                f"more than {MAX_STEPS} steps to follow", self.file, getattr(node, "lineno", 0)
            )

    def unknown(self, node: ast.expr) -> Unknown:
        return Unknown(ast.unparse(node), node.lineno)

    def value(self, node: ast.expr, scope: dict[str, Value]) -> Value:
        self.charge(node)
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.name(node, name, scope)
            case ast.List(elts=elements):
                return list(self.elements(elements, scope))
            case ast.Tuple(elts=elements):
                return tuple(self.elements(elements, scope))
            case ast.Dict(keys=keys, values=values):
                return self.mapping(keys, values, scope)
            case ast.Attribute(value=inner, attr=name):
                return self.attribute(node, self.value(inner, scope), name)
            case ast.JoinedStr(values=values):
                return self.joined(node, values, scope)
            case (
                ast.ListComp(elt=element, generators=[one])
                | ast.GeneratorExp(elt=element, generators=[one])
            ):
                return list(self.comprehension(element, one, scope))
            case ast.Call():
                return self.called(node, scope)
        return self.operation(node, scope)

    def operation(self, node: ast.expr, scope: dict[str, Value]) -> Value:
        """The value of an operator's expression; Unknown for any other."""
        match node:
            case ast.UnaryOp(op=op, operand=operand):
                return self.unary(node, op, self.value(operand, scope))
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(node, self.value(left, scope), op, self.value(right, scope))
            case ast.BoolOp(op=op, values=values):
                return self.boolean(node, op, values, scope)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                one, other = self.value(left, scope), self.value(right, scope)
                return self.applied(node, _COMPARE[type(op)], one, other)
            case ast.Subscript(value=inner, slice=place):
                one, key = self.value(inner, scope), self.value(place, scope)
                return self.applied(node, operator.getitem, one, key)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                known = self.value(test, scope)
                if not isinstance(known, Unknown | Call):
                    return self.value(body if known else orelse, scope)
        return self.unknown(node)

    def joined(self, node: ast.expr, values: list[ast.expr], scope: dict[str, Value]) -> Value:
        parts = [
            self.value(one.value if isinstance(one, ast.FormattedValue) else one, scope)
            for one in values
        ]
        if not all(isinstance(part, str | int | float) for part in parts):
            return self.unknown(node)
        text = "".join(map(str, parts))
        self.charge(node, len(text))
        return text

    def name(self, node: ast.expr, name: str, scope: dict[str, Value]) -> Value:
        for space in (scope, self.globals):
            if name in space:
                return space[name]
        if name in self.imported:
            return Call(self.imported[name], node.lineno, owner=...)
        return self.unknown(node)

    def elements(self, nodes: list[ast.expr], scope: dict[str, Value]) -> Iterator[Value]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.items(node.value, scope)
            else:
                yield self.value(node, scope)

    def items(self, node: ast.expr, scope: dict[str, Value]) -> list[Value]:
        """The items of an iterable; none if it is unknown or too long."""
        found = self.value(node, scope)
        if isinstance(found, list | tuple | range | dict) and _is_short(found):
            self.charge(node, len(found))
            return list(found)
        self.note(node, f"{ast.unparse(node)} is not known: taken as empty")
        return []

    def mapping(
        self, keys: list[ast.expr | None], values: list[ast.expr], scope: dict[str, Value]
    ) -> dict[Value, Value]:
        result: dict[Value, Value] = {}
        for key, node in zip(keys, values, strict=True):
            found = self.value(node, scope)
            if key is None:
                result.update(found if isinstance(found, dict) else {})
                continue
            name = self.value(key, scope)
            if isinstance(name, str | int):
                result[name] = found
        return result

    def comprehension(
        self, element: ast.expr, clause: ast.comprehension, scope: dict[str, Value]
    ) -> Iterator[Value]:
        for item in self.items(clause.iter, scope):
            inner = dict(scope)
            self.assign(clause.target, item, inner)
            if all(map(_may_hold, (self.value(test, inner) for test in clause.ifs))):
                yield self.value(element, inner)

    def unary(self, node: ast.expr, op: ast.unaryop, value: Value) -> Value:
        if isinstance(op, ast.Not) and not isinstance(value, Unknown | Call):
            return not value
        if isinstance(op, ast.USub) and isinstance(value, int | float):
            return -value
        return self.unknown(node)

    def binary(self, node: ast.expr, left: Value, op: ast.operator, right: Value) -> Value:
        apply = _BINARY.get(type(op))
        if apply is None or not _is_bounded(left, op, right):
            return self.unknown(node)
        result = self.applied(node, apply, left, right)
        if isinstance(result, int | float) and not abs(result) <= MAX_NUMBER:
            return self.unknown(node)
        if isinstance(result, str | list | tuple):
            self.charge(node, len(result))
        return result

    def boolean(
        self, node: ast.expr, op: ast.boolop, values: list[ast.expr], scope: dict[str, Value]
    ) -> Value:
        found: Value = None
        for one in values:
            found = self.value(one, scope)
            if isinstance(found, Unknown | Call):
                return self.unknown(node)
            if bool(found) != isinstance(op, ast.And):
                return found
        return found

    def applied(self, node: ast.expr, apply: Callable[..., Value], *values: Value) -> Value:
        """The result of an operation; Unknown if an operand is unknown or the operation fails."""
        if any(isinstance(value, Unknown) for value in values):
            return self.unknown(node)
        try:
            return apply(*values)
        except (TypeError, ValueError, ArithmeticError, LookupError):
            return self.unknown(node)

    def attribute(self, node: ast.expr, owner: Value, name: str) -> Value:
        if not isinstance(owner, Call):
            return self.unknown(node)
        if owner.owner is ...:  # an imported name, or a name in it
            return Call(f"{owner.name}.{name}", node.lineno, owner=...)
        if name in owner.kwargs:
            return owner.kwargs[name]
        found = self.missing(owner, name) if self.missing else None
        if found is not None:
            owner.set(name, found, owner.line)
            return found
        return self.unknown(node)

    # Calls.

    def called(self, node: ast.Call, scope: dict[str, Value]) -> Value:
        call = self.with_arguments(node, scope)
        match node.func:
            case ast.Name(id=name) if name in self.functions and name not in scope:
                return self.invoke(self.functions[name], list(call.args), call.kwargs)
            case ast.Name(id=name):
                return self.by_name(node, call, name, scope)
            case ast.Attribute(value=inner, attr=name):
                return self.method(node, call, self.value(inner, scope), name)
        return self.unknown(node)

    def by_name(self, node: ast.Call, call: Call, name: str, scope: dict[str, Value]) -> Value:
        """The value of a call of a name that is none of the file's own functions."""
        if (builtin := _builtin(name, call)) is not None:
            return self.evaluated(node, builtin, call.args)
        call.name = self.imported.get(name, name)
        return self.of_library(call)

    def method(self, node: ast.Call, call: Call, owner: Value, name: str) -> Value:
        """The value of a call of an attribute of `owner`."""
        if isinstance(owner, Call) and owner.owner is not ...:
            call.name, call.owner = name, owner
            return self.library(call)
        known = isinstance(owner, Call)
        call.name = f"{owner.name}.{name}" if known else ast.unparse(node.func)
        return self.of_library(call)

    def of_library(self, call: Call) -> Value:
        return self.copied(call) if call.args and call.name in _COPIES else self.library(call)

    def evaluated(
        self, node: ast.expr, builtin: Callable[..., Value], args: tuple[Value, ...]
    ) -> Value:
        """The result of a function of Python itself; Unknown if a call decides it."""
        if any(isinstance(arg, Call) for arg in args):
            return self.unknown(node)
        found = self.applied(node, builtin, *args)
        return self.unknown(node) if isinstance(found, range) and not _is_short(found) else found

    def with_arguments(self, node: ast.Call, scope: dict[str, Value]) -> Call:
        """A call with its arguments, of nothing yet."""
        call = Call("", node.lineno, tuple(self.elements(node.args, scope)))
        for word in node.keywords:
            found = self.value(word.value, scope)
            if word.arg is None:
                call.kwargs.update(found if isinstance(found, dict) else {})
            else:
                call.set(word.arg, found, word.value.lineno)
        return call

    def copied(self, call: Call) -> Value:
        """The argument that a call hands back, with fields replaced if that is what it does."""
        if call.name not in _REPLACES:
            return call.args[-1]
        old = call.args[0]
        if not isinstance(old, Call):
            return old
        kwargs, lines = {**old.kwargs, **call.kwargs}, {**old.lines, **call.lines}
        return replace(old, kwargs=kwargs, lines=lines)


def _is_bounded(left: Value, op: ast.operator, right: Value) -> bool:
    """Whether the result of an operation is small enough to be worked out."""
    sized = [v for v in (left, right) if isinstance(v, str | list | tuple)]
    counts = [v for v in (left, right) if isinstance(v, int)]
    if isinstance(op, ast.Pow):
        return len(counts) == 2 and abs(left) < 1024 and 0 <= right < 64
    if sized and isinstance(op, ast.Mult):
        return len(counts) == 1 and len(sized[0]) * max(counts[0], 0) <= MAX_ITEMS
    return not sized or isinstance(op, ast.Add)


def _builtin(name: str, call: Call) -> Callable[..., Value] | None:
    """The function of Python itself that a call with these arguments evaluates, if any."""
    if name == "range" and call.args and all(isinstance(arg, int) for arg in call.args):
        return range
    if name == "dict" and not call.args:
        return lambda: call.kwargs
    return None if call.kwargs else _BUILTINS.get(name)


def _may_hold(test: Value) -> bool:
    """Whether a filter may let an item through: what is not known is not left out."""
    return isinstance(test, Unknown | Call) or bool(test)
