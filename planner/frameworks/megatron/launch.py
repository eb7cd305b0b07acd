"""The bash script that runs `pretrain_gpt.py` under torchrun, for Megatron-LM and descendants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer, unwritten_facts
from planner.frameworks.base import Bundle, Flag
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
{unwritten}
{arrays}

torchrun "${{LAUNCH_ARGS[@]}}" {program} \\
  {spread} \\
  "$@"
"""


def bundle(
    name: str,
    title: str,
    versions: str,
    request: PlanRequest,
    plan: ParallelPlan,
    arguments: Sequence[Flag],
    variables: Sequence[Flag],
    missing: Missing,
    paths: str,
    program: str,
    others: Mapping[str, str] | None = None,
    notes: Sequence[Note] = (),
) -> Bundle:
    """The script and the other files; name: of the framework.

    paths: lines that set variables to folders.  program: its path as a bash word.
    """
    arrays, names = bash_writer.arrays(arguments)
    script = SCRIPT.format(
        head=bash_writer.header(title, versions, request, plan),
        rendezvous=bash_writer.rendezvous(nodes(request.cluster)),
        paths=paths,
        variables=bash_writer.overridable(arguments),
        exports="\n".join(map(bash_writer.export, variables)),
        launch=bash_writer.torchrun(accelerators_per_node(request.cluster)),
        unwritten=unwritten_facts.comments(missing),
        arrays=arrays,
        program=program,
        spread=bash_writer.spread(names),
    )
    return Bundle(
        framework=name,
        versions=versions,
        main="launch.sh",
        files={"launch.sh": script, **(others or {})},
        flags=(*variables, *arguments),
        notes=(*notes, *unwritten_facts.notes(missing)),
    )
