"""A step of reinforcement learning on a terminal: its parts, the ways to run it, memory."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.answers.reinforcement.documents import (
    STEP_PARTS,
    Generation,
    Phase,
    ReinforcementAnswer,
    ReinforcementRequest,
    Way,
)
from planner.answers.reinforcement.emission import unsaid
from planner.documents.formats import amount, chance, gib, seconds, share, whole_plan_words
from planner.presentation.terminal.plan_rows import asked_of
from planner.presentation.terminal.screens import header
from planner.presentation.terminal.step_timeline import step_timeline
from planner.presentation.terminal.text_wrap import Flow, prose

_PHASES = {
    "training": "while training",
    "transfer": "while weights move",
    "generation": "while generating",
    "host": "host of a node",
}


def reinforcement_screen(
    answer: ReinforcementAnswer, request: ReinforcementRequest, console: Console
) -> RenderableType:
    """The answer to `planner rl`."""
    rows: list[RenderableType] = [
        header(asked_of(request.request), answer.profile),
        Text(),
        *_header_rows(answer, request),
        Text(),
        *_layouts(answer, request),
        Text(),
        Text("Step  one after the other", "bold"),
        _parts(answer),
        *_transfer(answer),
        Text(),
        *step_timeline(answer.ways, console),
        Text(),
        Text("Memory  GiB", "bold"),
        *(_phase(phase) for phase in answer.memory),
        *_hint(answer, request),
        Text(),
        *(prose(note.text, hanging=2) for note in answer.notes),
        Text(),
        *_next(answer, request),
    ]
    return Group(*rows)


def _next(answer: ReinforcementAnswer, request: ReinforcementRequest) -> Iterator[RenderableType]:
    """The launch files, or why there are none."""
    trainer = request.reinforcement.trainer
    if problems := list(unsaid(request)):
        yield prose(f"No launch files: {'; '.join(p.detail for p in problems)}.", hanging=2)
    elif answer.framework is None:
        yield prose(f"No launch files: {trainer} can't run this training.", hanging=2)
    else:
        yield prose(f"Launch files for {trainer}: `planner rl-emit` with the same options.")


def _header_rows(
    answer: ReinforcementAnswer, request: ReinforcementRequest
) -> Iterator[RenderableType]:
    """What a step is made of, how it generates, and the plan of its training."""
    spec, way = request.reinforcement, answer.ways[0]
    lengths = f"{spec.mean_tokens:,}, at most {spec.longest_tokens:,}"
    yield Flow(
        [
            Text(spec.algorithm.upper(), "bold"),
            f"{spec.prompts:,} prompts x {spec.samples:,} samples",
            f"prompts of {spec.prompt_tokens:,} tokens, responses of {lengths}",
            f"{answer.optimizer_steps:,} optimizer step{'s' * (answer.optimizer_steps > 1)}",
        ],
        indent=2,
    )
    count = f"{answer.generation_accelerators:,}"
    which = f"the same {count}" if way.generation == "same" else f"{count} other"
    engines = f"{answer.engines:,} engine{'s' * (answer.engines > 1)} of tp {way.generation_tp}"
    stated = f"{spec.generation_tokens_per_s or 0:,.0f} tokens/s per accelerator, as stated"
    made = answer.generated
    yield Flow(
        [
            f"on {which} accelerators",
            engines,
            *(_engine(made, spec.max_num_seqs) if made else [stated]),
        ],
        indent=2,
        head="generation ",
    )
    head = f"training on {answer.training_accelerators:,} accelerators: "
    step = f"{seconds(answer.training.iteration_time_s)} per optimizer step of full sequences"
    risk = f"{chance(answer.training.memory.chance_of_running_out)} risk of running out of memory"
    yield Flow([*whole_plan_words(answer.training.plan), step, risk], indent=2, head=head)


def _engine(made: Generation, limit: int) -> list[str]:
    """What one engine does at a time."""
    return [
        *(["expert parallel"] if made.expert_parallel else []),
        f"{made.running:,.0f} responses at a time, of at most {limit:,}",
        f"{seconds(made.decode_s)} per token",
        f"{made.steady_tokens_per_s / made.tp:,.0f} tokens/s per accelerator while all are busy",
        f"cache of {gib(made.cache_bytes)} GiB each",
    ]


def _layouts(
    answer: ReinforcementAnswer, request: ReinforcementRequest
) -> Iterator[RenderableType]:
    """The way that is answered, then the others: each with what it needs."""
    low, high = answer.interval_s
    best, *others = answer.ways
    yield Flow(
        [
            Text.assemble(
                (f"{seconds(best.step_time_s)} per step", "bold"),
                f" ({seconds(low)} to {seconds(high)}), {best.name}",
            ),
            f"{best.tokens_per_s:,.0f} tokens/s",
            f"{best.tokens_per_s_per_accelerator:,.0f} per accelerator",
        ],
        indent=2,
    )
    part = answer.parts_s[answer.dominant] / sum(answer.parts_s.values())
    waits = ", mostly waiting for the longest responses" if "longest" in best.limited_by else ""
    yield Text(f"longest part: {answer.dominant}, {share(part)}{waits}")
    for way in others:
        yield _other_layout(way, best, request)


def _other_layout(way: Way, best: Way, request: ReinforcementRequest) -> RenderableType:
    """Another way, against the one that is answered."""
    nodes = way.generation_nodes
    machines = (
        "generating on the ranks that train"
        if way.generation == "same"
        else f"{nodes} node{'s' * (nodes > 1)} generate, {request.nodes - nodes} train"
    )
    late = (
        [f"with --staleness {way.staleness:g}"]
        if way.staleness > request.reinforcement.staleness
        else []
    )
    return Flow(
        [
            f"{way.name}: {seconds(way.step_time_s)} per step",
            machines,
            f"tp {way.generation_tp}",
            f"limited by {way.limited_by}",
            *late,
        ],
        indent=4,
        style="" if way.step_time_s < best.step_time_s else "dim",
        head="or ",
    )


def _parts(answer: ReinforcementAnswer) -> RenderableType:
    total = sum(answer.parts_s.values())
    grid = Table.grid(padding=(0, 2))
    for name, taken in answer.parts_s.items():
        if taken:
            columns = (f"{seconds(taken):>9}", f"{share(taken / total):>7}", STEP_PARTS[name])
            grid.add_row(f"  {name}", *columns)
    return grid


def _transfer(answer: ReinforcementAnswer) -> Iterator[RenderableType]:
    """The steps that the transfer's seconds add up from."""
    pieces = [f"{amount(answer.weight_bytes)} of weights"]
    for part in answer.transfer:
        route = f"gathered over {part.ranks:,} ranks" if part.op == "all_gather" else "sent"
        size = amount(part.payload_bytes)
        pieces.append(f"{part.title}: {size} {route} in {seconds(part.seconds)}")
    if not answer.transfer:
        pieces.append("every rank already has all of them")
    yield Flow(pieces, indent=4, style="dim", head="  weight_transfer: ")


def _hint(answer: ReinforcementAnswer, request: ReinforcementRequest) -> Iterator[RenderableType]:
    """What makes room where a phase has too little: the search knows of the training only."""
    if not answer.fits:
        spec = request.reinforcement
        ways = ["a larger generation_tp", "a smaller gpu_memory_utilization"]
        if not spec.offload:
            ways += ["offload", "limits of the search that leave room"]
        yield Flow(ways, ", ", indent=4, head="  more room: ")


def _phase(phase: Phase) -> RenderableType:
    """One line: what is needed of what is there, and what it is made of."""
    style = "" if phase.fits else "bold red"
    total = f"{gib(phase.total_bytes):>7} of {gib(phase.capacity_bytes)}"
    head = Text(f"  {_PHASES[phase.name]:<18} {total}", style)
    parts = [f"{name} {gib(size)}" for name, size in phase.parts.items()]
    over = [] if phase.fits else [Text("does not fit", style)]
    return Flow([head, *parts, *over], indent=4)
