"""What an estimate rests on, in a line or two of a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from cost_models.catalog.hardware import accelerator
from planner.documents.formats import seconds, tflop_per_s
from planner.documents.plan_report import PlanReport
from planner.documents.scored_runs import Evidence, Record, ScoredRun
from planner.presentation.terminal.text_wrap import Flow, prose

_STYLES = {"measured": "", "extrapolated": "yellow", "unseen": "bold yellow"}


# Differences from the record that are told; the rest are counted.
_MAX_DIFFERENCES = 2
_RECORD_MARGIN = 1.05  # times the record, from which the differences are told


def evidence_rows(
    evidence: Evidence, report: PlanReport, accelerator_id: str
) -> Iterator[tuple[str, RenderableType]]:
    """Titled rows: the ground of a plan's estimate, and the record, else the nearest run."""
    text = prose(evidence.text, indent=0)
    yield (
        "evidence",
        Flow([Text(str(piece), _STYLES[evidence.ground]) for piece in text.pieces], " "),
    )
    if evidence.record is None:
        yield "", Flow(_nearest(evidence.nearest[0], accelerator_id), ", ")
    else:
        yield "published", Flow(_record(evidence.record, report), " ")


def _record(record: Record, report: PlanReport) -> Iterator[str]:
    """The fastest published run, this plan beside it, and what it has that the run had not."""
    run, ratio = record.run, report.model_flop_per_s_per_accelerator / record.run.model_flop_per_s
    yield f"{tflop_per_s(run.model_flop_per_s)} TFLOP/s:"
    yield f"{run.model} on {run.accelerators}"
    yield f"({run.source} {run.year});"
    if ratio < _RECORD_MARGIN or not record.differs:
        yield f"here {ratio:.2f}x"
        return
    yield f"here {ratio:.2f}x, with"
    differs = list(record.differs[:_MAX_DIFFERENCES])
    if more := len(record.differs) - len(differs):
        differs.append(f"{more} more")
    yield from (f"{change}," for change in differs[:-1])
    yield differs[-1]


def _nearest(run: ScoredRun, accelerator_id: str) -> list[str]:
    elsewhere = run.accelerator != accelerator_id
    machines = f"{run.accelerators}"
    machines += f" x {accelerator(run.accelerator).name}" if elsewhere else ""
    degrees = [f"{name} {degree}" for name in ("tp", "cp", "pp", "ep")
               if (degree := getattr(run, name)) > 1 or name == "tp"]  # fmt: skip
    return [
        f"nearest: {run.model} on {machines}",
        " ".join(degrees),
        f"predicted {seconds(run.predicted_s)}, measured {seconds(run.measured_s)}",
    ]
