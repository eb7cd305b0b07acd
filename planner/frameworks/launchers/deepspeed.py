"""DeepSpeed's launcher: called once, reaches the nodes of a hostfile by ssh."""

from __future__ import annotations

from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import CannotLaunch


def launch(bundle: Bundle, request: PlanRequest) -> Bundle:
    """The bundle as it is, with how to start it.

    Raises CannotLaunch where the framework is started by torchrun on every node.
    """
    if bundle.starts != "first node":
        raise CannotLaunch(
            f"{bundle.framework}'s script starts a process per accelerator by itself, which "
            "DeepSpeed's launcher would do a second time; take torchrun, slurm or kubernetes"
        )
    text = f"Put your hosts into hostfile, then on the first one: bash {bundle.main}."
    return bundle.model_copy(update={"notes": (Note(code="launcher", text=text), *bundle.notes)})
