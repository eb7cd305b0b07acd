"""`planner backup` and `planner restore`, for those who run the service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from planner.commands.failures import FINE


def backup(file: Annotated[Path, typer.Argument(help="a new file")]) -> int:
    """Write all that the service keeps into one file; it may run meanwhile."""
    from planner.running.store.backup import backup as written

    return _print_names(written(file, os.environ.get("PLANNER_DATABASE_URL") or None))


def restore(file: Annotated[Path, typer.Argument(help="of planner backup")]) -> int:
    """Put a backup into an empty data folder, and its database; the service is stopped."""
    from planner.running.store.backup import restore as restored

    return _print_names(restored(file, os.environ.get("PLANNER_DATABASE_URL") or None))


def _print_names(names: list[str]) -> int:
    print("\n".join(names))
    return FINE
