"""What works with few packages: planning with NumPy and pydantic, the command line without extras.

Each environment is a virtual one with links to packages of this one, so that no test needs the
network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64},
}
PLANS = f"""
import sys
import planner
asked = {ASKED!r}
answer = planner.plan(asked)
named = {{"tp": 2, "sequence_parallel": True}}
print(answer.best.fits, planner.estimate({{**asked, "plan": named}}).estimate.plan.tp)
told = planner.why(asked, plan=named)
print(bool(told.differences_s), "PlanAnswer" in repr(answer), len(str(answer)) > 1000)
print(*sorted({{name.partition(".")[0] for name in sys.modules}} - sys.stdlib_module_names))
"""


def closure(names: list[str]) -> set[str]:
    """Distributions with all that they require, extras aside."""
    found: set[str] = set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name not in found:
            found.add(name)
            for text in distribution(name).requires or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    names.append(needed.name)
    return found


def environment(folder: Path, names: list[str]) -> Path:
    """The Python of a new environment that has these distributions alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in closure(names):
        for file in distribution(name).files or ():
            first = file.parts[0]
            if first != ".." and not (packages / first).exists():
                (packages / first).symlink_to(Path(str(distribution(name).locate_file(first))))
    return folder / "bin/python"


def ran(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if name != "PLANNER_SERVER"}
    return subprocess.run(
        [python, *words], cwd=ROOT, env=settings | {"PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "command",
    [("uv", "tool", "run", "--from"), ("pipx", "run", "--spec")],
    ids=lambda words: words[0],
)
def test_it_runs_without_being_installed(
    command: tuple[str, ...], wheel: Path, tmp_path: Path
) -> None:
    """`uvx parallel-planner` and `pipx run parallel-planner`; they need the network."""
    folders = {name: str(tmp_path / name) for name in ("UV_CACHE_DIR", "UV_TOOL_DIR", "PIPX_HOME")}
    words = ["--model", ASKED["model"], "--cluster", ASKED["cluster"]]
    words += ["--seq-length", "4096", "--global-batch-size", "64", "--framework", "megatron"]
    ran = subprocess.run(
        [sys.executable, "-m", *command, wheel, "parallel-planner", "plan", *map(str, words)],
        cwd=wheel.parent, env=os.environ | folders, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Best plan" in ran.stdout


def test_python_plans_with_numpy_and_pydantic(tmp_path: Path) -> None:
    result = ran(environment(tmp_path, ["numpy", "pydantic"]), "-c", PLANS)
    assert result.returncode == 0, result.stderr
    told, more, modules = result.stdout.splitlines()
    assert told == "True 2"
    assert more == "True True True"
    ours = {"__main__", "cost_models", "planner"}
    assert {"numpy", "pydantic"} | ours <= set(modules.split())
    assert not {"yaml", "rich", "typer", "api", "fastapi", "sqlalchemy"} & set(modules.split())


@pytest.mark.exhaustive
def test_the_command_line_plans_without_extras_and_names_them(tmp_path: Path) -> None:
    declared = [Requirement(text).name for text in PROJECT["dependencies"]]
    python = environment(tmp_path, declared)
    words = ["--model", ASKED["model"], "--cluster", ASKED["cluster"]]
    words += ["--seq-length", "4096", "--global-batch-size", "64", "--framework", "megatron"]
    planned = ran(python, "-m", "planner.cli", "plan", *map(str, words))
    assert planned.returncode == 0, planned.stderr
    assert "Best plan" in planned.stdout
    for command, extra in (("serve", "serve"), ("mcp", "mcp")):
        refused = ran(python, "-m", "planner.cli", command)
        assert refused.returncode == 2, refused.stderr
        assert f"pip install 'parallel-planner[{extra}]'" in refused.stderr
    doctor = ran(python, "-m", "planner.cli", "doctor")
    assert "please report" not in doctor.stdout
