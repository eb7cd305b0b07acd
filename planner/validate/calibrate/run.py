"""Start the workers of a calibration, and make a profile of what they measured."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cost_models.calibrations import Calibration, Points
from planner.frameworks.pytorch import FRAMEWORK
from planner.request import PlanRequest
from planner.validate.calibrate.job import Job

RESULT = "points.json"
SCRIPT = "train.py"


def calibrate(
    request: PlanRequest,
    jobs: Sequence[tuple[int, Job]],
    name: str,
    extends: str,
    progress: Callable[[str], None],
) -> Calibration:
    """Measure the jobs one after the other; request: its model and plan make the script.

    Raises RunFailed where a worker fails.
    """
    assert request.plan is not None
    script = FRAMEWORK.render(request, request.plan).files[SCRIPT]
    points: dict[str, list[Any]] = {}
    notes: list[str] = []
    device = "cpu"
    for number, (ranks, job) in enumerate(jobs, 1):
        progress(f"{number} of {len(jobs)}: {ranks} process{'es' * (ranks > 1)}")
        with tempfile.TemporaryDirectory(prefix="planner-calibrate-") as folder:
            found = _measured(Path(folder), script, ranks, job)
        for kind, some in found["points"].items():
            points.setdefault(kind, []).extend(some)
        notes += found["notes"]
        device = found["device"]
    return Calibration(
        id=name,
        extends=extends,
        measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        device=device,
        hardware=_hardware(request),
        software={
            "python": platform.python_version(),
            "torch": version("torch"),
            "communication": "nccl" if device == "cuda" else "gloo",
        },
        notes=tuple(notes),
        points=Points.model_validate_json(json.dumps(points)),
    )


def _measured(folder: Path, script: str, ranks: int, job: Job) -> dict[str, Any]:
    import subprocess
    import sys

    (folder / SCRIPT).write_text(script, encoding="utf-8")
    (folder / "job.json").write_text(job.model_dump_json(), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
         "--module", "planner.validate.calibrate.worker", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return found


def _hardware(request: PlanRequest) -> dict[str, str]:
    group = request.cluster.groups[0]
    return {
        "device": group.accelerator.name[:200],
        "accelerators": str(group.accelerators_per_node),
        "processor": _processor(),
        "system": platform.platform()[:200],
    }


def _processor() -> str:
    """The processor's name, from /proc/cpuinfo where there is one."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
