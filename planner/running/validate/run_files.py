"""The files through which the parent and the workers of a run communicate, in one folder.

The folder of a run holds `train.py` (the emitted script) and `job.json`.  Every rank writes
`rank-N.json` when it is done, and reports its progress in `rank-N.beat` while it runs.  A worker
needs only this folder and torchrun's environment variables, so it can be started on any machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from cost_models.cost_parts import TIME_PARTS
from planner.documents.plan_report import Document
from planner.running.validate.dryrun.trace_result import Amounts
from planner.running.validate.ranks.saved_rows import SavedRow

SCRIPT, JOB, LOGS, GRADIENTS = "train.py", "job.json", "logs", "gradients"
MAX_STEPS = 1000

# The measured parts of one rank's step time; PARTS maps them to parts of the estimate.
MEANING: dict[str, str] = {
    "forward": "forward passes and the loss, without what blocks in them",
    "backward": "backward passes with recompute, without what blocks in them",
    "communication": "blocked in collectives of tp, cp, ep and dp, waiting for their others too",
    "optimizer": "clipping and the optimizer's step",
    "idle": "blocked for a message of another stage, or for the other ranks at the step's end",
    "other": "between all these: the schedule's own Python",
}
PARTS: dict[str, tuple[str, ...]] = {
    measured: tuple(name for name, part in TIME_PARTS.items() if part.measured == measured)
    for measured in MEANING
}

Steps = Annotated[int, Field(ge=0, le=MAX_STEPS)]


class Job(Document):
    """The job of all ranks of one run.

    words: name=value entries that replace those of the script's CONFIG.  gradients: of the first
    step, before clipping: `write` them unsplit into this folder (in the single-process reference
    run), or `compare` them with those in the folder `reference`.
    """

    words: tuple[str, ...] = ()
    warmup_steps: Steps = 2
    steps: Steps = 10
    profiled_steps: Steps = 2
    memory: bool = True
    gradients: Literal["", "write", "compare"] = ""
    reference: str = ""
    collective_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None


class RankResult(Document):
    """The measurements of one rank.

    step_s: wall time of every timed step.  parts_s: of a profiled step, by PARTS.  amounts: bytes
    of one step's tensors; saved_tensors: tensors that autograd saves per micro-batch, by stage,
    without weights; allocator_peak_bytes: peak of a GPU's allocator in the timed steps (0 on a
    CPU).  gradient_errors: of the parameters that this rank compared.
    """

    rank: int
    ranks: int
    host: str
    stages: tuple[int, ...]
    device: str
    threads: int
    versions: dict[str, str]
    step_s: tuple[float, ...]
    losses: tuple[float, ...]
    profiled_step_s: float
    parts_s: dict[str, float]
    amounts: Amounts | None
    allocator_peak_bytes: int
    saved_tensors: tuple[tuple[SavedRow, ...], ...]
    gradient_errors: dict[str, float]


class Heartbeat(Document):
    """The progress of a rank.  words: its current activity; count: number of reports so far."""

    words: str
    count: int
    pid: int


def result_file(rank: int) -> str:
    """The file with a rank's result."""
    return f"rank-{rank}.json"


def heartbeat_file(rank: int) -> str:
    """The file with a rank's progress."""
    return f"rank-{rank}.beat"


def write(path: Path, document: BaseModel) -> None:
    """Write a document atomically, so that a reader never sees half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(document.model_dump_json(indent=1), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def heartbeat(folder: Path, rank: int) -> Heartbeat | None:
    """The last progress report of a rank; None before the first."""
    try:
        return Heartbeat.model_validate_json((folder / heartbeat_file(rank)).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
