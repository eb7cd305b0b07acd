"""What the service's image is made of: hashes, a bill of materials, known vulnerabilities."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "api" / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BIN = Path(sys.executable).parent
TEXT = (DEPLOY / "requirements.txt").read_text()
REFRESH = "the command of CONTRIBUTING.md brings api/deploy/requirements.txt up to date"


def pinned(text: str) -> dict[str, str]:
    """The version of each name."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.M)
    return {canonicalize_name(name): version for name, version in found}


def needed() -> set[str]:
    """All that the service, its telemetry and its build need here, as it is installed."""
    left = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    left += PROJECT["project"]["optional-dependencies"]["telemetry"]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        one = Requirement(left.pop())
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        for text in requires(one.name) or ():
            marker = Requirement(text).marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in (*one.extras, "")):
                left.append(text)
    return {name for name, _ in seen}


def test_requirements_are_the_pins_with_hashes() -> None:
    pins = pinned((ROOT / "constraints.txt").read_text())
    for name, version in pinned(TEXT).items():
        assert pins[name] == version, f"{name}: {REFRESH}"
    for entry in re.split(r"^(?=\w)", TEXT, flags=re.M)[1:]:
        hashes = re.findall(r"--hash=(\w+):([0-9a-f]+)", entry)
        assert hashes, entry
        assert {(kind, len(digest)) for kind, digest in hashes} == {("sha256", 64)}, entry
    assert "://" not in TEXT


def test_requirements_are_all_that_the_service_needs() -> None:
    assert needed() - pinned(TEXT).keys() == set(), REFRESH


def stage(folder: Path) -> dict[str, str]:
    """Do what the first stage of the Dockerfile says, in folders of our own; its variables."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    build = text.split("\nFROM ")[1]
    environment = {**os.environ, "EXTRAS": "", "PIP_NO_INPUT": "1"}
    environment.pop("PYTHONPATH", None)
    (folder / "opt").mkdir()
    source = folder / "src"
    source.mkdir()
    for line in re.findall(r"^COPY (.*)$", build, re.M):
        *sources, target = line.split()
        for name in sources:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / target)
            else:
                shutil.copy(ROOT / name, source / target)
    commands = re.findall(r"^RUN (.*)$", build, re.M)
    assert len(commands) == 2
    for command in commands:
        command = command.replace("/opt/", f"{folder}/opt/").replace("python -m", "python3 -m")
        done = subprocess.run(
            ["bash", "-euc", command], cwd=source, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return environment


@pytest.mark.exhaustive
def test_the_image_is_built_of_hashes_and_lists_what_it_is_made_of(tmp_path: Path) -> None:
    environment = stage(tmp_path)
    planner = tmp_path / "opt" / "planner"
    command = [str(planner / "bin" / "planner"), "catalog", "models", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["models"]) > 10
    bill: dict[str, Any] = json.loads((planner / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "parallel-planner"
    listed = {canonicalize_name(one["name"]): one["version"] for one in bill["components"]}
    assert pinned(TEXT).items() <= listed.items()


@pytest.mark.exhaustive
def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "requirements.txt"
    name = "annotated-types"
    (entry,) = re.findall(rf"^{name}==\S+ .*?(?=^\w)", TEXT, re.M | re.S)
    wrong.write_text(re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, entry))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    done = subprocess.run(
        [*command, "--dest", str(tmp_path), "--requirement", str(wrong)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", ["api/deploy/requirements.txt", "constraints.txt"])
def test_no_vulnerability_is_known(file: str) -> None:
    audit = shutil.which("pip-audit", path=f"{BIN}:{os.environ['PATH']}")
    if audit is None:
        pytest.skip("needs the extra `release`")
    hashed = "--hash=" in (ROOT / file).read_text()
    command = [audit, "--disable-pip", "--requirement", file, "--format", "json"]
    command.append("--require-hashes" if hashed else "--no-deps")
    done = subprocess.run(
        [*command, "--progress-spinner", "off"], cwd=ROOT, capture_output=True, text=True
    )
    found = json.loads(done.stdout)["dependencies"]
    looked_up = [one for one in found if "skip_reason" not in one]
    if not looked_up:
        pytest.skip("the index at hand has no records of vulnerabilities")
    assert len(looked_up) == len(found)
    assert {one["name"]: one["vulns"] for one in found if one["vulns"]} == {}
