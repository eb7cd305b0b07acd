"""torchrun on several nodes, started by hand: one line on each, which meet at the first one.

Nothing here reaches the other nodes, so nothing here can start or end them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from planner.documents.plan_report import Note
from planner.documents.problems import refuse
from planner.frameworks.base import Bundle
from planner.frameworks.rules import nodes
from planner.validate.executors import (
    MAIN,
    Handle,
    RemoteRun,
    Status,
    bundle,
    folders,
    missing,
    only,
    run_name,
)


class Torchrun:
    """Files to start by hand on every node, in a folder that all of them see."""

    def render(self, launches: Sequence[RemoteRun]) -> Bundle:
        """The script, with the line to run on each node as a note."""
        launch = only(launches, "torchrun")
        made = bundle(launch, run_name(launch))
        text = _lines(launch, MAIN)
        return made.model_copy(update={"notes": (Note(code="launcher", text=text),)})

    def submit(self, folder: Path, launches: Sequence[RemoteRun]) -> Handle:
        """A handle to watch the folder by; the nodes are yours to start."""
        launch = only(launches, "torchrun")
        lines = _lines(launch, shlex.quote(str(folder / MAIN)))
        return Handle(
            launcher="torchrun", folder=str(folder), id="by hand", ranks=launch.ranks, by_hand=lines
        )

    def poll(self, handle: Handle) -> tuple[Status, ...]:
        """Done when every rank has left its result; before that nobody here can know more."""
        (folder,) = folders(handle)
        done = handle.ranks - len(missing(folder, handle.ranks))
        detail = f"started by hand: {done} of {handle.ranks} ranks have left their results"
        state = "succeeded" if done == handle.ranks else "unknown"
        return (Status(state=state, detail=detail),)

    def cancel(self, handle: Handle) -> None:
        """Raises RequestError: how to do it."""
        detail = "it was started by hand on every node: end it there (Ctrl-C, or kill the torchrun)"
        raise refuse("/launcher", "by_hand", detail)

    def collect(self, handle: Handle) -> tuple[Path, ...]:
        """The folder: every node wrote into it."""
        return folders(handle)


def _lines(launch: RemoteRun, script: str) -> str:
    """What to run on each node."""
    count = nodes(launch.request.cluster)
    if count == 1:
        return f"bash {script}"
    return "\n".join(
        f"on node {node}: NODE_RANK={node} MASTER_ADDR=<address of node 0> bash {script}"
        for node in range(count)
    )
