"""What an estimate rests on, in a line or two of a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from cost_models.catalog.hardware import accelerator
from planner.documents.formats import seconds
from planner.documents.scored_runs import Evidence, ScoredRun
from planner.presentation.terminal.text_wrap import Flow, prose

_STYLES = {"measured": "", "extrapolated": "yellow", "unseen": "bold yellow"}


def evidence_rows(evidence: Evidence, accelerator_id: str) -> Iterator[RenderableType]:
    """On what ground an estimate for an accelerator stands, and the nearest published run."""
    words = prose(evidence.text, indent=0)
    yield Flow([Text(str(word), _STYLES[evidence.ground]) for word in words.pieces], " ")
    yield Flow(_nearest(evidence.nearest[0], accelerator_id), ", ")


def _nearest(run: ScoredRun, accelerator_id: str) -> list[str]:
    elsewhere = run.accelerator != accelerator_id
    where = f"{run.accelerators}"
    where += f" x {accelerator(run.accelerator).name}" if elsewhere else ""
    degrees = [f"{name} {degree}" for name in ("tp", "cp", "pp", "ep")
               if (degree := getattr(run, name)) > 1 or name == "tp"]  # fmt: skip
    return [
        f"nearest: {run.model} on {where}",
        " ".join(degrees),
        f"{seconds(run.predicted_s)} for {seconds(run.measured_s)} measured",
    ]
