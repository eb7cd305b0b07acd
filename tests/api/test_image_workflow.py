"""What builds, starts and asks the image: the workflow and the compose file.

Nothing here starts a container, which needs an engine; the questions that the workflow asks one are
asked of a service of this machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import api
from tests.fixtures.job_server import Place

ROOT = Path(api.__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "image.yaml"
COMPOSE = ROOT / "api" / "deploy" / "compose.yaml"
JOB: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]["image"]
STEPS: dict[str, dict[str, Any]] = {one["name"]: one for one in JOB["steps"] if "name" in one}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "file"), [("github-workflows", WORKFLOW), ("compose-spec", COMPOSE)]
)
def test_it_is_what_its_schema_asks(schema: str, file: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_its_lines_are_sound_bash(name: str) -> None:
    command = ["shellcheck", "--shell", "bash", "-"]
    done = subprocess.run(command, input=STEPS[name]["run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_everything_from_elsewhere_is_pinned() -> None:
    for step in JOB["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])


@pytest.mark.exhaustive
def test_its_questions_are_answered(place: Place) -> None:
    key, step = JOB["env"]["KEY"], STEPS["Ask it"]
    server = place.serve(api_keys_sha256=hashlib.sha256(key.encode()).hexdigest())
    address = str(server.http.base_url).rstrip("/")
    environment = os.environ | {"KEY": key, "ADDRESS": address}
    assert set(step["env"]) <= set(environment)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "'tp':" in done.stdout
    refused = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        env=environment | {"KEY": "another"}, capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode != 0
