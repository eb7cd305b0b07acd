"""A Python script as a program that is started: its main path, followed without running it.

More than a configuration's functions: classes of the file (objects), its options and their
defaults, configurations that it opens, modules beside it, and notebooks.  A test that stays unknown
is taken as false, unless all else ends the script; a function that a call is handed is followed
with unknown arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from planner.frameworks.python import hydra
from planner.frameworks.python.library import Library
from planner.frameworks.python.notebooks import cells, is_python, of_cells
from planner.frameworks.python.objects import Objects
from planner.frameworks.python.static_values import (
    Call,
    Class,
    Function,
    Instance,
    Unknown,
    Value,
)
from planner.frameworks.read_results import Unreadable

PYTHON = (".py", ".ipynb")
MAX_ROUNDS = 16  # of a loop
MAX_MODULES = 16
_MOST_WORDS = 80
# Functions that are likely to be what is called, first.
_STARTS = ("main", "train", "run", "run_training", "finetune", "fine_tune", "train_model")


class Frozen(NamedTuple):
    """Weights that a script freezes itself: whose they are, in its words too, and where."""

    owner: Value
    whose: str
    says: str
    file: str
    line: int


class Script(Objects):
    """A script among the files of a launch.

    seen: is told of each call that is not evaluated; arguments: of its command line; environment:
    variables that are known; parent: the script that imports it.
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
        self.files, self.seen = files, seen
        self.modules: dict[str, Script] = {} if parent is None else parent.modules
        self.active: list[ast.FunctionDef] = [] if parent is None else parent.active
        self.reached: set[int] = set() if parent is None else parent.reached
        self.chained: set[int] = set()
        self.loops: list[Value] = [] if parent is None else parent.loops
        self.walks: list[str] = [] if parent is None else parent.walks
        self.frozen: list[Frozen] = [] if parent is None else parent.frozen
        self.known = Library(files, arguments, environment or {})
        if parent is not None:
            self.known = parent.known
            self.modules[name] = self
        module = "__main__" if parent is None else name.rpartition(".")[0]
        super().__init__(files[name], name, self.observed, names={"__name__": module})

    def parsed(self, text: str) -> ast.Module:
        """The statements, those of a notebook with the lines of its file."""
        if not self.file.endswith(".ipynb"):
            return ast.parse(text if is_python(text) else of_cells(text))
        code, lines, left_out = cells(text)
        tree = ast.parse(code)
        self.known.cells_left_out += [f"{self.file}:{line}" for line in left_out]
        for node in ast.walk(tree):
            if isinstance(node, ast.expr | ast.stmt):
                node.lineno = lines[node.lineno - 1]
        return tree

    def parameter(self, one: ast.arg, given: Value) -> Value:
        """As of any function; an unknown object of a class that is known has its defaults."""
        kind = self._annotated(one) if isinstance(given, Unknown) else None
        if kind is None or not any(map(_is_plain, kind.attributes.values())):
            return given
        self.known.filled_by_default[kind.name] = None
        return self.construct(kind, Call(kind.name, one.lineno))

    def _annotated(self, one: ast.arg) -> Class | None:
        """The class of the files that a parameter is annotated with."""
        node = one.annotation
        if isinstance(node, ast.BinOp):  # Config | None
            node = node.left
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.Name(node.value)
        found = self.globals.get(node.id) if isinstance(node, ast.Name) else None
        return found if isinstance(found, Class) else None

    def method(self, node: ast.Call, call: Call, owner: Value, name: str) -> Value:
        """As of any object; of a configuration that is not known, the default of a key."""
        if isinstance(owner, str) and name in ("exists", "is_file"):  # a path
            call.name, call.args = "os.path.exists", (owner,)
            return self.known.value(call)
        if isinstance(owner, Unknown) and name == "get":
            usual = self.known.usual(call, call.args)
            if usual is not None:
                return usual
        return super().method(node, call, owner, name)

    def run(self, function: Function, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
        """As of any function; one of hydra.main, click or typer is given what the words say."""
        if not args and not kwargs:
            kwargs = self.known.options.of_command(function.node)
            said = hydra.options(function.node)
            composed = self.known.composed(said) if said is not None else None
            args = [] if composed is None else [composed]
        return super().run(function, args, kwargs)

    # Functions that nothing reaches.

    def follow(self, enough: Callable[[], bool]) -> list[str]:
        """Follows functions of the file that nothing called, until it is enough; their names."""
        own = [one for one in self.globals.items() if self._is_own(one[1])]
        own.sort(key=lambda one: (one[0] not in _STARTS, isinstance(one[1], Class)))
        followed = []
        for name, one in own:
            if enough():
                break
            if isinstance(one, Function) and id(one.node) not in self.reached:
                self.run(one, [], {})
                followed.append(name)
            elif isinstance(one, Class):
                self._follow_methods(one)
                followed.append(name)
        return followed

    def _is_own(self, value: Value) -> bool:
        """Whether a value is a function or a class with methods that the file itself defines."""
        if isinstance(value, Class):
            return any(one.scope is self.globals for one in value.methods.values())
        return isinstance(value, Function) and value.scope is self.globals

    def _follow_methods(self, one: Class) -> None:
        made = self.construct(one, Call(one.name, one.line))
        for method in one.methods.values():
            if id(method.node) not in self.reached:
                self.run(Function(method.node, method.scope, made), [], {})

    def observed(self, call: Call) -> Value:
        """The value of a call of a library, after the functions that it is handed."""
        if call.short == "requires_grad_" and call.args == (False,):
            known = isinstance(call.owner, Call) or not self.loops
            owner = (call.owner if known else self._walked()) or call
            says = f"{call.short}(False)"
            self.frozen.append(Frozen(owner, self._words(), says, self.file, call.line))
        for one in (*call.args, *call.kwargs.values()):
            if isinstance(one, Function) and id(one.node) not in self.reached:
                config = call.kwargs.get("train_loop_config")  # Ray Train's, of its workers
                args = [config] if isinstance(config, dict) else []
                self.run(one, args, self.known.handed(call))
        found = self.known.value(call)
        for one in found if isinstance(found, tuple) else (found,):
            self.seen(one if isinstance(one, Call) else call)
        return found

    # Statements.

    def statement(self, node: ast.stmt, scope: dict[str, Value]) -> None:
        match node:
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                self._entered(items, scope)
                self.body(body, scope)
            case ast.Try(body=body, orelse=more, finalbody=last):
                self.body([*body, *more, *last], scope)
            case ast.For(target=target, iter=items, body=body):
                found = self.value(items, scope)
                self.loops.append(found)
                self.walks.append(ast.unparse(items)[:_MOST_WORDS])
                for one in self._rounds(found, items):
                    self.assign(target, one, scope)
                    self.body(body, scope)
                self.loops.pop()
                self.walks.pop()
            case ast.Expr(value=ast.Call() | ast.Await() as value):
                self._effect(value, scope)
            case ast.AnnAssign(value=None) | ast.Global() | ast.Nonlocal() | ast.Delete():
                pass
            case _:
                super().statement(node, scope)

    def holds(self, node: ast.If, scope: dict[str, Value]) -> bool:
        """Whether a test holds; one that stays unknown does where all else ends the script."""
        known = self.value(node.test, scope)
        if not isinstance(known, Unknown | Call):
            return bool(known)
        if _looks_up(node):
            self.note(node, f"`if {ast.unparse(node.test)}` is taken as true")
            return True
        match node.orelse:
            case [*_, ast.Raise()] if id(node) not in self.chained:
                self.note(node, f"`if {ast.unparse(node.test)}` is taken as true")
                return True
            case [ast.If() as other] if other.col_offset == node.col_offset:  # elif
                self.chained.add(id(other))
        self.note(node, f"`if {ast.unparse(node.test)}` is taken as false")
        self._left_out(node.body, known, scope)
        return False

    def _left_out(self, body: list[ast.stmt], known: Value, scope: dict[str, Value]) -> None:
        """Keeps what statements that are not followed would change: weights frozen, fields set."""
        for one in ast.walk(ast.Module(body, [])):
            match one:
                case ast.Assign() if self.loops and _stops(one):
                    self._froze(known, one.targets[0])
                case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), ast.Name(), _]):
                    if isinstance(owner := scope.get(name), Instance):
                        self.known.filled[owner.name] = None

    def _entered(self, items: list[ast.withitem], scope: dict[str, Value]) -> None:
        for one in items:
            value = self.value(one.context_expr, scope)
            if one.optional_vars is not None:
                self.assign(one.optional_vars, value, scope)

    def _effect(self, node: ast.expr, scope: dict[str, Value]) -> None:
        """A call for its effects: on a list, or on what it reaches."""
        match node:
            case ast.Call(
                func=ast.Attribute(value=inner, attr="append" | "extend" as verb), args=[one]
            ):
                owner, added = self.value(inner, scope), self.value(one, scope)
                if isinstance(owner, list):
                    many = isinstance(added, list | tuple) and verb == "extend"
                    self.charge(node, len(added) if many else 1)
                    owner.extend(list(added) if many else [added])
            case _:
                self.value(node, scope)

    def _rounds(self, found: Value, node: ast.expr) -> list[Value]:
        """The values of the first rounds of a loop; one that is unknown for what is."""
        if isinstance(found, dict):
            return list(found)[:MAX_ROUNDS]
        if isinstance(found, list | tuple | range):
            return list(found[:MAX_ROUNDS])
        return [self.unknown(node)]

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
                if name == "requires_grad" and value is not True:
                    self._froze(owner, target)
            case ast.Starred(value=inner):
                self.assign(inner, value, scope)
            case _:
                super().assign(target, value, scope)

    def _froze(self, owner: Value, node: ast.expr) -> None:
        """Keeps whose weights are frozen: the model of the loop over them, where there is one."""
        whose = self._walked() or owner
        says = ast.unparse(node)
        self.frozen.append(Frozen(whose, self._words(), says, self.file, node.lineno))

    def _words(self) -> str:
        """What the innermost loop walks through, in the script's words."""
        return self.walks[-1] if self.walks else ""

    def _walked(self) -> Value:
        """Whose weights the innermost loop over some walks through; None without one."""
        walked = next((one for one in reversed(self.loops) if isinstance(one, Call)), None)
        return None if walked is None else walked.owner or walked

    # Modules beside the script.

    def imports(self, node: ast.Import | ast.ImportFrom) -> None:
        super().imports(node)
        if isinstance(node, ast.Import):
            for one in node.names:
                if (module := self._module(one.name)) is not None:
                    kept = Class(one.name, 0, (), module.globals, {})
                    self.globals[one.asname or one.name] = kept
            return
        module = self._module(node.module) if node.module is not None else None
        known = module.globals if module is not None else {}
        for one in node.names:
            for name in list(known) if one.name == "*" else [one.name]:
                if name in known and not name.startswith("__"):
                    self.globals[one.asname or name] = known[name]

    def _module(self, dotted: str) -> Script | None:
        """The module of that name among the files, followed once; None if it is not there."""
        path = f"{dotted.lstrip('.').replace('.', '/')}.py"
        last = path.rsplit("/", 1)[-1]
        alike = [one for one in self.files if one.rsplit("/", 1)[-1] == last]
        name = next((one for one in alike if "/" in one and path.endswith(one)), None)
        name = name or next(iter(alike), None)
        if name is None or name == self.file:
            return None
        if name not in self.modules and len(self.modules) < MAX_MODULES:
            try:
                Script(self.files, name, self.seen, parent=self)
            except Unreadable as error:
                self.note(ast.Pass(lineno=error.line), f"{name} cannot be followed: {error.text}")
        return self.modules.get(name)


def _is_plain(value: Value) -> bool:
    return isinstance(value, str | int | float)


def _stops(node: ast.Assign) -> bool:
    """Whether an assignment ends the training of a weight."""
    ends = isinstance(node.value, ast.Constant) and node.value.value is False
    target = node.targets[0]
    return ends and isinstance(target, ast.Attribute) and target.attr == "requires_grad"


def constants(script: Script) -> Iterator[tuple[str, Any]]:
    """The plain values of the script's own level by their names, also in classes and parameters."""
    for name, value in list(script.globals.items()):
        if isinstance(value, str | int | float):
            yield name, value
        elif isinstance(value, Function):
            yield from _usual(value)
        elif isinstance(value, Class | Instance):
            inner = value.attributes if isinstance(value, Class) else value.kwargs
            yield from ((key, one) for key, one in inner.items() if isinstance(one, str | int))


def _usual(function: Function) -> Iterator[tuple[str, Any]]:
    """The constants that a function's parameters have by default."""
    given = function.node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    for name, one in zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True):
        if isinstance(one, ast.Constant) and isinstance(one.value, str | int):
            yield name, one.value


def _looks_up(node: ast.If) -> bool:
    """Whether a test asks if a library knows a name, which is then set or handed back."""
    match node.test, node.body:
        case ast.Compare(left=ast.Constant(value=name), ops=[ast.In()]), [
            ast.Assign(targets=[one])
        ]:
            return isinstance(one, ast.Subscript) and (
                isinstance(one.slice, ast.Constant) and one.slice.value == name
            )
        case ast.Compare(left=left, ops=[ast.In()]), [ast.Return(value=ast.expr() as value)]:
            return ast.dump(left) == ast.dump(value)
    return False
