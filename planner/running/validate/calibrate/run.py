"""Starts the workers of a calibration, and makes a profile of their measurements."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cost_models.calibrations import ACCELERATOR, Calibration, Points
from planner.documents.request import PlanRequest
from planner.frameworks.pytorch import FRAMEWORK
from planner.running.validate import run_files
from planner.running.validate.calibrate.job import RESULT, Job, Measured
from planner.running.validate.processes import process
from planner.running.validate.run import require_torch

WORKER = "planner.running.validate.calibrate.worker"


def calibrate(
    request: PlanRequest,
    jobs: Sequence[tuple[int, Job]],
    name: str,
    extends: str,
    limits: process.Limits,
    progress: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """The profile from these jobs, run one after the other with the script of the request's plan.

    Raises RunFailed if a worker fails, RequestError without torch.
    """
    require_torch()
    measurements = []
    for ranks, job in jobs:
        with tempfile.TemporaryDirectory(prefix="planner-calibrate-") as folder:
            measurements.append(measure(Path(folder), request, ranks, job, limits, progress))
    return assemble(request, measurements, name, extends)


def assemble(
    request: PlanRequest, measurements: Sequence[Measured], name: str, extends: str
) -> Calibration:
    """The profile from the measurements on this machine."""
    points: dict[str, list[Any]] = {}
    for measured in measurements:
        for kind, rows in measured.points.items():
            points.setdefault(kind, []).extend(rows)
    device = measurements[-1].device if measurements else "cpu"
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
        notes=tuple(note for m in measurements for note in m.notes),
        points=Points.model_validate_json(json.dumps(points)),
    )


def measure(
    folder: Path,
    request: PlanRequest,
    ranks: int,
    job: Job,
    limits: process.Limits,
    progress: Callable[[str], None],
) -> Measured:
    """The measurements of one job, run in an empty folder.  Raises RunFailed."""
    head = f"{ranks} process{'es' * (ranks > 1)}: "
    script = FRAMEWORK.render(request, request.named_plan).files[run_files.SCRIPT]
    (folder / run_files.SCRIPT).write_text(script, encoding="utf-8")
    (folder / run_files.JOB).write_text(job.model_dump_json(), encoding="utf-8")
    process.launch(
        folder, ranks, limits, module=WORKER, progress=lambda text: progress(head + text)
    )
    try:
        return Measured.model_validate_json((folder / RESULT).read_bytes())
    except (OSError, ValidationError):
        log = process.tail(process.log_file(folder, 0))
        raise process.RunFailed("no_result", f"left no {RESULT}", 0, log) from None


def _hardware(request: PlanRequest) -> dict[str, str]:
    group = request.cluster.groups[0]
    return {
        "device": group.accelerator.name,
        ACCELERATOR: group.accelerator.id,
        "accelerators": str(group.accelerators_per_node),
        "processor": _processor(),
        "system": platform.platform(),
    }


def _processor() -> str:
    """The processor's name, from /proc/cpuinfo if that exists."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
