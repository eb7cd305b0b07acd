"""The image, built from the Dockerfile without a container engine, started and asked.

buildah builds it in a chroot, on a root file system of Debian in place of the base image, which
only a registry of images has; bubblewrap starts it as the manifests do.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.api.test_image_workflow import JOB, ROOT, STEPS
from tests.fixtures.job_server import eventually

pytestmark = pytest.mark.exhaustive
TOOLS = ("buildah", "debootstrap", "bwrap")
BASE = "localhost/python-3.11"
INCLUDED = "python3,python3-venv,python3-pip,ca-certificates"


class Images:
    """Images and containers in a folder of our own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "STORAGE_DRIVER": "vfs"}

    def buildah(self, *words: str) -> str:
        where = ("--root", str(self.folder / "root"), "--runroot", str(self.folder / "run"))
        done = subprocess.run(
            ["buildah", *where, *words], env=self.environment, cwd=ROOT, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.strip()

    def base(self) -> None:
        """Debian with Python 3.11, whose command is `python` too."""
        tree = self.folder / "debian"
        command = ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", "bookworm"]
        subprocess.run([*command, str(tree)], check=True, capture_output=True)
        (tree / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        container = self.buildah("from", "scratch")
        self.buildah("add", container, str(tree), "/")
        path = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        self.buildah("config", "--env", path, container)
        self.buildah("commit", container, BASE)

    def tree(self) -> Path:
        """The root file system of the service's image, once it is built."""
        # Certificates of this machine: its way to the package index may have one of its own.
        certificates = "/etc/ssl/certs:/etc/ssl/certs:ro"
        self.buildah(
            "build", "--isolation", "chroot", "--build-arg", f"BASE={BASE}", "--volume",
            certificates, "--file", "api/deploy/Dockerfile", "--tag", "parallel-planner", ".",
        )  # fmt: skip
        return Path(self.buildah("mount", self.buildah("from", "localhost/parallel-planner")))


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    if os.geteuid() or not all(map(shutil.which, TOOLS)):
        pytest.skip(f"needs root and {', '.join(TOOLS)}")
    with tempfile.TemporaryDirectory() as folder:
        found = Images(Path(folder))
        yield found
        found.buildah("umount", "--all")
        found.buildah("rm", "--all")
        found.buildah("rmi", "--all", "--force")


def test_the_image_is_built_started_and_asked(images: Images) -> None:
    images.base()
    tree = images.tree()
    settings = json.loads(images.buildah("inspect", "--type", "image", "parallel-planner"))
    own = settings["OCIv1"]["config"]
    assert own["User"] == "planner"
    assert len(json.loads((tree / "opt/planner/sbom.cdx.json").read_text())["components"]) > 50
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = str(one.getsockname()[1])
    hashed = hashlib.sha256(JOB["env"]["KEY"].encode()).hexdigest()
    variables = dict(line.split("=", 1) for line in own["Env"]) | {
        "PLANNER_PORT": port, "PLANNER_API_KEYS_SHA256": hashed,
    }  # fmt: skip
    command = [
        "bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent",
        "--uid", "10001", "--gid", "10001", "--cap-drop", "ALL", "--new-session",
        "--ro-bind", str(tree), "/", "--proc", "/proc", "--dev", "/dev",
        "--tmpfs", "/tmp", "--tmpfs", "/data", "--clearenv", "--chdir", own["WorkingDir"],
    ]  # fmt: skip
    for name, value in variables.items():
        command += ["--setenv", name, value]
    process = subprocess.Popen([*command, *own["Cmd"]], stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", STEPS["Ask it"]["run"]],
            env=os.environ | {"KEY": JOB["env"]["KEY"], "ADDRESS": address},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "'tp':" in done.stdout
        assert httpx.post(f"{address}/v1/plans", json={}).status_code == 401
    finally:
        process.terminate()  # bubblewrap takes all of them along
        process.wait()
    eventually(lambda: not _listens(int(port)), "the end of the service", 10)


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
