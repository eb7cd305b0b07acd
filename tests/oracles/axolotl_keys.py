"""Keys of Axolotl's YAML, and of its plugins, by the syntax trees of its schemas.

    python -m tests.oracles.axolotl_keys FOLDER VERSION

writes planner/frameworks/axolotl/keys.json; FOLDER is its package, of a checkout or a wheel.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

SCHEMA = "AxolotlInputConfig"
FILE = Path("planner", "frameworks", "axolotl", "keys.json")


def _classes(files: Iterator[Path]) -> dict[str, ast.ClassDef]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in files)
    return {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def _keys(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """The annotated names of a class and of those that it is made of."""
    if name not in classes:
        return
    for line in classes[name].body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id
            yield from _aliases(line)
    for base in classes[name].bases:
        yield from _keys(ast.unparse(base), classes)


def _aliases(line: ast.AnnAssign) -> Iterator[str]:
    """Other names by which a field may be given."""
    for word in ast.walk(line):
        if isinstance(word, ast.keyword) and word.arg in ("alias", "validation_alias"):
            for one in ast.walk(word.value):
                if isinstance(one, ast.Constant):
                    yield one.value


def keys(package: Path) -> list[str]:
    """All of them, in order."""
    own = _classes(package.glob("utils/schemas/*.py"))
    plugins = _classes(package.glob("integrations/*/*.py"))
    added = (key for name in _added(package) for key in _keys(name, plugins))
    return sorted({*_keys(SCHEMA, own), *added})


def _added(package: Path) -> Iterator[str]:
    """The classes that plugins name as their keys."""
    for path in package.glob("integrations/*/*.py"):
        found = re.search(
            r'def get_input_args.*?return "([\w.]+)"', path.read_text("utf-8"), re.DOTALL
        )
        if found is not None:
            yield found[1].rpartition(".")[2]


def main(package: str, version: str) -> None:
    listed = ", ".join(json.dumps(key) for key in keys(Path(package)))
    body = textwrap.fill(listed, 100, initial_indent=" " * 4, subsequent_indent=" " * 4)
    source = f"Axolotl {version}: keys of its schema and of its plugins; it drops others"
    text = f'{{\n  "source": {json.dumps(source)},\n  "keys": [\n{body}\n  ]\n}}\n'
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
