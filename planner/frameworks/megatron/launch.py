"""The bash script that runs `pretrain_gpt.py` under torchrun, for Megatron-LM and descendants."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.plans import ParallelPlan
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer as shell
from planner.frameworks import unwritten_facts as uncarried
from planner.frameworks.base import Flag
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.unwritten_facts import Missing

SCRIPT = """\
#!/usr/bin/env bash
{head}
set -euo pipefail

{rendezvous}
{paths}
{variables}
{exports}
{launch}
{uncarried}
{arrays}

torchrun "${{LAUNCH_ARGS[@]}}" {program} \\
  {spread} \\
  "$@"
"""


def script(
    title: str,
    versions: str,
    request: PlanRequest,
    plan: ParallelPlan,
    arguments: Sequence[Flag],
    variables: Sequence[Flag],
    missing: Missing,
    paths: str,
    program: str,
) -> str:
    """The script; paths: lines that set variables to folders; program: its path as a bash word."""
    arrays, names = shell.arrays(arguments)
    return SCRIPT.format(
        head=shell.header(title, versions, request, plan),
        rendezvous=shell.rendezvous(nodes(request.cluster)),
        paths=paths,
        variables=shell.overridable(arguments),
        exports="\n".join(map(shell.export, variables)),
        launch=shell.torchrun(accelerators_per_node(request.cluster)),
        uncarried=uncarried.comments(missing),
        arrays=arrays,
        program=program,
        spread=shell.spread(names),
    )
