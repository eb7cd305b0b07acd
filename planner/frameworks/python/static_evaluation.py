"""The return value of a Python function, found without importing or running anything.

Constants, names, arithmetic, attributes, comprehensions, loops over known values and calls of
functions of the same file are evaluated; every other call stays a `Call`, with its arguments as
attributes that later statements may set.  A value known only at run time is `Unknown`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from planner.frameworks.python.expressions import MAX_ITEMS, Expressions
from planner.frameworks.python.static_values import Call, Library, Unknown, Value
from planner.frameworks.read_results import OtherTraining, Unreadable

MAX_TEXT = 1 << 20
MAX_DEPTH = 60


class Return(Exception):
    """The end of a function, with its value."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Program(Expressions):
    """The functions and globals of one file.

    library, missing: see Expressions.  names: values of names before the first statement.
    """

    def __init__(
        self,
        text: str,
        file: str,
        library: Library = lambda call: call,
        missing: Callable[[Call, str], Value] | None = None,
        names: Mapping[str, Value] | None = None,
    ) -> None:
        super().__init__(file, library, missing)
        self.globals.update(names or {})
        if len(text) > MAX_TEXT:
            raise Unreadable(f"more than {MAX_TEXT} characters", file)
        try:
            tree = self.parsed(text)
            for statement in tree.body:
                if isinstance(statement, ast.FunctionDef):
                    self.functions[statement.name] = statement
            self.body(tree.body, self.globals)
        except Return:  # a script that stops
            pass
        except SyntaxError as error:
            raise Unreadable(f"no Python: {error.msg}", file, error.lineno or 0) from None
        except (RecursionError, MemoryError, ValueError) as error:
            known = isinstance(error, OtherTraining)
            if known or (isinstance(error, Unreadable) and error.file not in ("", file)):
                raise  # of what the script trains, or of a file that it opens
            raise Unreadable(f"no Python that can be followed: {error}", file) from None

    def parsed(self, text: str) -> ast.Module:
        return ast.parse(text)

    def call(self, name: str) -> Value:
        """The return value of the function of that name, called without arguments.

        Raises Unreadable if it does not exist or cannot be evaluated.
        """
        function = self.functions.get(name)
        if function is None:
            known = ", ".join(self.functions) or "none"
            raise Unreadable(f"there is no function {name} (functions: {known})", self.file)
        try:
            return self.invoke(function, [], {})
        except RecursionError:
            raise Unreadable("nested too deeply", self.file, function.lineno) from None

    def body(self, statements: list[ast.stmt], scope: dict[str, Value]) -> None:
        for statement in statements:
            self.charge(statement)
            self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: dict[str, Value]) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self.imports(node)
            case ast.Assign(targets=targets, value=value):
                result = self.value(value, scope)
                for target in targets:
                    self.assign(target, result, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value(value, scope), scope)
            case ast.AugAssign(target=target, op=op, value=value):
                load = ast.copy_location(ast.BinOp(_loaded(target), op, value), node)
                self.assign(target, self.value(load, scope), scope)
            case ast.Return(value=value):
                raise Return(None if value is None else self.value(value, scope))
            case ast.If(body=body, orelse=orelse):
                self.body(body if self.holds(node, scope) else orelse, scope)
            case ast.For(target=target, iter=items, body=body):
                for item in self.items(items, scope):
                    self.assign(target, item, scope)
                    self.body(body, scope)
            case ast.FunctionDef() | ast.ClassDef() | ast.Assert() | ast.Pass():
                pass
            case ast.AnnAssign() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=target, attr="append" | "extend" as verb), args=[one]
                )
            ):
                self.extend(target, verb, one, scope)
            case _:
                first = ast.unparse(node).splitlines()[0]
                self.note(node, f"`{first}` is not followed")

    def imports(self, node: ast.Import | ast.ImportFrom) -> None:
        prefix = "" if isinstance(node, ast.Import) else f"{'.' * node.level}{node.module or ''}."
        for name in node.names:
            self.imported[name.asname or name.name] = f"{prefix}{name.name}"

    def holds(self, node: ast.If, scope: dict[str, Value]) -> bool:
        known = self.value(node.test, scope)
        if isinstance(known, Unknown | Call):
            self.note(node, f"`if {ast.unparse(node.test)}` is taken as false")
            return False
        return bool(known)

    def extend(
        self, target: ast.expr, verb: str, expression: ast.expr, scope: dict[str, Value]
    ) -> None:
        """Apply `.append` or `.extend` to a list."""
        known = self.value(target, scope)
        added = (
            [self.value(expression, scope)] if verb == "append" else self.items(expression, scope)
        )
        if not isinstance(known, list) or len(known) + len(added) > MAX_ITEMS:
            self.note(target, f"{ast.unparse(target)}.{verb} is not followed")
            return
        known.extend(added)

    def assign(self, target: ast.expr, value: Value, scope: dict[str, Value]) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=inner, attr=name):
                owner = self.value(inner, scope)
                if isinstance(owner, Call):
                    owner.set(name, value, target.lineno)
                else:
                    self.note(target, f"{ast.unparse(target)} belongs to nothing that is known")
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                several = list(value) if isinstance(value, list | tuple) else []
                for place, one in enumerate(targets):
                    other = several[place] if place < len(several) else self.unknown(one)
                    self.assign(one, other, scope)
            case _:
                self.note(target, f"{ast.unparse(target)} is not followed")

    def invoke(
        self,
        function: ast.FunctionDef,
        args: list[Value],
        kwargs: dict[str, Value],
        around: Mapping[str, Value] | None = None,
    ) -> Value:
        """The return value of a function of the file for these arguments.

        around: the names of the function that it stands in.
        """
        if self.depth >= MAX_DEPTH:
            raise Unreadable("calls nest too deeply", self.file, function.lineno)
        outer = dict(around or {})
        self.charge(function, len(outer) // 8)
        scope = outer | self.arguments(function, args, kwargs, outer)
        self.depth += 1
        try:
            self.body(function.body, scope)
        except Return as done:
            return done.value
        finally:
            self.depth -= 1
        return None

    def arguments(
        self,
        function: ast.FunctionDef,
        args: list[Value],
        kwargs: dict[str, Value],
        outer: dict[str, Value],
    ) -> dict[str, Value]:
        """The values of a function's parameters; unknown those that are not given."""
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        scope: dict[str, Value] = {}
        defaults = function.args.defaults
        for name, node in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            scope[name] = self.value(node, outer)
        for one, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if default is not None:
                scope[one.arg] = self.value(default, outer)
        scope.update(zip(names, args, strict=False))
        named = {*names, *(one.arg for one in function.args.kwonlyargs)}
        scope.update({name: value for name, value in kwargs.items() if name in named})
        if function.args.vararg is not None:
            scope[function.args.vararg.arg] = tuple(args[len(names) :])
        if function.args.kwarg is not None:
            rest = {name: value for name, value in kwargs.items() if name not in named}
            scope[function.args.kwarg.arg] = rest
        for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
            given = scope.get(one.arg, Unknown(one.arg, function.lineno))
            scope[one.arg] = self.parameter(one, given)
        return scope

    def parameter(self, one: ast.arg, given: Value) -> Value:
        """The value of a parameter for what it is given."""
        return given


def _loaded(target: ast.expr) -> ast.expr:
    """An assignment's target as an expression in load context."""
    loaded = ast.parse(ast.unparse(target), mode="eval").body
    return ast.copy_location(loaded, target)
