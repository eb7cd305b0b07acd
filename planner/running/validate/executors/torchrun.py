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
from planner.running.validate import executors


class Torchrun(executors.Executor):
    """Runs that the user starts on every node, from a folder that all nodes see."""

    def render(self, launches: Sequence[executors.RemoteRun]) -> Bundle:
        """The script, with the line to run on each node as a note."""
        launch = executors.only(launches, "torchrun")
        return executors.bundle(launch, executors.run_name(launch), _lines(launch, executors.MAIN))

    def submit(self, folder: Path, launches: Sequence[executors.RemoteRun]) -> executors.Handle:
        """A handle to watch the folder; the user starts the nodes."""
        launch = executors.only(launches, "torchrun")
        lines = _lines(launch, shlex.quote(str(folder / executors.MAIN)))
        return executors.Handle(
            launcher="torchrun", folder=str(folder), id="by hand", ranks=launch.ranks, by_hand=lines
        )

    def poll(self, handle: executors.Handle) -> tuple[executors.Status, ...]:
        """Succeeded once every rank has left its result; unknown before."""
        (folder,) = executors.folders(handle)
        done = handle.ranks - len(executors.missing(folder, handle.ranks))
        detail = f"started by hand: {done} of {handle.ranks} ranks have left their results"
        state = "succeeded" if done == handle.ranks else "unknown"
        return (executors.Status(state=state, detail=detail),)

    def cancel(self, handle: executors.Handle) -> None:
        """Raise RequestError, which tells the user how to end the run."""
        detail = "it was started by hand on every node: end it there (Ctrl-C, or kill the torchrun)"
        raise refuse("/launcher", "by_hand", detail)


def _lines(launch: executors.RemoteRun, script: str) -> str:
    """The command to run on each node."""
    count = nodes(launch.request.cluster)
    if count == 1:
        return f"bash {script}"
    return "\n".join(
        f"on node {node}: NODE_RANK={node} MASTER_ADDR=<address of node 0> bash {script}"
        for node in range(count)
    )
