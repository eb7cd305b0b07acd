"""torchrun on several nodes, started by hand with one command per node.

This machine cannot reach the other nodes, so it can neither start nor end the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from planner.documents.problems import refuse
from planner.frameworks.base import Bundle
from planner.frameworks.rules import nodes
from planner.running.validate.executors import (
    MAIN,
    Executor,
    Handle,
    RemoteRun,
    Status,
    bundle,
    folders,
    missing,
    only,
    run_name,
)


class Torchrun(Executor):
    """Runs that the user starts on every node, from a folder that all nodes see."""

    def render(self, launches: Sequence[RemoteRun]) -> Bundle:
        """The script, with the line to run on each node as a note."""
        launch = only(launches, "torchrun")
        return bundle(launch, run_name(launch), _lines(launch, MAIN))

    def submit(self, folder: Path, launches: Sequence[RemoteRun]) -> Handle:
        """A handle to watch the folder; the user starts the nodes."""
        launch = only(launches, "torchrun")
        lines = _lines(launch, shlex.quote(str(folder / MAIN)))
        return Handle(
            launcher="torchrun", folder=str(folder), id="by hand", ranks=launch.ranks, by_hand=lines
        )

    def poll(self, handle: Handle) -> tuple[Status, ...]:
        """Succeeded once every rank has left its result; unknown before."""
        (folder,) = folders(handle)
        done = handle.ranks - len(missing(folder, handle.ranks))
        detail = f"started by hand: {done} of {handle.ranks} ranks have left their results"
        state = "succeeded" if done == handle.ranks else "unknown"
        return (Status(state=state, detail=detail),)

    def cancel(self, handle: Handle) -> None:
        """Raise RequestError, which tells the user how to end the run."""
        detail = "it was started by hand on every node: end it there (Ctrl-C, or kill the torchrun)"
        raise refuse("/launcher", "by_hand", detail)


def _lines(launch: RemoteRun, script: str) -> str:
    """The command to run on each node."""
    count = nodes(launch.request.cluster)
    if count == 1:
        return f"bash {script}"
    return "\n".join(
        f"on node {node}: NODE_RANK={node} MASTER_ADDR=<address of node 0> bash {script}"
        for node in range(count)
    )
