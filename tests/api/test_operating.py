"""The commands of api/README.md, from nothing to a service that is watched and backed up."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import api

README = (Path(api.__file__).parent / "README.md").read_text()


def commands() -> list[str]:
    _, _, part = README.partition("\n## From nothing to a service for a team\n")
    (block,) = re.findall(r"^```console\n(.*?)^```", part.partition("\n## ")[0], re.M | re.S)
    return [line.removeprefix("$ ") for line in block.splitlines()]


@pytest.mark.exhaustive
def test_ten_commands(tmp_path: Path) -> None:
    assert len(commands()) == 10
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    root = Path(api.__file__).parent.parent
    here = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "ALICE_KEY": "open sesame",
        "HOME": str(tmp_path),
    }
    own = f'planner() {{ "{sys.executable}" -m planner.cli "$@"; }}\nset -e -m\n'
    script = own + "\n".join(commands()).replace("8000", port)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=here, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-800:]}{done.stderr[-800:]}"
    assert (tmp_path / "another-folder" / "planner.sqlite").exists()
    assert "planner_places" in done.stdout
    assert '"caller": "alice"' in (tmp_path / "service.log").read_text()
