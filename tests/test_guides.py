"""Pages for those who join name what there is: files, commands, names, laws."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest

from planner import cli
from tools import formula_index

ROOT = Path(__file__).parent.parent
GUIDES = {
    name: (ROOT / name).read_text()
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/adding.md")
}
PACKAGES = ("api", "cost_models", "planner", "tests", "tools", "web")
# A program of a command, and the file that declares it.
TOOLS = {"ruff": "pyproject.toml", "mypy": "pyproject.toml", "lint-imports": "pyproject.toml"}

SUBCOMMANDS = {
    one.name or str(one.callback.__name__).replace("_", "-")
    for one in (*cli.app.registered_commands, *cli.app.registered_groups)
    if one.callback is not None or one.name
}

guides = pytest.mark.parametrize("name", GUIDES)


def quoted(name: str) -> set[str]:
    """What stands between backticks outside of code blocks."""
    return set(
        re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", GUIDES[name], flags=re.M | re.S))
    )


def commands(name: str) -> list[str]:
    """Every command of a guide, in a block or in a sentence."""
    lines = [
        line for block in re.findall(r"^```sh\n(.*?)^```", GUIDES[name], re.M | re.S)
        for line in block.splitlines()
    ]  # fmt: skip
    programs = ("planner ", "pytest", "python ", *TOOLS)
    return [*lines, *(text for text in quoted(name) if text.startswith(programs))]


@cache
def defined(module: Path) -> dict[str, frozenset[str]]:
    """Names at the top level of a module; of a class also its own: fields and methods."""
    found: dict[str, frozenset[str]] = {}
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = frozenset()
        elif isinstance(node, ast.ClassDef):
            found[node.name] = frozenset(map(_target, node.body))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found[_target(node)] = frozenset()
    return found


def _target(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else ""


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name that a module defines."""
    *parts, last = dotted.split(".")
    for cut in range(len(parts) + 1, 0, -1):
        path = ROOT.joinpath(*[*parts, last][:cut])
        rest = [*parts, last][cut:]
        for module in (path.with_suffix(".py"), path / "__init__.py"):
            if module.is_file():
                names = defined(module)
                return not rest or (
                    rest[0] in names and (len(rest) == 1 or rest[1] in names[rest[0]])
                )
    return False


def test_the_index_of_formulas_is_current() -> None:
    text = formula_index.FILE.read_text()
    assert text == formula_index.index(), "python -m tools.formula_index --write"


@guides
def test_every_path_exists(name: str) -> None:
    words = {word for text in quoted(name) for word in text.split()}
    paths = {
        word for word in words if re.fullmatch(r"\.?[\w.-]+/[\w./-]*|[\w-]+\.(md|toml|txt)", word)
    }
    assert len(paths) > 20
    missing = [path for path in sorted(paths) if not (ROOT / path).exists()]
    assert [path for path in missing if not path.startswith(".venv/")] == []
    linked = re.findall(r"\]\(([^)#]+)\)", GUIDES[name])
    assert [path for path in linked if not (ROOT / name).parent.joinpath(path).exists()] == []


@guides
def test_every_name_is_defined(name: str) -> None:
    dotted = {
        text for text in quoted(name)
        if re.fullmatch(rf"({'|'.join(PACKAGES)})(\.\w+)+", text) and not text.endswith(".md")
    }  # fmt: skip
    assert dotted
    assert [text for text in sorted(dotted) if not exists(text)] == []


@guides
def test_every_command_is_there(name: str) -> None:
    """Programs, subcommands, modules and files; what they do is tested where they are."""
    declared = (ROOT / "pyproject.toml").read_text()
    for line in commands(name):
        words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
        if words[:2] == ["python3", "-m"]:
            continue  # the set-up, which the README's test holds
        program = Path(words[0]).name
        if program == "planner":
            assert words[1] in {*SUBCOMMANDS, "--help"}, line
        elif program == "python" and words[1] == "-m":
            assert exists(words[2]), line
            main = ROOT / f"{words[2].replace('.', '/')}.py"
            main = main if main.is_file() else main.with_suffix("") / "__main__.py"
            assert "argv" in (text := main.read_text()) or "argparse" in text or "__main__" in text
        elif program == "python":
            assert (ROOT / words[1]).is_file(), line
        elif program != "pytest":
            assert program in TOOLS, line
            assert program.replace("lint-imports", "import-linter") in declared
        files = [
            word for word in words[1:] if word.startswith(tuple(f"{one}/" for one in PACKAGES))
        ]
        assert [word for word in files if not (ROOT / word).exists()] == [], line


def test_every_package_is_on_the_map() -> None:
    """A new package is described where the others are."""
    found = {f"{top}/" for top in PACKAGES}
    for top in PACKAGES:
        for folder in (ROOT / top).iterdir():
            kept = folder.is_dir() and folder.name not in ("__pycache__", "lib")
            if kept and any(file.is_file() for file in folder.iterdir()):
                found.add(f"{top}/{folder.name}/")
    cells = re.findall(r"^\|((?: `[\w/]+/`)+) \|", GUIDES["ARCHITECTURE.md"], re.M)
    assert sorted(found - set(re.findall(r"[\w/]+/", " ".join(cells)))) == []


def test_the_order_of_imports_is_the_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (inside,) = [one for one in contracts["contracts"] if one.get("containers") == ["planner"]]
    (block,) = re.findall(r"^```text\n(.*?)^```", GUIDES["ARCHITECTURE.md"], re.M | re.S)
    drawn = re.findall(r"^│ (.+?) +│$", block, re.M)
    assert drawn == [re.sub(r" [|:] ", " ", layer) for layer in inside["layers"]]


def test_every_common_change_has_its_files_and_tests() -> None:
    recipes = re.split(r"^## ", GUIDES["docs/adding.md"], flags=re.M)[1:]
    assert len(recipes) == 17
    for recipe in recipes:
        (count,) = re.findall(r"^\*\*Files to edit: (\d)", recipe, re.M)
        assert len(re.findall(r"`[\w./]+/[\w./]*`|[Aa] new", recipe)) >= int(count), recipe
        assert re.search(r"`pytest -n 0 tests/|`tests/[\w/]+\.py`", recipe), recipe


def test_the_map_is_three_screens() -> None:
    """Of 60 lines of 100 characters, as a terminal breaks them."""
    lines = GUIDES["ARCHITECTURE.md"].splitlines()
    assert sum(-(-len(line) // 100) or 1 for line in lines) <= 180
