"""`planner cluster`: a cluster from what its machines print."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from planner.commands.failures import FINE
from planner.commands.server import answered
from planner.commands.shared import Json

app = typer.Typer(no_args_is_help=True, help="A cluster from what its machines print.")


@app.callback()
def _root() -> None:
    """Keep `read` a command of its own."""


@app.command()
def read(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="outputs of nvidia-smi (-q, topo -m), scontrol show node, sinfo -o, kubectl get "
            "nodes -o json, ibstat, lspci; /proc/meminfo",
        ),
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="of the cluster")] = "machine",
    json: Json = False,
) -> int:
    """The cluster that printed these, as a part of a request: a file for `planner plan FILE`."""
    from planner.frameworks.sources import files_at
    from planner.inputs.machines.reader import read_machine
    from planner.presentation.terminal import output
    from planner.presentation.terminal.machine_text import machine_text

    document = {"files": files_at(files), "name": name}
    answer = answered(
        lambda: read_machine(document), lambda service: service.read_cluster(document)
    )
    for file in answer.unread:
        print(f"not understood: {file}", file=sys.stderr)
    if json:
        output.print_json(answer)
        return FINE
    print(machine_text(answer), end="")
    return FINE
