"""The index of formulas, docs/formulas.md: every `@formula` with its unit, sources and code.

`python -m tools.formula_index --write` writes the file; a test holds it current.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections import defaultdict
from pathlib import Path

import cost_models
from cost_models.sources import FORMULAS, SOURCES, Formula

FILE = Path(__file__).parents[1] / "docs" / "formulas.md"
_HEAD = """\
# Formulas

Every public formula of the cost model: what it computes, its equation where it is one expression,
the unit of its result (`1`: a count or a ratio) and the sources it rests on, which are listed at
the end. Made by `python -m tools.formula_index --write` from the code itself.
"""


def registered() -> dict[str, Formula]:
    """Every formula by its full name, in the order of files and of lines."""
    for module in pkgutil.walk_packages(cost_models.__path__, "cost_models."):
        importlib.import_module(module.name)

    def place(name: str) -> tuple[str, int]:
        function = FORMULAS[name].function
        return function.__module__, inspect.getsourcelines(function)[1]

    return {name: FORMULAS[name] for name in sorted(FORMULAS, key=place)}


def index() -> str:
    """The text of docs/formulas.md."""
    modules: dict[str, list[Formula]] = defaultdict(list)
    for formula in registered().values():
        modules[formula.function.__module__].append(formula)
    parts = [_HEAD]
    for module, formulas in modules.items():
        path = f"{module.replace('.', '/')}.py"
        parts.append(f"## [{path}](../{path})\n")
        parts += [_entry(formula) for formula in formulas]
    used = {key for formula in FORMULAS.values() for key in formula.sources}
    parts.append("## Sources\n")
    parts.append("\n".join(f"- `{key}`: {SOURCES[key]}" for key in SOURCES if key in used) + "\n")
    return "\n".join(parts)


def _entry(formula: Formula) -> str:
    name, sources = formula.function.__name__, ", ".join(f"`{key}`" for key in formula.sources)
    equation = _equation(formula)
    head = f"**`{name}`** · unit `{formula.unit}` · {sources}\n"
    equal = f"`{name} = {equation}`\n\n" if equation else ""
    return f"{head}\n{equal}{inspect.getdoc(formula.function)}\n"


def _equation(formula: Formula) -> str | None:
    """What a function of one expression returns; None where it takes more."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(formula.function))).body
    assert isinstance(function, ast.FunctionDef)
    _docstring, *rest = function.body
    if len(rest) == 1 and isinstance(rest[0], ast.Return) and rest[0].value is not None:
        return ast.unparse(rest[0].value)
    return None


def main() -> None:
    """Print the index, or write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        FILE.write_text(index(), encoding="utf-8")
    else:
        print(index(), end="")


if __name__ == "__main__":
    main()
