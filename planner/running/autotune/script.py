"""Launch files of one run of a tuning: the framework's own, behind a limit of time."""

from __future__ import annotations

from pathlib import Path

from cost_models.package_files import filled, text
from cost_models.plans import ParallelPlan
from planner.answers.plans.emission import emit, launched
from planner.documents.request import PlanRequest
from planner.documents.saving import write_files
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import with_file
from planner.running.autotune.answer import NextRun

FILE = "tune.sh"
LOG = "run.${NODE_RANK:-0}.log"


def bundle_of(
    request: PlanRequest, plan: ParallelPlan, run: NextRun, launcher: str | None
) -> tuple[Bundle, str]:
    """The files of a run, and the name of the framework's own script among them.

    Raises what planner.answers.plans.emission.emit does.
    """
    plain = emit(request.model_copy(update={"plan": plan}))
    script = filled(
        text(__package__ or "", "tune.sh.txt"),
        {
            "iterations": run.iterations, "limit_s": f"{run.time_limit_s:.0f}", "main": plain.main,
            "log": LOG,
        },
    )  # fmt: skip
    note = f"{FILE} starts {plain.main} under a limit of time, and keeps {LOG} of each node."
    return launched(with_file(plain, FILE, script, note), request, launcher), plain.main


def write_once(bundle: Bundle, folder: Path) -> tuple[str, ...]:
    """Write a run's files; those of a run that was proposed before stay as they are."""
    if folder.is_dir() and all((folder / name).is_file() for name in bundle.files):
        return tuple(str(folder / name) for name in bundle.files)
    return tuple(map(str, write_files(bundle.files, folder)))
