"""`planner doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.commands.failures import BAD_INPUT, FINE

if TYPE_CHECKING:
    from rich.table import Table

    from planner.running.doctor.checks import Diagnosis

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(host: str, port: int, database_url: str | None, json: bool) -> int:
    """Print the diagnosis of this machine; the exit code."""
    from planner.presentation.terminal import output
    from planner.running.doctor.checks import examine

    diagnosis = examine(host, port, database_url)
    if json:
        output.print_json(diagnosis)
    else:
        screen = output.Screen()
        screen.print(_table(diagnosis))
        screen.print()
        screen.print(_verdict(diagnosis))
    return FINE if diagnosis.healthy else BAD_INPUT


def _table(diagnosis: Diagnosis) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in diagnosis.checks:
        table.add_row(Text(check.state, _STYLES[check.state]), check.name, Text(check.found))
        if check.advice:
            table.add_row("", "", Text(f"-> {check.advice}", "dim"))
    return table


def _verdict(diagnosis: Diagnosis) -> str:
    count = {state: sum(c.state == state for c in diagnosis.checks) for state in _STYLES}
    if not diagnosis.healthy:
        plural = "s" * (count["fail"] != 1)
        return (
            f"planner {diagnosis.version}: {count['fail']} problem{plural} to fix before it works"
        )
    if count["warn"]:
        plural = "s" * (count["warn"] != 1)
        return f"planner {diagnosis.version} works, with {count['warn']} warning{plural}"
    return f"planner {diagnosis.version} is healthy"
