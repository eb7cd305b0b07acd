"""torchrun: the framework's own script calls it; what starts that on every node is yours."""

from __future__ import annotations

from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import CannotLaunch
from planner.frameworks.rules import nodes


def launch(bundle: Bundle, request: PlanRequest) -> Bundle:
    """The bundle as it is, with how to start it.

    Raises CannotLaunch where the framework brings a launcher of its own.
    """
    if bundle.starts != "every node":
        raise CannotLaunch(f"{bundle.framework} is started by a launcher of its own, not torchrun")
    count = nodes(request.cluster)
    text = f"bash {bundle.main}"
    if count > 1:
        text = (
            f"On each of the {count} nodes: NODE_RANK=0..{count - 1} MASTER_ADDR=<address of node "
            f"0> bash {bundle.main}"
        )
    return bundle.model_copy(
        update={"notes": (Note(code="launcher", text=text + "."), *bundle.notes)}
    )
