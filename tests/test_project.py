"""The project's own rules, checked by the tools that know them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from pkgutil import iter_modules

import pytest

import planner
from tools.house import complex_functions

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BIN = Path(sys.executable).parent
MOST_LINES, MOST_FUNCTION_LINES = 400, 60
# Product code that is longer, and why.
LONGER: dict[str, str] = {}


def run(*command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("lint-imports", "--no-logo"),
        pytest.param(("mypy",), marks=pytest.mark.slow),
    ],
    ids=lambda command: " ".join(command),
)
def test_tool_is_content(command: tuple[str, ...]) -> None:
    # To write a cache that nothing reads later takes mypy a third longer.
    uncached = command == ("mypy",) and not (ROOT / ".mypy_cache").exists()
    result = run(str(BIN / command[0]), *command[1:], *(["--cache-dir=/dev/null"] * uncached))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("planner/attic/__init__.py", "", "attic"),
        ("planner/attic.py", "", "attic"),
        ("planner/answers/attic/__init__.py", "", "attic"),
        ("planner/search/attic.py", "import planner.answers.plans.picks", "planner.search.attic"),
    ],
    ids=["unlisted room", "unlisted module", "unlisted package", "import of what stands above"],
)
def test_a_package_without_a_place_breaks_the_contract(
    tmp_path: Path, path: str, text: str, why: str
) -> None:
    for package in ("api", "cost_models", "planner"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(text)
    result = run(str(BIN / "lint-imports"), "--no-logo", "--no-cache", folder=tmp_path)
    assert result.returncode == 1, result.stdout
    assert ", 1 broken." in result.stdout
    assert why in result.stdout.partition("Broken contracts")[2]


def test_files_and_functions_are_short() -> None:
    lengths = {}
    for package in ("api", "cost_models", "planner"):
        for file in sorted((ROOT / package).rglob("*.py")):
            text, path = file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()
            if (lines := text.count("\n")) > MOST_LINES:
                lengths[path] = lines
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines > MOST_FUNCTION_LINES:
                        lengths[f"{path} {node.name}"] = lines
    assert lengths.keys() == LONGER.keys(), lengths


@pytest.mark.slow
def test_no_function_is_complex() -> None:
    """By radon, which counts each part of a condition; ruff holds the number of branches."""
    assert complex_functions() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("planner.cli", ("numpy", "pydantic", "fastapi", "torch", "yaml", "cost_models", "rich")),
        ("planner", ("numpy", "pydantic", "fastapi", "torch", "cost_models")),
        ("planner.search.exhaustive", ("fastapi", "torch", "rich", "typer", "api")),
        ("cost_models.estimate", ("fastapi", "torch", "rich", "typer", "planner", "api")),
        ("api.app", ("torch", "typer", "transformers")),
    ],
)
def test_import_stays_light(module: str, heavy: tuple[str, ...]) -> None:
    """Start-up cost is a feature."""
    code = f"import sys, {module}; print(*(m for m in {heavy!r} if m in sys.modules))"
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert not result.stdout.split()


def test_pins_cover_what_is_declared() -> None:
    pins = dict(
        line.split("==", 1) for line in (ROOT / "constraints.txt").read_text().splitlines() if line
    )
    pinned = {_normal(name): version for name, version in pins.items()}
    extras = PROJECT["project"]["optional-dependencies"]
    declared = list(PROJECT["project"]["dependencies"])
    own = "parallel-planner[serve]"
    assert own in extras["test"]
    declared += [
        *extras["serve"],
        *extras["test"],
        *extras["validate"],
        *extras["models"],
        *extras["docs"],
    ]
    declared.remove(own)
    for requirement in declared:
        name = _normal(re.split(r"[<>=!~\[; ]", requirement)[0])
        assert name in pinned, requirement
    assert pinned["torch"] == "2.13.0"


def test_nothing_names_a_place_to_download_from() -> None:
    """Whoever installs decides where from."""
    for name in ("pyproject.toml", "constraints.txt", ".ci/run"):
        text = (ROOT / name).read_text()
        assert not re.search(r"://|--index|-i |find-links|@ ", text), name


@pytest.mark.slow
def test_wheel_carries_data_and_no_tests(tmp_path: Path) -> None:
    # The tools are those of this environment, so that the test needs no network.
    result = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "api",
        "cost_models",
        "planner",
        "web",
    }
    for wanted in (
        "cost_models/catalog/models.json",
        "cost_models/catalog/profiles/generic.json",
        "planner/py.typed",
        "api/guide_files/requests.md",
        "api/guide_files/how-to/fit.md",
        "api/guide_files/pictures/1f1b.svg",
        "web/index.html",
        "web/views/plan.js",
        "web/lib/VENDORED.md",
        "web/lib/preact-11.2.0/preact.mjs",
    ):
        assert wanted in names
    assert not [name for name in names if "test" in name]
    assert not [name for name in names if name.startswith("api/deploy/") or name.endswith(".png")]
    # Of 2.8 MB d3 with Plot are 6 %, the published runs 4 %.
    assert wheel.stat().st_size < 3_000_000


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_package_hides_a_function() -> None:
    """Importing planner.rl, say, as a package would replace the function `planner.rl`."""
    assert not {module.name for module in iter_modules(planner.__path__)} & set(planner.__all__)
