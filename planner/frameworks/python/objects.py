"""Classes, objects and functions as values, and the expressions that a script has beside."""

from __future__ import annotations

import ast
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from planner.frameworks.python import texts
from planner.frameworks.python.expressions import MAX_ITEMS
from planner.frameworks.python.static_evaluation import MAX_DEPTH, Program, Return
from planner.frameworks.python.static_values import Call, Class, Function, Instance, Unknown, Value

# How often a function may stand inside itself, as one that walks through a configuration does.
_MOST_INSIDE = 4
_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "tuple": tuple,
          "dict": dict, "Mapping": dict, "DictConfig": dict, "ListConfig": list}  # fmt: skip
_PROPERTIES = {"property", "cached_property", "functools.cached_property"}


class Objects(Program):
    """A program whose classes are followed.

    active: the functions that are being followed; reached: those that have been.
    seen: is told of each object of a class of the file.
    """

    active: list[ast.FunctionDef]
    reached: set[int]
    seen: Callable[[Call], None]

    @abstractmethod
    def observed(self, call: Call) -> Value:
        """The value of a call of a library."""

    def statement(self, node: ast.stmt, scope: dict[str, Value]) -> None:
        match node:
            case ast.FunctionDef():
                scope[node.name] = Function(node, scope)
            case ast.ClassDef():
                scope[node.name] = self._defined(node, scope)
            case ast.Raise():
                raise Return(Unknown("raise", node.lineno))
            case _:
                super().statement(node, scope)

    # Classes and functions.

    def _defined(self, node: ast.ClassDef, scope: dict[str, Value]) -> Class:
        """A class, with the attributes of those of the file that it is derived from."""
        attributes: dict[str, Value] = {}
        methods: dict[str, Function] = {}
        bases: list[str] = []
        for base in (self.value(one, scope) for one in node.bases):
            if isinstance(base, Class):
                attributes |= base.attributes
                methods |= base.methods
                bases += base.bases
            elif isinstance(base, Call):
                bases.append(base.name)
        for statement in node.body:
            match statement:
                case ast.FunctionDef():
                    methods[statement.name] = Function(statement, scope)
                case ast.AnnAssign(target=ast.Name(id=name), value=None):
                    attributes.setdefault(name, Unknown(f"{node.name}.{name}", statement.lineno))
                case ast.Assign() | ast.AnnAssign():
                    self.statement(statement, inner := {**scope, **attributes})
                    attributes |= {
                        name: inner[name] for name in _stored(statement) if name in inner
                    }
        made = {name: self._default(one) for name, one in attributes.items()}
        return Class(node.name, node.lineno, tuple(bases), made, methods)

    def _default(self, value: Value) -> Value:
        """An attribute's value: what its default_factory makes, if it has one."""
        makes = isinstance(value, Function) and value.node.name == "lambda"
        return self.run(value, [], {}) if makes and not value.node.args.args else value

    def construct(self, kind: Class, call: Call) -> Instance:
        """An object of a class: its fields by position and by name, then its __init__."""
        made = Instance(kind.name, call.line, kwargs=dict(kind.attributes), kind=kind)
        if (start := kind.methods.get("__init__")) is not None:
            self.run(Function(start.node, start.scope, made), list(call.args), call.kwargs)
            if kind.bases:  # a library's __init__ takes what is handed on to it
                made.args = made.args or call.args
                made.kwargs = {**call.kwargs, **made.kwargs}
            return made
        made.kwargs.update(zip(kind.attributes, call.args, strict=False))
        made.kwargs |= call.kwargs
        made.lines |= call.lines
        if (after := kind.methods.get("__post_init__")) is not None:
            self.run(Function(after.node, after.scope, made), [], {})
        return made

    def run(self, function: Function, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
        """The return value of a function; unknown where it calls itself too often."""
        node = function.node
        self.reached.add(id(node))
        if self.active.count(node) >= _MOST_INSIDE or len(self.active) >= MAX_DEPTH // 2:
            return Unknown(node.name, node.lineno)
        static = "staticmethod" in _decorators(node)
        bound = [] if function.bound is None or static else [function.bound]
        self.active.append(node)
        try:
            around = None if function.scope is self.globals else function.scope
            return self.invoke(node, [*bound, *args], dict(kwargs), around)
        finally:
            self.active.pop()

    # Expressions.

    def value(self, node: ast.expr, scope: dict[str, Value]) -> Value:
        match node:
            case ast.Lambda(args=args, body=body):
                self.charge(node)
                returns = ast.copy_location(ast.Return(body), node)
                whole = ast.FunctionDef("lambda", args, [returns], [])
                return Function(ast.copy_location(whole, node), scope)
            case ast.Await(value=inner):
                return self.value(inner, scope)
            case ast.NamedExpr(target=target, value=inner):
                found = self.value(inner, scope)
                self.assign(target, found, scope)
                return found
            case ast.DictComp(key=key, value=value, generators=[one]):
                pair = ast.copy_location(ast.Tuple([key, value], ast.Load()), node)
                pairs = list(self.comprehension(pair, one, scope))
                if not pairs and isinstance(self.value(one.iter, scope), Unknown | Call):
                    return self.unknown(node)
                return {k: v for k, v in pairs if isinstance(k, str | int)}
        return super().value(node, scope)

    def binary(self, node: ast.expr, left: Value, op: ast.operator, right: Value) -> Value:
        if isinstance(op, ast.Div) and isinstance(right, str):
            return texts.joined_path(left if isinstance(left, str) else texts.SOME_FOLDER, right)
        return super().binary(node, left, op, right)

    def comprehension(
        self, element: ast.expr, clause: ast.comprehension, scope: dict[str, Value]
    ) -> Iterator[Value]:
        """The items; over what is unknown none, after the calls of one are followed."""
        found = self.value(clause.iter, scope)
        if isinstance(found, list | tuple | range | dict):
            yield from super().comprehension(element, clause, scope)
            return
        inner = dict(scope)
        self.assign(clause.target, self.unknown(clause.iter), inner)
        self.value(element, inner)

    def items(self, node: ast.expr, scope: dict[str, Value]) -> list[Value]:
        found = self.value(node, scope)
        if isinstance(found, dict):
            found = list(found)
        short = list(found[:MAX_ITEMS]) if isinstance(found, list | tuple | range) else []
        self.charge(node, len(short))
        return short

    def applied(self, node: ast.expr, apply: Callable[..., Value], *values: Value) -> Value:
        if values and all(isinstance(one, Call) and one.owner is ... for one in values):
            names = [one.name.rsplit(".", 1)[-1] for one in values]  # torch.bfloat16
            return apply(*names) if apply in (operator.eq, operator.ne) else self.unknown(node)
        identity = apply in (operator.is_, operator.is_not)
        if not identity and any(isinstance(one, Call) for one in values):
            return self.unknown(node)
        return super().applied(node, apply, *values)

    def attribute(self, node: ast.expr, owner: Value, name: str) -> Value:
        match owner:
            case Instance() if name not in owner.kwargs and owner.kind is not None:
                found = _of_class(owner.kind, name, owner)
                if isinstance(found, Function) and _PROPERTIES & _decorators(found.node):
                    return self.run(found, [], {})
                return self.unknown(node) if found is None else found
            case Class():
                found = _of_class(owner, name, None)
                return self.unknown(node) if found is None else found
            case dict() if name in owner:  # OmegaConf's
                return owner[name]
            case Call() if name == "__dict__":
                return owner.kwargs
        return super().attribute(node, owner, name)

    # Calls.

    def called(self, node: ast.Call, scope: dict[str, Value]) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id not in scope:
            own = self.globals.get(node.func.id)
            if own is None and node.func.id in self.functions:  # defined below its call
                own = Function(self.functions[node.func.id], self.globals)
            if isinstance(own, Function | Class):
                return self._of_own(own, self.with_arguments(node, scope))
        return super().called(node, scope)

    def by_name(self, node: ast.Call, call: Call, name: str, scope: dict[str, Value]) -> Value:
        found = self.name(node.func, name, scope)
        if isinstance(found, Function | Class):
            return self._of_own(found, call)
        if isinstance(found, Call) and found.owner is not ...:
            call.name, call.owner = name, found
            return self.observed(call)
        if (made := texts.of_iterables(name, call)) is not None:
            self.charge(node, len(made))
            return made
        if name == "isinstance" and (known := _is_of(node, call)) is not None:
            return known
        if name == "dict" and len(call.args) == 1 and isinstance(call.args[0], dict):
            return {**call.args[0], **call.kwargs}
        return super().by_name(node, call, name, scope)

    def _of_own(self, found: Function | Class, call: Call) -> Value:
        """The value of a call of a function or a class of the file."""
        if isinstance(found, Function):
            return self.run(found, list(call.args), call.kwargs)
        made = self.construct(found, call)
        self.seen(made)
        return made

    def method(self, node: ast.Call, call: Call, owner: Value, name: str) -> Value:
        if isinstance(owner, Instance | Class):
            found = self.attribute(node.func, owner, name)
            if isinstance(found, Function | Class):
                return self._of_own(found, call)
        if isinstance(owner, str | dict | list):
            known = texts.method(owner, name, call)
            return self.unknown(node) if known is None else known
        found = super().method(node, call, owner, name)
        return self.unknown(node) if found is call and name == "get" else found

    def with_arguments(self, node: ast.Call, scope: dict[str, Value]) -> Call:
        call = super().with_arguments(node, scope)
        for word in node.keywords:
            if word.arg is None and not isinstance(self.value(word.value, scope), dict):
                call.set("**", self.unknown(word.value), node.lineno)
        return call


def _is_of(node: ast.Call, call: Call) -> bool | None:
    """Whether a known plain value has one of these plain types; None where that is not known."""
    if len(node.args) != 2 or isinstance(call.args[0], Unknown | Call | Class | Function):
        return None
    asked = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
    names = [ast.unparse(one).rpartition(".")[2] for one in asked]
    if not all(one in _TYPES for one in names):
        return None
    return isinstance(call.args[0], tuple(_TYPES[one] for one in names))


def _decorators(node: ast.FunctionDef) -> set[str]:
    return {ast.unparse(one) for one in node.decorator_list}


def _of_class(kind: Class, name: str, bound: Any) -> Value:
    """A method or an attribute of a class; None without one."""
    if name not in kind.methods:
        return kind.attributes.get(name)
    found = kind.methods[name]
    own = kind if "classmethod" in _decorators(found.node) else bound
    return Function(found.node, found.scope, own)


def _stored(statement: ast.stmt) -> list[str]:
    """The names that a statement assigns to, in their order."""
    match statement:
        case ast.Assign(targets=targets):
            pass
        case ast.AnnAssign(target=target):
            targets = [target]
        case _:
            return []
    names = (one for target in targets for one in ast.walk(target))
    return [one.id for one in names if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
