"""Slurm: one batch script, submitted from the folder of the bundle."""

from __future__ import annotations

from math import ceil

from cost_models.package_files import filled, text
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import job_name, with_file
from planner.frameworks.rules import accelerators_per_node, nodes, on_cpus

FILE = "job.sbatch"


def launch(bundle: Bundle, request: PlanRequest) -> Bundle:
    """The bundle with a batch script: `sbatch job.sbatch`."""
    return with_file(
        bundle, FILE, script(bundle, request, job_name(request)),
        f"{FILE} starts {bundle.main}: write both into a folder that every node sees (--output), "
        "and submit it from there.",
    )  # fmt: skip


def script(
    bundle: Bundle, request: PlanRequest, name: str, tasks: int = 0, time_limit_s: float = 0
) -> str:
    """The batch script that calls the bundle's main file; name: letters, digits and dashes.

    tasks: 0 for one job, else an array of so many, each with its bundle in the folder of its
    number; time_limit_s: of the allocation, 0 for the partition's own.
    """
    count, processes = nodes(request.cluster), accelerators_per_node(request.cluster)
    directives = {
        "job-name": name,
        "nodes": count,
        "ntasks-per-node": 1,
        "gpus-per-node": 0 if on_cpus(request.cluster) else processes,
        "exclusive": "",
        "output": "%a/%x-%A.out" if tasks else "%x-%j.out",
        "array": f"0-{tasks - 1}" if tasks else 0,
        "time": ceil(time_limit_s / 60),  # minutes
    }
    about = f"{bundle.framework} on {count} nodes of {processes}: sbatch {FILE}"
    parts = (
        "slurm",
        *(["slurm_task"] if tasks else []),
        f"slurm_{bundle.starts}".replace(" ", "_"),
    )
    template = "".join(text(__package__ or "", f"{part}.sh.txt") for part in parts)
    words = {
        "about": bash_writer.comment(about),
        "processes": processes,
        "main": bundle.main,
        "directives": "\n".join(
            f"#SBATCH --{option}={value}".rstrip("=")
            for option, value in directives.items()
            if value != 0
        ),
    }
    return filled(template, words)
