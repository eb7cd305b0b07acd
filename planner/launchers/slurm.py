"""Slurm: one batch script, submitted from the folder of the bundle."""

from __future__ import annotations

from planner.frameworks import shell
from planner.frameworks.base import Bundle
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.launchers import job_name, with_file
from planner.request import PlanRequest

FILE = "job.sbatch"
# sbatch copies the script to a spool folder: the bundle stands where it was submitted.
_HEAD = """\
#!/usr/bin/env bash
{about}
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={processes}
#SBATCH --exclusive
#SBATCH --output=%x-%j.out
# Yours to add: --account, --partition, --time, --cpus-per-task.
set -euo pipefail

BUNDLE="${{BUNDLE:-${{SLURM_SUBMIT_DIR:-.}}}}"
"""
_EVERY_NODE = """\
# The first node of the job is the one that the others meet at.
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_PORT="${{MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}}"
export MASTER_ADDR MASTER_PORT
# shellcheck disable=SC2016  # every task expands its own SLURM_NODEID
srun --kill-on-bad-exit=1 --label \\
  bash -c 'NODE_RANK="$SLURM_NODEID" exec bash "$@"' start "$BUNDLE/{main}" "$@"
"""
_FIRST_NODE = """\
# The framework's own launcher reaches the other nodes by ssh, through this list of them.
export HOSTFILE="${{HOSTFILE:-$BUNDLE/hostfile.$SLURM_JOB_ID}}"
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots={processes}/' > "$HOSTFILE"
exec bash "$BUNDLE/{main}" "$@"
"""


def launch(bundle: Bundle, request: PlanRequest) -> Bundle:
    """The bundle with a batch script: `sbatch job.sbatch`."""
    count, processes = nodes(request.cluster), accelerators_per_node(request.cluster)
    every = bundle.starts == "every node"
    about = f"{bundle.framework} on {count} nodes of {processes}: sbatch {FILE}"
    text = (_HEAD + (_EVERY_NODE if every else _FIRST_NODE)).format(
        about=shell.comment(about), name=job_name(request), nodes=count, processes=processes,
        main=bundle.main,
    )  # fmt: skip
    return with_file(
        bundle, FILE, text,
        f"{FILE} starts {bundle.main}: write both into a folder that every node sees (--output), "
        "and submit it from there.",
    )  # fmt: skip
