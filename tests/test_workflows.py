"""What a code host does with the repository: workflows, forms of issues, the citation."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.version import __version__

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yaml"))
STEPS: list[dict[str, Any]] = [
    step
    for workflow in WORKFLOWS
    for job in yaml.safe_load(workflow.read_text())["jobs"].values()
    for step in job["steps"]
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_files_are_what_their_schemas_ask(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    yaml_too = ["--default-filetype", "yaml"]
    done = subprocess.run([*command, *yaml_too, *map(str, files)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_step_is_pinned_and_its_script_exists() -> None:
    for step in STEPS:
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])
            continue
        words = step["run"].split()
        paths = [word for word in words if re.match(r"(tests|tools|api|\.ci)/", word)]
        assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_every_script_is_sound_bash() -> None:
    for step in STEPS:
        if "run" in step:
            command = ["shellcheck", "--shell", "bash", "-"]
            done = subprocess.run(command, input=step["run"], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


def test_every_python_of_the_project_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = {one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one}
    (tests,) = [one for one in WORKFLOWS if one.name == "tests.yaml"]
    matrix = yaml.safe_load(tests.read_text())["jobs"]["linux"]["strategy"]["matrix"]
    assert {one.rpartition(":: ")[2] for one in stated} == set(matrix["python"])


def test_the_citation_and_the_changelog_know_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__


@pytest.mark.slow
def test_every_change_is_a_part_of_the_next_version() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = {path.name for path in (ROOT / ".github" / "changes").iterdir()} - {"README.md"}
    assert len(re.findall("^- ", done.stdout, re.MULTILINE)) == len(files)
