"""`planner tune` on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

from rich.console import Group, RenderableType
from rich.text import Text

from planner.documents.formats import chance, plan_words, seconds, whole_plan_words
from planner.documents.request import PlanRequest
from planner.presentation.terminal.text_wrap import Flow, prose
from planner.running.autotune.answer import Candidate, TuneAnswer, short_id

_MAX_ROWS = 8


def tune_screen(answer: TuneAnswer, request: PlanRequest) -> RenderableType:
    """Candidates, the next run and why, or why there is none."""
    return Group(*_head(answer, request), Text(), *_candidates(answer), Text(), *_ending(answer))


def _head(answer: TuneAnswer, request: PlanRequest) -> Iterator[RenderableType]:
    training = request.training
    yield Flow(
        [
            Text.assemble("Tuning ", (request.model.name, "bold"), f" on {request.cluster.name}"),
            f"{training.global_batch_size:,} x {training.seq_length:,} tokens",
            answer.framework,
            f"site {answer.site}",
        ],
        indent=2,
    )
    pieces = ["no runs of this are measured yet"]
    if answer.runs:
        pieces = [f"{_runs(answer.runs)} of this measured, {answer.gpu_hours:.3g} GPU-hours"]
    if answer.other_runs:
        others = f"{_runs(answer.other_runs)} of the site"
        pieces.append(f"{others} with another model, cluster or batch")
    yield Flow(pieces, indent=2, head="  ")


def _runs(count: int) -> str:
    return f"{count:,} run{'s' * (count != 1)}"


def _candidates(answer: TuneAnswer) -> Iterator[RenderableType]:
    rows = _shown_candidates(answer)
    yield Text("plan    fastest?   expected   80 %    measured", "bold")
    for row in rows:
        following = answer.next is not None and row.id == answer.next.id
        style = "bold" if following else ""
        either = (row.high_s / row.low_s) ** 0.5 - 1.0
        measured = "-" if row.measured_s is None else seconds(row.measured_s)
        yield Text(
            f"{short_id(row.id)}  {chance(row.chance_best):>8}  {seconds(row.expected_s):>9}  "
            f"{f'±{either:.1%}':>6}  {measured:>9}" + ("  next" if following else ""),
            style,
        )
        style = "" if following else "dim"
        yield Flow(whole_plan_words(row.plan), indent=2, style=style, head="  ")
    if (rest := len(answer.candidates) - len(rows)) > 0:
        others = 1.0 - fsum(row.chance_best for row in rows)
        yield prose(f"and {rest} more, {chance(max(others, 0.0))} in all: --json lists them", 0)


def _shown_candidates(answer: TuneAnswer) -> list[Candidate]:
    """The most promising, and whatever was measured or is next."""
    first = {c.id for c in answer.candidates[:_MAX_ROWS]}
    if answer.next is not None:
        first.add(answer.next.id)
    measured = [c.id for c in answer.candidates if c.measured_s is not None]
    first.update(measured[:_MAX_ROWS])
    return [c for c in answer.candidates if c.id in first]


def _ending(answer: TuneAnswer) -> Iterator[RenderableType]:
    """The next run, or why there is none and what is best."""
    best = next((c for c in answer.candidates if c.id == answer.best), None)
    if best is not None and best.measured_s is not None:
        title = Text.assemble(("Best measured  ", "bold"), short_id(best.id))
        parts = plan_words(best.plan.model_dump())
        yield Flow([title, seconds(best.measured_s), *parts], indent=2)
        yield prose(
            "chance that a plan not yet run is more than 1 % faster: "
            f"{chance(answer.chance_faster)}"
        )
    if answer.ending is not None:
        yield Text("Stop", "bold")
        yield prose(answer.ending.text)
        return
    run = answer.next
    assert run is not None
    yield Text.assemble(("Run next  ", "bold"), short_id(run.id))
    yield prose(run.why)
    yield prose(
        f"{run.iterations} iterations, at most {run.time_limit_s / 60:.0f} minutes and "
        f"{run.gpu_hours:.3g} GPU-hours"
    )
