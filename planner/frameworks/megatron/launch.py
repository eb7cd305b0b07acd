"""The bash script around torchrun and `pretrain_gpt.py`, for all that descend from Megatron-LM."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.plans import ParallelPlan
from planner.frameworks import shell, uncarried
from planner.frameworks.base import Flag
from planner.frameworks.rules import accelerators_per_node, nodes
from planner.frameworks.uncarried import Uncarried
from planner.request import PlanRequest

SCRIPT = """\
#!/usr/bin/env bash
{head}
set -euo pipefail

{rendezvous}
{checkout}
{variables}
{exports}
{launch}
{uncarried}
{arrays}

torchrun "${{LAUNCH_ARGS[@]}}" "${path}/pretrain_gpt.py" \\
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
    missing: Sequence[Uncarried],
    path: str,
    checkout: str,
) -> str:
    """The script; path: the variable with the folder of pretrain_gpt.py; checkout: of what."""
    arrays, names = shell.arrays(arguments)
    return SCRIPT.format(
        head=shell.header(title, versions, request, plan),
        rendezvous=shell.rendezvous(nodes(request.cluster)),
        checkout=f'{path}="${{{path}:-.}}"  # a checkout of {checkout}',
        variables=shell.overridable(arguments),
        exports="\n".join(map(shell.export, variables)),
        launch=shell.torchrun(accelerators_per_node(request.cluster)),
        uncarried=uncarried.comments(missing),
        arrays=arrays,
        path=path,
        spread=shell.spread(names),
    )
