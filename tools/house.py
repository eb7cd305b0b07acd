"""Measures the house: `python -m tools.house`.

Prints lines of code, rings and floors of the imports between packages, in how many files an option
of a framework and a restriction of a plan's field stand, and how many functions are complex.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from radon.complexity import cc_visit
from radon.visitors import Function

ROOT = Path(__file__).parents[1]
PRODUCT = ("api", "cost_models", "planner")
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
           tokenize.ENCODING, tokenize.ENDMARKER}  # fmt: skip
MOST_COMPLEX = 15


def files(*folders: str) -> Iterator[Path]:
    """The Python files below folders of the repository."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def lines_of_code(path: Path) -> int:
    """Lines with a token that is neither a comment nor part of a docstring."""
    docstrings = set[int]()
    for node in ast.walk(tree(path)):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                first = node.body[0] if node.body else None
                if first is not None and ast.get_docstring(node, clean=False) is not None:
                    docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    found = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in _SILENT:
            found |= set(range(token.start[0], token.end[0] + 1))
    return len(found - docstrings)


def module(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> frozenset[str]:
    """All modules of the product."""
    return frozenset(module(path) for path in files(*PRODUCT))


def imports(path: Path) -> Iterator[str]:
    """The modules of the product that a file imports when it is imported itself."""
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules())
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                one = f"{node.module}.{name.name}"
                if one in modules():
                    yield one
                elif node.module in modules():
                    yield node.module
        waiting += ast.iter_child_nodes(node)


def arrows(depth: int) -> dict[str, set[str]]:
    """Which packages of planner import which at import time; depth: of their names."""
    found = defaultdict[str, set[str]](set)
    for path in files("planner"):
        here = _room(module(path), depth)
        found[here] |= {
            room
            for name in imports(path)
            if name.startswith("planner.") and (room := _room(name, depth)) != here
        }
    return dict(found)


def _room(name: str, depth: int) -> str:
    """The package of a module, by at most `depth` names; a module of planner itself is its own."""
    parts = name.split(".")
    return ".".join(parts[:depth]) if len(parts) > 1 else name


def rings(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of packages that import each other, directly or not."""
    reach = {room: _reached(graph, room) for room in graph}
    found = {
        frozenset(two for two in reach if two in reach[one] and one in reach[two]) for one in reach
    }
    return sorted(sorted(ring) for ring in found if len(ring) > 1)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen, waiting = set[str](), [start]
    while waiting:
        for one in graph.get(waiting.pop(), ()):
            if one not in seen:
                seen.add(one)
                waiting.append(one)
    return seen


def floors(graph: Mapping[str, set[str]]) -> int | None:
    """The number of floors on which packages can stand, each above all it imports; None: a ring."""
    height = dict[str, int]()
    try:
        for room in TopologicalSorter(graph).static_order():
            height[room] = 1 + max((height[below] for below in graph.get(room, ())), default=0)
    except CycleError:
        return None
    return max(height.values())


def places_of_options() -> dict[str, int]:
    """In how many files of planner/frameworks each option of Megatron-LM is spelled."""
    table = json.loads((ROOT / "planner/frameworks/megatron/arguments.json").read_text())
    known = set(re.findall(r"--[a-z][a-z0-9-]+", json.dumps(table)))
    found = Counter[str]()
    for path in files("planner"):
        text = path.read_text(encoding="utf-8")
        if "frameworks" in path.parts:
            found.update(set(re.findall(r"--[a-z][a-z0-9-]+", text)) & known)
    return dict(found)


def restrictions() -> dict[str, int]:
    """How often "a framework has only this value of a field" is written, by the form."""
    found = Counter[str]()
    for path in files("planner/frameworks"):
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(func=ast.Name(id="cannot"), args=args):
                    found["fields that a framework cannot say"] += 1
                    found["fields with the values that are left"] += len(args) > 1
                case ast.Call(func=ast.Name(id="says"), keywords=keywords):
                    only = any(keyword.arg == "only" for keyword in keywords)
                    found["fields with the values that are left"] += only
                case ast.Call(func=ast.Name(id="rule" | "unsupported"), args=args):
                    found["rules"] += 1
                    legal = [arg for arg in args if isinstance(arg, ast.Lambda)][:1]
                    found["rules that read one field of a plan"] += any(map(_reads_one, legal))
                case ast.keyword(arg="axes" | "choices", value=ast.Dict() as axes):
                    found["axes of one value"] += sum(
                        isinstance(value, ast.Tuple) and len(value.elts) == 1
                        for value in axes.values
                    )
    return dict(found)


# Plan fields that say where another has an effect: a rule on one field may read these too.
_SAY_WHERE = {"pp", "cp", "dp", "zero_stage", "ep", "tp"}


def _reads_one(legal: ast.Lambda) -> bool:
    """Whether a rule asks for values of one field, at most where a degree or experts count."""
    read, calls = set[str](), set[str]()
    for part in ast.walk(legal.body):
        match part:
            case ast.Attribute(value=ast.Name(id="p"), attr=field):
                read.add(field)
            case ast.Attribute(value=ast.Name(id="c"), attr=spec) if spec != "model":
                return False
            case ast.Attribute(value=ast.Attribute(attr="model"), attr=field) if field != "moe":
                return False
            case ast.Call(func=func, args=args):
                calls.add(ast.unparse(func).rpartition(".")[2])
                read |= {str(one.value) for one in args[1:2] if isinstance(one, ast.Constant)}
    own = read - {"pp", "cp", "dp"}
    return len(own or read) == 1 and calls <= {"is_named", "code", "isin"}


def complex_functions() -> list[tuple[str, str, int]]:
    """(file, name, complexity) of each function above MOST_COMPLEX, the worst first."""
    found = [
        (path.relative_to(ROOT).as_posix(), block.fullname, block.complexity)
        for path in files(*PRODUCT)
        for block in cc_visit(path.read_text(encoding="utf-8"))
        if isinstance(block, Function) and block.complexity > MOST_COMPLEX
    ]
    return sorted(found, key=lambda one: -one[2])


def main() -> None:
    """Print what was measured."""
    total = {folder: sum(map(lines_of_code, files(folder))) for folder in PRODUCT}
    print(f"lines of code   {sum(total.values()):,}: {total}")
    rooms, packages = arrows(2), arrows(9)
    print(f"rooms           {len(rooms)} in planner, arrows {sum(map(len, rooms.values()))}")
    print(f"rings           rooms: {rings(rooms)}")
    print(f"                modules: {rings(packages)}")
    print(f"floors          {floors(rooms)}")
    options = places_of_options()
    mean, many = sum(options.values()) / len(options), sum(n >= 5 for n in options.values())
    print(
        f"options         {len(options)} of Megatron-LM, in {mean:.2f} files each, "
        f"{many} in five or more"
    )
    print(f"restrictions    {restrictions()}")
    print(f"complex         {len(complex_functions())} functions above {MOST_COMPLEX}")


if __name__ == "__main__":
    main()
