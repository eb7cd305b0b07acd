"""Rows of one plan on a terminal: its degrees, layers, throughput, memory and whole run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from cost_models.parameters import total_parameters
from planner.documents import formats
from planner.documents.answer import Selection
from planner.documents.plan_report import TIGHT, ErrorBand, Memory, Pipeline, PlanReport
from planner.documents.request import PlanRequest
from planner.documents.scored_runs import Evidence
from planner.presentation.terminal.bars import memory_bars, time_bar
from planner.presentation.terminal.evidence_rows import evidence_rows
from planner.presentation.terminal.text_wrap import Flow, prose

LEAST_SELECTION = 0.01  # least error of the picked plan's time that is shown
MAX_RUNTIMES = 1  # limit on the frameworks named beside a schedule
_MAX_STAGES = 8  # limit on lines of layers


@dataclass(frozen=True)
class RequestSummary:
    """The request, with the number of the model's parameters."""

    request: PlanRequest
    parameters: float

    def mark(self, *pointers: str) -> str:
        """A star where one of these values is a default."""
        return "*" if set(pointers) & set(self.request.defaulted) else ""


def asked_of(request: PlanRequest) -> RequestSummary:
    """The request with what a screen says of it."""
    return RequestSummary(request, total_parameters(request.model))


def report_rows(
    report: PlanReport,
    title: str,
    summary: RequestSummary,
    console: Console,
    evidence: Evidence | None = None,
    selection: Selection | None = None,
) -> list[RenderableType]:
    """All rows of a plan: facts, bars of its memory and of its time."""
    facts = Table.grid(padding=(0, 2))
    style = "bold green" if report.fits else "bold red"
    named = report.pipeline is None  # else the schedule has a row of its own
    first, *rest = _degrees(report, named)
    facts.add_row(Text(title, style), first)
    for line in rest:
        facts.add_row("", line)
    if report.pipeline is not None:
        facts.add_row("schedule", Flow(_pipeline(report.plan.schedule, report.pipeline)))
        if not report.pipeline.synchronous:
            facts.add_row("", Text(f"asynchronous: {report.pipeline.staleness}", "yellow"))
    facts.add_row("throughput", Flow(speed(report)))
    for doubt in _doubts(report.error_band, selection):
        facts.add_row("", Text(doubt, "dim"))
    if evidence is not None:
        chip = summary.request.cluster.groups[0].accelerator.id
        for name, row in evidence_rows(evidence, report, chip):
            facts.add_row(name, row)
    utilisation = [
        f"MFU {formats.share(report.mfu)} (causal {formats.share(report.mfu_causal)})",
        f"HFU {formats.share(report.hfu)}",
        f"{formats.tflop_per_s(report.model_flop_per_s_per_accelerator)} TFLOP/s per device",
    ]
    facts.add_row("utilisation", Flow(utilisation))
    for name, row in _memory_rows(report.memory):
        facts.add_row(name, row)
    if run := whole_run(report, summary):
        facts.add_row("whole run", Flow(run))
    return [facts, Text(), *memory_bars(report.memory, console), Text(), *time_bar(report, console)]


def _degrees(report: PlanReport, named: bool) -> Iterator[RenderableType]:
    """Lines of the plan's degrees and of its layers; named: with its schedule."""
    plan = report.plan.model_dump()
    parts = [Text(part, "bold") for part in formats.plan_words(plan, schedule=named)]
    if not report.fits:
        parts.append(Text("does not fit", "bold red"))
    yield Flow(parts)
    yield Flow([*formats.memory_words(plan), *layer_words(report)])
    yield from _stages(report.layers_by_kind)


def layer_words(report: PlanReport) -> list[str]:
    """The layers of each stage, and of each virtual one where the plan says them."""
    layers = [f"layers {_layers(report.layers_per_stage)}"]
    if len(report.plan.stage_layers) > report.plan.pp:
        layers.append(f"by virtual stage {_layers(report.plan.stage_layers)}")
    return layers


def free_words(memory: Memory, beside: Memory) -> str:
    """The share of the memory that is free, counted as in a plan that it is told beside."""
    cached = memory.full_of_cache or beside.full_of_cache
    return f"{formats.share(memory.free_of(cached))} free" + " but for cache" * cached


def _doubts(band: ErrorBand, selection: Selection | None) -> Iterator[str]:
    """The interval, and the time to expect of a plan that was picked as the shortest of several."""
    yield _band(band)
    if selection is not None and selection.share >= LEAST_SELECTION:
        seconds, error = formats.seconds(selection.expected_time_s), formats.share(selection.share)
        best = f"the fastest of {selection.plans} estimates"
        yield f"expect {seconds}: {best} is {error} low on average"


def _memory_rows(memory: Memory) -> Iterator[tuple[str, RenderableType]]:
    """The memory of the fullest stage, and of a node's host where something is offloaded to it."""
    yield "memory", _headroom(memory)
    if host := memory.host_bytes:
        yield "", f"{formats.gib(host)} GiB of states in a node's host memory"


def _headroom(memory: Memory) -> RenderableType:
    """The memory of the fullest stage, marked as tight if little is free."""
    free = memory.free_share
    if free < 0:
        return Flow([Text(formats.overflow(memory), "bold red")])
    used = f"{formats.gib(memory.peak_bytes)} of {formats.gib(memory.capacity_bytes)} GiB"
    text = free_words(memory, memory)
    stage = f" on stage {memory.worst_stage}" if len(memory.stages) > 1 else ""
    parts = [f"{used}{stage}", text]
    tight = [Text("tight", "bold yellow")] if free < TIGHT else []
    risk = Text(f"{formats.chance(memory.chance_of_running_out)} risk of running out")
    return Flow([*(Text(part, "yellow" if tight else "") for part in parts), *tight, risk], ", ")


def whole_run(report: PlanReport, summary: RequestSummary) -> list[str]:
    """Days, cost and energy, with the price and the overhead that they are counted at."""

    def mark(*names: str) -> str:
        parts = ("/cluster", "/cluster/groups/0")
        return summary.mark(*(f"{part}/{name}" for part in parts for name in names))

    cluster = summary.request.cluster
    parts = [] if report.days is None else [formats.days(report.days)]
    price = cluster.groups[0].price_usd_per_accelerator_hour
    if report.cost_usd is not None and price is not None:
        star = mark("price_usd_per_accelerator_hour")
        parts.append(
            f"{formats.dollars(report.cost_usd)} at ${price:.2f} per accelerator-hour{star}"
        )
    if report.energy_kwh is not None:
        star = mark("pue", "node_power_watts")
        parts.append(f"{formats.energy(report.energy_kwh)} at PUE {cluster.pue:g}{star}")
    return parts


def _pipeline(schedule: str, pipeline: Pipeline) -> list[str | Text]:
    """Who runs the schedule, and what its own order takes beside the time of the closed form."""
    parts: list[str | Text] = [schedule]
    if pipeline.frameworks:
        runs = pipeline.frameworks[:MAX_RUNTIMES]
        rest = len(pipeline.frameworks) - len(runs)
        more = f" and {rest} other{'s' if rest > 1 else ''}" if rest else ""
        parts.append(f"available in {', '.join(runs)}{more}")
    else:
        parts.append(Text("available in no framework known here", "yellow"))
    if pipeline.simulated_iteration_time_s is not None:
        parts.append(f"{formats.seconds(pipeline.simulated_iteration_time_s)} simulated")
    return parts


def speed(report: PlanReport) -> list[str]:
    """Throughput and the time of an iteration."""
    return [
        f"{report.tokens_per_s:,.0f} tokens/s",
        f"{formats.seconds(report.iteration_time_s)} per iteration"
        f" of {report.num_micro_batches} micro-batch{'es' * (report.num_micro_batches != 1)}",
    ]


def _band(band: ErrorBand) -> str:
    return f"{formats.seconds(band.low_s)} to {formats.seconds(band.high_s)}: {band.basis}"


def _layers(layers: Sequence[int]) -> str:
    """Layers per stage with equal neighbours folded: 31 32x2 31."""
    folded: list[list[int]] = []
    for count in layers:
        if folded and folded[-1][0] == count:
            folded[-1][1] += 1
        else:
            folded.append([count, 1])
    parts = [str(count) if times == 1 else f"{count}x{times}" for count, times in folded]
    return " ".join(parts)


def _stages(stages: Sequence[Mapping[str, int]]) -> Iterator[RenderableType]:
    """A line for each stage with its layers of each kind, equal neighbours in one."""
    folded: list[list[int]] = []
    for i, layers in enumerate(stages):
        if folded and stages[folded[-1][0]] == layers:
            folded[-1].append(i)
        else:
            folded.append([i])
    for same in folded[:_MAX_STAGES]:
        name = f"stage {same[0]}" if len(same) == 1 else f"stages {same[0]}-{same[-1]}"
        yield prose(f"{name}: {formats.kinds_words(stages[same[0]])}", indent=0, hanging=2)
    if rest := folded[_MAX_STAGES:]:
        yield Text(f"and {sum(map(len, rest))} more stages")
