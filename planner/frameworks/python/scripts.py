"""A Python script as a program that is started: its main path, followed without running it.

More than a configuration's functions: classes of the file, its options and their defaults,
configurations that it opens, modules beside it, and notebooks.  What stays unknown is taken as
false in tests; functions that a call only hands on are followed with unknown arguments.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.frameworks.python.expressions import MAX_ITEMS
from planner.frameworks.python.library import Library, joined_path, of_text
from planner.frameworks.python.notebooks import cells
from planner.frameworks.python.static_evaluation import MAX_DEPTH, Program, Return
from planner.frameworks.python.static_values import Call, Class, Function, Instance, Unknown, Value
from planner.frameworks.read_results import Unreadable

MAX_ROUNDS = 16  # of a loop
MAX_MODULES = 16
_DECORATORS = ("property", "cached_property", "functools.cached_property")
_STARTS = ("main", "train", "run", "run_training", "finetune", "fine_tune", "train_model")


class Script(Program):
    """A script among the files of a launch.

    seen: is told of each call that is not evaluated; arguments: of its command line; environment:
    variables that are known; module: whether it is imported by another.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        name: str,
        seen: Callable[[Call], None],
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        parent: Script | None = None,
    ) -> None:
        self.files, self.seen, self.parent = files, seen, parent
        self.modules: dict[str, Script] = {} if parent is None else parent.modules
        self.active: list[ast.FunctionDef] = [] if parent is None else parent.active
        self.called_ones: set[int] = set() if parent is None else parent.called_ones
        self.known = Library(files, arguments, environment or {})
        if parent is not None:
            self.known = parent.known
            self.modules[name] = self
        module = "__main__" if parent is None else name.rpartition(".")[0]
        super().__init__(files[name], name, self.observed, names={"__name__": module})

    def parsed(self, text: str) -> ast.Module:
        """The statements, those of a notebook with the lines of its file."""
        if not self.file.endswith(".ipynb"):
            tree = ast.parse(text)
        else:
            code, lines = cells(text)
            tree = ast.parse(code)
            for node in ast.walk(tree):
                if isinstance(node, ast.expr | ast.stmt):
                    node.lineno = lines[node.lineno - 1]
        return tree

    # Functions that nothing reaches.

    def follow(self, enough: Callable[[], bool]) -> list[str]:
        """Follows functions that nothing has called, until it is enough; their names."""
        found = [one for one in self.globals.items() if isinstance(one[1], Function | Class)]
        found.sort(key=lambda one: (one[0] not in _STARTS, isinstance(one[1], Class)))
        followed = []
        for name, one in found:
            if enough():
                break
            if isinstance(one, Function) and id(one.node) not in self.called_ones:
                followed.append(name)
                self.run(one, [], {})
            elif isinstance(one, Class) and not one.bases:
                followed.append(name)
                self.follow_methods(one)
        return followed

    def follow_methods(self, one: Class) -> None:
        made = self.construct(one, Call(one.name, one.line))
        for method in one.methods.values():
            if id(method.node) not in self.called_ones:
                self.run(Function(method.node, method.scope, made), [], {})

    def observed(self, call: Call) -> Value:
        """The value of a call of a library, after the functions that it is handed."""
        for one in (*call.args, *call.kwargs.values()):
            if isinstance(one, Function) and id(one.node) not in self.called_ones:
                handed = call.kwargs.get("fn_kwargs")
                kwargs = handed if isinstance(handed, dict) else {}
                if call.name == "functools.partial":
                    kwargs = call.kwargs
                self.run(one, [], dict(kwargs))
        found = self.known.value(call)
        for one in found if isinstance(found, tuple) else (found,):
            self.seen(one if isinstance(one, Call) else call)
        return found

    # Statements.

    def statement(self, node: ast.stmt, scope: dict[str, Value]) -> None:
        match node:
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for one in items:
                    value = self.value(one.context_expr, scope)
                    if one.optional_vars is not None:
                        self.assign(one.optional_vars, value, scope)
                self.body(body, scope)
            case ast.Try(body=body, orelse=more, finalbody=last):
                for statements in (body, more, last):
                    self.body(statements, scope)
            case ast.FunctionDef():
                scope[node.name] = Function(node, scope)
            case ast.ClassDef():
                scope[node.name] = self.defined(node, scope)
            case ast.For(target=target, iter=items, body=body):
                self.loop(target, items, body, scope)
            case ast.Raise():
                raise Return(Unknown("raise", node.lineno))
            case ast.Expr(value=ast.Call() | ast.Await() as value):
                self.expression(value, scope)
            case ast.AnnAssign(value=None) | ast.Global() | ast.Nonlocal() | ast.Delete():
                pass
            case _:
                super().statement(node, scope)

    def expression(self, node: ast.expr, scope: dict[str, Value]) -> None:
        """A call for its effects."""
        match node:
            case ast.Call(
                func=ast.Attribute(value=inner, attr="append" | "extend" as verb), args=[one]
            ):
                owner = self.value(inner, scope)
                if isinstance(owner, list) and len(owner) < MAX_ITEMS:
                    added = self.value(one, scope)
                    many = isinstance(added, list | tuple) and verb == "extend"
                    owner.extend(added if many else [added])
            case _:
                self.value(node, scope)

    def loop(
        self, target: ast.expr, items: ast.expr, body: list[ast.stmt], scope: dict[str, Value]
    ) -> None:
        """The first rounds of a loop, or one round over what is unknown."""
        found = self.value(items, scope)
        known = isinstance(found, list | tuple | range | dict)
        for one in list(found[:MAX_ROUNDS] if not isinstance(found, dict) else found)[
            :MAX_ROUNDS
        ] if known else [self.unknown(items)]:
            self.assign(target, one, scope)
            self.body(body, scope)

    def assign(self, target: ast.expr, value: Value, scope: dict[str, Value]) -> None:
        match target:
            case ast.Subscript(value=inner, slice=place):
                owner, key = self.value(inner, scope), self.value(place, scope)
                if isinstance(owner, dict) and isinstance(key, str | int):
                    owner[key] = value
            case ast.Attribute(value=inner, attr=name):
                owner = self.value(inner, scope)
                if isinstance(owner, Call):
                    owner.set(name, value, target.lineno)
                elif isinstance(owner, Class):
                    owner.attributes[name] = value
            case ast.Starred(value=inner):
                self.assign(inner, value, scope)
            case _:
                super().assign(target, value, scope)

    def imports(self, node: ast.Import | ast.ImportFrom) -> None:
        super().imports(node)
        if isinstance(node, ast.Import):
            for one in node.names:
                if (module := self.module(one.name)) is not None:
                    kept = dict(module.globals)
                    self.globals[one.asname or one.name] = Class(one.name, 0, (), kept, {})
            return
        if node.module is None or (module := self.module(node.module)) is None:
            return
        for one in node.names:
            names = module.globals if one.name == "*" else [one.name]
            for name in names:
                if name in module.globals and not name.startswith("__"):
                    self.globals[one.asname or name] = module.globals[name]

    def module(self, dotted: str) -> Script | None:
        """The module of that name among the files, followed once; None if it is not there."""
        last = dotted.rsplit(".", 1)[-1]
        name = next((one for one in self.files if one.rsplit("/", 1)[-1] == f"{last}.py"), None)
        if name is None or name == self.file:
            return None
        if name not in self.modules and len(self.modules) < MAX_MODULES:
            try:
                Script(self.files, name, self.seen, parent=self)
            except Unreadable as error:
                self.note(ast.Constant(0, lineno=error.line), f"{name} cannot be followed")
        return self.modules.get(name)

    # Classes and functions.

    def defined(self, node: ast.ClassDef, scope: dict[str, Value]) -> Class:
        """A class, with the attributes of those of the file that it is derived from."""
        attributes: dict[str, Value] = {}
        methods: dict[str, Function] = {}
        bases = []
        for one in node.bases:
            base = self.value(one, scope)
            if isinstance(base, Class):
                attributes |= base.attributes
                methods |= base.methods
                bases += base.bases
            elif isinstance(base, Call):
                bases.append(base.name)
        inner = dict(attributes)
        for statement in node.body:
            match statement:
                case ast.FunctionDef():
                    methods[statement.name] = Function(statement, scope)
                case ast.AnnAssign(target=ast.Name(id=name), value=None):
                    inner.setdefault(name, Unknown(name, statement.lineno))
                case ast.Assign() | ast.AnnAssign() | ast.ClassDef():
                    self.statement(statement, inner)
        for name, one in inner.items():  # a dataclass's default_factory
            if isinstance(one, Unknown):
                inner[name] = Unknown(f"{node.name}.{name}", one.line)
            if isinstance(one, Function) and one.node.name == "lambda" and not one.node.args.args:
                inner[name] = self.run(one, [], {})
        return Class(node.name, node.lineno, tuple(bases), inner, methods)

    def construct(self, kind: Class, call: Call) -> Instance:
        """An object of a class: its fields by position and by name, then its __init__."""
        made = Instance(kind.name, call.line, kind=kind)
        for name, value in kind.attributes.items():
            made.kwargs[name] = value
        start = kind.methods.get("__init__")
        if start is not None:
            self.run(Function(start.node, start.scope, made), list(call.args), call.kwargs)
            return made
        made.kwargs.update(zip(kind.attributes, call.args, strict=False))
        made.kwargs |= call.kwargs
        made.lines |= call.lines
        if (after := kind.methods.get("__post_init__")) is not None:
            self.run(Function(after.node, after.scope, made), [], {})
        return made

    def run(self, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The return value of a function; unknown where it calls itself."""
        self.called_ones.add(id(function.node))
        if function.node in self.active or len(self.active) >= MAX_DEPTH // 2:
            return Unknown(function.node.name, function.node.lineno)
        static = any("staticmethod" in ast.unparse(one) for one in function.node.decorator_list)
        bound = [] if function.bound is None or static else [function.bound]
        self.active.append(function.node)
        try:
            return self.invoke(function.node, [*bound, *args], kwargs, function.scope)
        finally:
            self.active.pop()

    # Expressions.

    def value(self, node: ast.expr, scope: dict[str, Value]) -> Value:
        match node:
            case ast.Lambda(args=args, body=body):
                self.charge(node)
                whole = ast.FunctionDef("lambda", args, [ast.Return(body, lineno=node.lineno)], [])
                whole.lineno = node.lineno
                return Function(whole, scope)
            case ast.Await(value=inner):
                return self.value(inner, scope)
            case ast.NamedExpr(target=target, value=inner):
                found = self.value(inner, scope)
                self.assign(target, found, scope)
                return found
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                one, other = self.value(left, scope), self.value(right, scope)
                if isinstance(one, str) and isinstance(other, str):
                    return joined_path(one, other)
                return self.binary(node, one, ast.Div(), other)
            case ast.DictComp(key=key, value=value, generators=[one]):
                pair = ast.copy_location(ast.Tuple([key, value], ast.Load()), node)
                pairs = self.comprehension(pair, one, scope)
                return {k: v for k, v in pairs if isinstance(k, str | int)}
        return super().value(node, scope)

    def items(self, node: ast.expr, scope: dict[str, Value]) -> list[Value]:
        found = self.value(node, scope)
        if isinstance(found, range) or (isinstance(found, list | tuple | dict)):
            short = list(found[:MAX_ITEMS] if not isinstance(found, dict) else found)
            self.charge(node, len(short))
            return short
        return []

    def comprehension(
        self, element: ast.expr, clause: ast.comprehension, scope: dict[str, Value]
    ) -> Iterator[Value]:
        """The items; over what is unknown none, after the calls of one are followed."""
        found = self.value(clause.iter, scope)
        if not isinstance(found, list | tuple | range | dict):
            inner = dict(scope)
            self.assign(clause.target, self.unknown(clause.iter), inner)
            self.value(element, inner)
            return
        short = list(found[:MAX_ITEMS] if not isinstance(found, dict) else found)
        self.charge(element, len(short))
        for item in short:
            inner = dict(scope)
            self.assign(clause.target, item, inner)
            if all(self.value(test, inner) is True for test in clause.ifs):
                yield self.value(element, inner)

    def name(self, node: ast.expr, name: str, scope: dict[str, Value]) -> Value:
        found = super().name(node, name, scope)
        if isinstance(found, Unknown) and name in self.functions:
            return Function(self.functions[name], self.globals)
        return found

    def applied(self, node: ast.expr, apply: Callable[..., Value], *values: Value) -> Value:
        if all(isinstance(one, Call) and one.owner is ... for one in values):
            names = [one.name.rsplit(".", 1)[-1] for one in values]  # torch.bfloat16
            return apply(*names) if apply in (operator.eq, operator.ne) else self.unknown(node)
        identity = apply in (operator.is_, operator.is_not)
        if not identity and any(isinstance(one, Call) for one in values):
            return self.unknown(node)
        return super().applied(node, apply, *values)

    def attribute(self, node: ast.expr, owner: Value, name: str) -> Value:
        match owner:
            case Instance() if name not in owner.kwargs and owner.kind is not None:
                found = self.of_class(owner.kind, name, owner)
                if found is None:
                    return self.unknown(node)
                wraps = isinstance(found, Function) and any(
                    ast.unparse(one) in _DECORATORS for one in found.node.decorator_list
                )
                return self.run(found, [], {}) if wraps else found
            case Class():
                found = self.of_class(owner, name, None)
                return self.unknown(node) if found is None else found
        if name == "__dict__" and isinstance(owner, Call):
            return owner.kwargs
        if isinstance(owner, dict) and name in owner:  # OmegaConf's
            return owner[name]
        return super().attribute(node, owner, name)

    def of_class(self, kind: Class, name: str, bound: Value) -> Value:
        if name in kind.methods:
            found = kind.methods[name]
            marks = [ast.unparse(one) for one in found.node.decorator_list]
            return Function(found.node, found.scope, kind if "classmethod" in marks else bound)
        return kind.attributes.get(name)

    def by_name(self, node: ast.Call, call: Call, name: str, scope: dict[str, Value]) -> Value:
        found = self.name(node.func, name, scope)
        if isinstance(found, Function | Class):
            return self.of_own(found, call)
        for one in (scope, self.globals):
            if isinstance(one.get(name), Call) and one[name].owner is not ...:
                call.name, call.owner = name, one[name]
                return self.observed(call)
        if (known := of_text(name, call)) is not None:
            return known
        return super().by_name(node, call, name, scope)

    def called(self, node: ast.Call, scope: dict[str, Value]) -> Value:
        match node.func:
            case ast.Name(id=name) if name in self.functions and name not in scope:
                found = self.globals.get(name)
                call = self.with_arguments(node, scope)
                own = found if isinstance(found, Function) else Function(
                    self.functions[name], self.globals
                )
                return self.of_own(own, call)
        return super().called(node, scope)

    def of_own(self, found: Function | Class, call: Call) -> Value:
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
                return self.of_own(found, call)
        if isinstance(owner, dict) and name in owner and not isinstance(owner[name], Function):
            return self.unknown(node)
        if isinstance(owner, str | dict | list):
            known = of_text(name, call, owner)
            return self.unknown(node) if known is None else known
        found = super().method(node, call, owner, name)
        return self.unknown(node) if found is call and name == "get" else found

    def with_arguments(self, node: ast.Call, scope: dict[str, Value]) -> Call:
        call = super().with_arguments(node, scope)
        for word in node.keywords:
            if word.arg is None and not isinstance(self.value(word.value, scope), dict):
                call.set("**", self.unknown(word.value), node.lineno)
        return call


def constants(script: Script) -> Iterator[tuple[str, Any]]:
    """The names of the script's own level and their plain values, also those of its classes."""
    for name, value in script.globals.items():
        if isinstance(value, str | int | float):
            yield name, value
        elif isinstance(value, Class | Instance):
            inner = value.attributes if isinstance(value, Class) else value.kwargs
            yield from ((key, one) for key, one in inner.items() if isinstance(one, str | int))
