"""A step of reinforcement learning beside its log, on a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.answers.reinforcement.documents import ReinforcementRequest
from planner.answers.reinforcement.measured import MeasuredAnswer
from planner.documents.formats import seconds
from planner.presentation.terminal.reinforcement_screen import reinforcement_screen
from planner.presentation.terminal.text_wrap import prose

ALIKE = 1.1  # means that differ by less are the same lengths


def measured_screen(
    answer: MeasuredAnswer, request: ReinforcementRequest, console: Console
) -> RenderableType:
    """The answer, then what the log says of each phase."""
    measured, tokens = answer.measured, request.reinforcement.mean_tokens
    grid = Table.grid(padding=(0, 2))
    grid.add_row("  phase", "predicted", "measured", "ratio")
    for phase in answer.phases:
        ratio = "" if phase.ratio is None else f"{phase.ratio:5.2f}"
        times = (f"{seconds(phase.predicted_s):>9}", f"{seconds(phase.measured_s):>9}")
        grid.add_row(f"  {phase.phase}", *times, ratio)
    many = "s" * (measured.steps != 1)
    head = f"  {measured.trainer}, the median of {measured.steps:,} step{many}"
    rows: list[RenderableType] = [
        reinforcement_screen(answer.step, request, console),
        Text(),
        Text.assemble(("Measured", "bold"), head),
        grid,
    ]
    mean = measured.response_tokens
    if mean and not 1 / ALIKE < tokens / mean < ALIKE:
        rows.append(prose(
            f"Its responses have {mean:,.0f} tokens in the mean, {tokens:,} are asked for: "
            f"--response-tokens {mean:.0f} compares the same."
        ))  # fmt: skip
    if rate := answer.generation_tokens_per_s:
        rows.append(prose(
            f"Its engines made {rate:,.0f} tokens/s each: --generation-tokens-per-s {rate:.0f} "
            "takes their rate in place of the modelled one."
        ))  # fmt: skip
    return Group(*rows)
