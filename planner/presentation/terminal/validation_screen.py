"""A validation on a terminal: the verdict, predictions beside measurements, and the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.documents.formats import seconds, size, whole_plan_words
from planner.presentation.terminal.bars import bar, legend
from planner.presentation.terminal.text_wrap import Flow, notes, prose
from planner.running.validate.report import Term, ValidationReport, measured_peak_bytes
from planner.running.validate.run_files import PARTS

# Letter and colour of each part; the letter fills the bar if there is no colour.
_STYLES = {
    "forward": ("F", "green"),
    "backward": ("B", "blue"),
    "communication": ("C", "yellow"),
    "optimizer": ("O", "bright_cyan"),
    "idle": (".", "bright_black"),
    "other": ("x", "magenta"),
}
_VERDICTS = {
    "within": ("The plan runs as predicted", "bold green"),
    "outside": ("The plan does not run as predicted", "bold red"),
    "inside the noise": ("The repeats scatter too widely to tell", "bold yellow"),
}
_MAX_RANKS = 16


def validation_screen(report: ValidationReport, console: Console) -> RenderableType:
    """The answer to `planner validate`."""
    verdict, style = _VERDICTS[report.verdict]
    rows: list[RenderableType] = [_header(report), Text(), Text(verdict, style=style)]
    for name, outcome in report.outcomes.items():
        rows.append(prose(f"{name} {outcome.verdict}: {outcome.why}", hanging=2))
    rows += [Text(), _table(report), *_predictions(report)]
    rows += [Text(), *_ranks(report, console), _losses(report)]
    return Group(*rows, *notes("What this run does not show", report.caveats))


def _header(report: ValidationReport) -> RenderableType:
    request, environment = report.request, report.environment
    devices = " + ".join(environment["devices"]).replace("cpu", "CPU")
    machine = (
        f"{environment['processes']} processes of {devices}, {environment['threads_per_process']} "
        f"thread each, {environment['cores']} cores, torch {environment['torch']}"
    )
    parts = [*whole_plan_words(request["plan"]), request["training"]["precision"]]
    rows = [
        Flow([Text(request["model"]["name"], "bold"), machine], "  on  ", indent=2),
        Flow(parts, indent=2, head="  "),
    ]
    if report.scaled_from:
        # Only the last part of a pointer: tp, hidden_size, cluster.
        changes = [f"{at.rpartition('/')[2]} {was}" for at, was in report.scaled_from.items()]
        rows.append(Flow(changes, indent=4, head="  scaled down from "))
    return Group(*rows)


def _table(report: ValidationReport) -> RenderableType:
    """Predicted and measured time and memory, with their parts."""
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right"):
        table.add_column(justify=justify)
    table.add_row(*(Text(name, "bold") for name in ("", "predicted", "measured", "off, of all")))
    measured = report.measured_iteration_time_s
    step = Term(name="step", predicted=report.predicted_iteration_time_s, measured=measured.median)
    peak_bytes = report.predicted_peak_bytes, report.measured_peak_bytes
    peak = Term(name="peak memory", predicted=peak_bytes[0], measured=peak_bytes[1])
    in_time = _rows(step, report.time_terms, seconds)
    for row in (*in_time, (), *_rows(peak, report.memory_terms, _amounts(report))):
        table.add_row(*row)
    return table


def _amounts(report: ValidationReport) -> Callable[[float], str]:
    """The format of all amounts of memory: KiB for the small models of CPU runs."""
    return size if report.measured_peak_bytes >= 10 * 2**20 else _kib


def _kib(value: float) -> str:
    return f"{value / 1024:,.1f} KiB"


def _rows(
    total: Term, terms: tuple[Term, ...], text: Callable[[float], str]
) -> Iterator[tuple[Text, ...]]:
    for term in (total, *terms):
        if term.predicted or term.measured:
            name = term.name if term is total else f"  {term.name}"
            off = (term.predicted - term.measured) / total.measured if total.measured else 0.0
            sign = "+" if off > 0 else ""
            # Errors are relative to the whole, so those of the parts add up to that of the whole.
            cells = (f"  {name}", text(term.predicted), text(term.measured), f"{sign}{off:.0%}")
            yield tuple(Text(cell, "bold" if term is total else "") for cell in cells)


def _predictions(report: ValidationReport) -> Iterator[RenderableType]:
    profile = report.profile
    text = f"priced with {profile.id} ({profile.kind})"
    measured = report.measured_iteration_time_s.median
    for name, predicted_s in report.predictions_s.items():
        if name != profile.id:
            off = predicted_s / measured - 1
            text += f"; with {name}, before calibration, {seconds(predicted_s)} ({off:+.0%})"
    yield prose(text, hanging=2)


def _ranks(report: ValidationReport, console: Console) -> Iterator[RenderableType]:
    """A bar per rank with the parts of its profiled step."""
    title = Text("Ranks", style="bold")
    title.append("  where a profiled step of each goes, and the most its tensors hold", style="")
    yield title
    shown = report.ranks[:_MAX_RANKS]
    longest = max((sum(rank.parts_s.values()) for rank in shown), default=0.0)
    if not longest:
        return
    width = max(20, min(console.width, 100) - 44)
    grid = Table.grid(padding=(0, 1))
    for rank in shown:
        stages = "+".join(map(str, rank.stages))
        total = sum(rank.parts_s.values())
        grid.add_row(
            f"  rank {rank.rank} stage {stages} ",
            bar(rank.parts_s, _STYLES, longest, width, console),
            f"{seconds(total):>7}",
            f"{_amounts(report)(measured_peak_bytes(rank)):>9}",
        )
    yield grid
    if hidden := len(report.ranks) - len(shown):
        yield Text(f"  and {hidden} more ranks")
    yield legend({name: name for name in PARTS}, _STYLES, console)


def _losses(report: ValidationReport) -> RenderableType:
    first, last, steps = report.losses[0], report.losses[-1], len(report.losses)
    return prose(f"loss {first:.4f} -> {last:.4f} in {steps} steps", hanging=2)
