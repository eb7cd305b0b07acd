"""The mutants of a file: mutmut's changes of one operator, number, string or argument each.

mutmut builds all mutants of a function into one file and so leaves out decorated functions, which
here are most formulas, and what a module computes on import.  Here each mutant is a file of its
own, and only changes that no behaviour rests on are left out: see `Behaviour`.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import get_ignored_lines

# Keywords that say how, not what: text is UTF-8 here anyway, and lengths agree; and texts.
_HOW = {"encoding", "strict", "title", "holds", "staleness"}
# Calls and names that make the text of an error.
_TEXT_CALLS = ("super().__init__", "_refuse")
_TEXT_NAMES = ("hint", "shown", "FORMS")


class _Visitor(MutationVisitor):
    """Goes into decorated functions too."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef):
            return False
        return super()._skip_node_and_children(node)


class Behaviour(ast.NodeTransformer):
    """A module less what its behaviour does not rest on.

    That is: texts of errors and of schedules, type aliases and casts, decorators and docstrings
    (which mutmut leaves alone), whether NumPy warns, `encoding` and `strict`.
    """

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise(exc=node.exc.func) if isinstance(node.exc, ast.Call) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name in _TEXT_CALLS:
            return ast.Constant(name)
        if name in ("cast", "TypeVar"):
            return node.args[-1] if name == "cast" else ast.Constant(None)
        node.keywords = [k for k in node.keywords if k.arg not in _HOW]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("utf-8") if str(node.value).lower() == "utf-8" else node

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.items[0]).startswith("np.errstate("):
            node.items = [ast.withitem(ast.Constant(None))]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        name = ast.unparse(node.targets[0])
        alias = name[0].isupper() and (len(name) == 1 or not name.isupper())
        text = name == "__all__" or name in _TEXT_NAMES
        if text or (alias and "Field(" not in ast.unparse(node.value)):
            return None
        return self.generic_visit(node)


def _behaviour(source: str) -> str:
    return ast.dump(Behaviour().visit(ast.parse(source)))


def mutants(path: Path, seed: int) -> Iterator[str]:
    """The file once per mutant, in a drawn order."""
    source = path.read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = _Visitor(mutation_operators, get_ignored_lines(str(path), source, wrapper))
    module = wrapper.visit(visitor)
    same = {_behaviour(source)}
    random.Random(f"{seed} {path.name}").shuffle(visitor.mutations)
    for mutation in visitor.mutations:
        replaced = module.deep_replace(mutation.original_node, mutation.mutated_node)
        assert isinstance(replaced, cst.Module)
        behaviour = _behaviour(replaced.code)
        if behaviour not in same:
            same.add(behaviour)
            yield replaced.code
