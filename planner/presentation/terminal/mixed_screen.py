"""The best use of a mixed cluster on a terminal."""

from __future__ import annotations

from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from planner.answers.mixed_clusters.answer import MixedAnswer, Option
from planner.documents.formats import days, dollars, gib, memory_words, plan_words, seconds
from planner.presentation.terminal.text_wrap import Flow, prose

_WORDS = {
    "part": "these nodes alone", "slowest": "all, evenly", "pipeline": "all, layers by speed",
}  # fmt: skip


def mixed_screen(answer: MixedAnswer) -> RenderableType:
    """The verdict, the ways side by side, and the layers of the best pipeline."""
    names = [
        f"{g.nodes} nodes of {g.accelerators // g.nodes} {g.accelerator}" for g in answer.groups
    ]
    rows: list[RenderableType] = [
        Text.assemble(
            (str(answer.request["model"]["name"]), "bold"), "  on  " + " and ".join(names)
        ),
        Text(),
        Text(answer.verdict, style="bold green" if answer.options else "bold red"),
        Text(),
    ]
    for option in answer.options:
        rows += _option(answer, option)
        if option.kind == "pipeline":
            rows += _stages(answer, option)
        rows.append(Text())
    return Group(*rows, *(prose(note.text, hanging=2) for note in answer.notes))


def _option(answer: MixedAnswer, option: Option) -> list[RenderableType]:
    """Whose nodes and how, then time and money, then the plan."""
    nodes = " + ".join(
        f"{answer.groups[g].accelerators:,} x {answer.groups[g].accelerator}" for g in option.order
    )
    figures = [f"{seconds(option.iteration_time_s)} per iteration"]
    figures.append(f"{option.tokens_per_s:,.0f} tokens/s")
    if option.days is not None:
        figures.append(days(option.days))
    if option.cost_usd is not None:
        figures.append(dollars(option.cost_usd))
    plan = option.plan.model_dump()
    return [
        Text.assemble((nodes, "bold"), f"  {_WORDS[option.kind]}"),
        Flow(figures, indent=2, head="  "),
        Flow([*plan_words(plan), *memory_words(plan)[:1]], indent=2, head="  "),
    ]


def _stages(answer: MixedAnswer, option: Option) -> list[RenderableType]:
    """A line per run of stages of one group."""
    lines: list[RenderableType] = []
    for group, stages in groupby(option.stages, key=lambda stage: stage.group):
        run = list(stages)
        kind = answer.groups[group].accelerator
        layers = " ".join(str(stage.layers) for stage in run)
        slowest = max(stage.micro_batch_s for stage in run)
        fullest = max(run, key=lambda stage: stage.total_bytes / stage.capacity_bytes)
        lines.append(
            Flow(
                [f"  layers on {kind}: {layers}", f"up to {seconds(slowest)} per micro-batch",
                 f"{gib(fullest.total_bytes)} of {gib(fullest.capacity_bytes)} GiB on stage "
                 f"{fullest.stage}"],
                indent=4,
            )
        )  # fmt: skip
    return lines
