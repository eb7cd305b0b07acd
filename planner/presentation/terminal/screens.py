"""Answers on a terminal: one screen that reads at a glance, at 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec
from planner.constraints import Context
from planner.documents.answer import (
    Baseline,
    EstimateAnswer,
    HeldFixed,
    Launch,
    PlanAnswer,
    ProfileInfo,
    RankOrder,
    Replanned,
    Unbuildable,
    WhyAnswer,
)
from planner.documents.formats import (
    TIE,
    gap,
    gib,
    plan_words,
    seconds,
    share,
    short,
    value_words,
    whole_plan_words,
)
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.frameworks.supported import trainers_left_out
from planner.presentation.terminal.pick_rows import pick_rows
from planner.presentation.terminal.plan_rows import RequestSummary, report_rows, speed
from planner.presentation.terminal.recipe_rows import recipe_rows
from planner.presentation.terminal.refusal_rows import change_row, count_rows, nothing_fits_rows
from planner.presentation.terminal.tables import ranking, with_chance
from planner.presentation.terminal.text_wrap import Flow, notes, prose

# What another value would save of the time, at least, to be told with its name.
WORTH_OPENING = 0.001

# Frameworks whose best plan is told on the screen.
MAX_FRAMEWORKS = 3


def plan_screen(answer: PlanAnswer, summary: RequestSummary, console: Console) -> RenderableType:
    """The answer to `planner plan`."""
    rows: list[RenderableType] = [header(summary, answer.profile), Text()]
    if answer.best is None and answer.unbuildable is not None:
        rows += _unbuildable(answer.unbuildable, summary, console)
        return Group(*rows)
    if answer.best is None:
        rows += nothing_fits_rows(answer)
        return Group(*rows, Text(), *count_rows(answer))
    if answer.no_launch is not None:
        rows.append(Text("No framework here can launch this plan", style="bold yellow"))
        rows += [prose(answer.no_launch, 2, 2), Text()]
    if answer.fallback is not None:
        rows += [prose(answer.fallback, 0, 2), Text()]
    rows += report_rows(
        answer.best, "Best plan", summary, console, answer.evidence, answer.selection
    )
    if answer.baseline is not None:
        rows.append(_baseline(answer.baseline, answer.plans))
    if answer.rival is not None:
        rows.append(prose(answer.rival.sentence, 0, 2))
    if answer.replanned is not None:
        rows.append(_replanned(answer.replanned))
    rows += pick_rows(answer.best, answer.picks)
    if answer.recipe is not None:
        rows += recipe_rows(answer.recipe, answer.best)
    rows += _frameworks(answer, summary.request.search.objective)
    rows += _trainers_left_out(summary.request)
    rows += _rank_order(answer.rank_orders, answer.best.plan.rank_order)
    rows += _held_fixed(answer)
    if len(answer.plans) > 1:
        rows += [Text(), ranking(answer, summary.request.search, min(console.width, 100))]
    return Group(*rows, *count_rows(answer))


def _held_fixed(answer: PlanAnswer) -> list[RenderableType]:
    """A row of the fields that the search held fixed, and what another value would save."""
    if not answer.held_fixed:
        return []
    first, *others = answer.held_fixed
    parts = [f"{_fields(answer.held_fixed)}: no gain"]
    if first.saves >= WORTH_OPENING:
        saves = f"{_option_words(first)} saves {share(first.saves)}"
        parts = [f"{first.field.replace('_', ' ')} {value_words(first.value)} ({saves})"]
    if others and first.saves >= WORTH_OPENING:
        fields = (
            f"at most {share(others[0].saves)}" if others[0].saves >= WORTH_OPENING else "no gain"
        )
        parts.append(f"{_fields(others, 'others')}: {fields}")
    return [Flow(parts, indent=2, head="Not varied: ")]


def _fields(held: Sequence[HeldFixed], several: str = "fields") -> str:
    """A field by its name, several by their number."""
    return f"{len(held)} {several}" if len(held) > 1 else held[0].field.replace("_", " ")


def _option_words(fixed: HeldFixed) -> str:
    """The option that sets the other value."""
    flag = fixed.field.replace("_", "-")
    if isinstance(fixed.other, bool):
        return f"--{flag}" if fixed.other else f"--no-{flag}"
    return f"--{flag} {value_words(fixed.other)}"


def _replanned(replanned: Replanned) -> RenderableType:
    """What the request's efficiency profile changed."""
    by_usual = f"by the usual profile {replanned.usual_profile}"
    if not replanned.differences:
        best_s = replanned.plan.iteration_time_s
        return Text(
            f"The same plan is best {by_usual}, at {seconds(replanned.usual_time_s)} instead of "
            f"{seconds(best_s)}"
        )
    head = f"Best {by_usual}, here {share(replanned.slower_by)} slower: "
    return Flow(whole_plan_words(replanned.plan.plan), indent=2, head=head)


def _frameworks(answer: PlanAnswer, objective: str) -> list[RenderableType]:
    """Who runs the best plan, and how far behind the best of the next is by the objective."""
    if len(answer.frameworks) < 2:
        return []
    by_memory = objective == "memory_headroom"
    first = answer.frameworks[:MAX_FRAMEWORKS]
    parts = [f"{f.framework} {_gap_text(f, by_memory)}".rstrip() for f in first]
    if more := len(answer.frameworks) - len(first):
        parts.append(f"{more} more")
    return [Flow(parts, indent=2, head="Frameworks: ")]


def _trainers_left_out(request: PlanRequest) -> list[RenderableType]:
    """Why some trainers of adapters were not searched, where none is named."""
    if request.search.framework is not None:
        return []
    context = Context(request.model, request.cluster, request.training)
    left_out = trainers_left_out(context, request.training_left_out)
    rows = (
        f"Not searched: {name}, which trains in other types ({reason}): "
        f"--framework {name} plans it as it trains by itself"
        for name, reason in left_out.items()
    )
    return [prose(row, 0, 2) for row in rows]


def _gap_text(launch: Launch, by_memory: bool) -> str:
    """The free memory of a framework's best plan, or how much slower it is than the best."""
    if by_memory:
        memory = launch.plan.memory
        return f"{share(1.0 - memory.peak_bytes / memory.capacity_bytes)} free"
    if launch.slower_by >= 1.0:
        return f"takes {1.0 + launch.slower_by:.1f} times as long"
    if launch.slower_by < 0.0:
        # Only one that no run was published of comes behind a slower one.
        return f"{-100 * launch.slower_by:.1f} % faster, but by its code alone: no published run"
    return f"{100 * launch.slower_by:.1f} % slower" if launch.slower_by else ""


def _rank_order(orders: Sequence[RankOrder], used: str) -> list[RenderableType]:
    """A line where another order of the ranks is faster, or the plan's own is not the usual one."""
    if not orders or orders[0].rank_order == ParallelPlan().rank_order:
        return []
    best, other = orders[0], orders[-1]
    if other.slower_by < TIE:
        return []
    gain = f"{gap(other.slower_by)} faster than {other.rank_order}"
    hint = "as here" if best.rank_order == used else "--open rank_order searches both"
    by = f"run by {', '.join(best.frameworks) or 'no framework, as it is'}"
    return [Flow([f"Ranks in the order {best.rank_order}: {gain}", by, hint], indent=2)]


def estimate_screen(
    answer: EstimateAnswer, summary: RequestSummary, console: Console
) -> RenderableType:
    """The answer to `planner estimate`, with what it assumes and leaves out."""
    report = answer.estimate
    rows: list[RenderableType] = [header(summary, answer.profile), Text()]
    rows += report_rows(report, "Estimate", summary, console, answer.evidence)
    for name, listed in (("Assumed", report.assumptions), ("Not modelled", report.not_modelled)):
        rows += notes(name, (note.text for note in listed))
    return Group(*rows)


def why_screen(answer: WhyAnswer, summary: RequestSummary, console: Console) -> RenderableType:
    """The answer to `planner why`: the verdict, what binds, and what would fit."""
    verdicts = {
        "illegal": "This plan cannot run",
        "does not fit": "This plan does not fit",
        "may run out": "This plan may run out of memory",
        "slower": "This plan runs, but is not the fastest",
        "best": "This is the best plan",
    }
    rows: list[RenderableType] = [header(summary, answer.profile), Text()]
    style = "bold green" if answer.verdict == "best" else "bold red"
    rows.append(Text(verdicts[answer.verdict], style=style))
    rows += [prose(reason.text, hanging=2) for reason in answer.reasons]
    if answer.estimate is not None:
        rows += [Text(), *report_rows(answer.estimate, "The plan", summary, console)]
    if answer.smallest_change is not None:
        rows += [Text(), Text("Smallest change that fits", style="bold")]
        rows.append(change_row(answer.smallest_change))
    if answer.best is not None and answer.verdict != "best":
        rows += [Text(), Text("Best plan", style="bold")]
        rows.append(Flow(whole_plan_words(answer.best.plan), indent=2, head="  "))
        rows.append(Flow(speed(answer.best), indent=2, head="  "))
        if answer.slower_by is not None:
            rows.append(Text(f"  the named plan takes {share(answer.slower_by)} more time"))
        if answer.chance_slower is not None:
            rows.append(prose(f"  the best is faster {with_chance(answer.chance_slower)}"))
        largest = sorted(answer.differences_s.items(), key=lambda item: -abs(item[1]))
        rows += [
            Text(f"    {name:<12} {'+' if value > 0 else '-'}{seconds(abs(value))}")
            for name, value in largest[:5]
            if value
        ]
    return Group(*rows)


def _network(cluster: ClusterSpec) -> Iterator[str]:
    """The rate at which an accelerator sends beyond its fastest domain, where any does."""
    for rate in dict.fromkeys(
        group.network[-1].bandwidth_bytes_per_s
        for group in cluster.groups
        if cluster.accelerators > (group.network[0].domain_accelerators or cluster.accelerators)
    ):
        yield f"network {rate / 1e9:.3g} GB/s per device"


def header(summary: RequestSummary, profile: ProfileInfo) -> RenderableType:
    """The request, and the calibration that its estimates rest on."""
    request, mark = summary.request, summary.mark
    groups = " + ".join(
        f"{group.nodes} x {group.accelerators_per_node} {group.accelerator.name}"
        for group in request.cluster.groups
    )
    training = request.training
    reserved_bytes = request.cluster.reserved_bytes_per_accelerator
    reserved = "estimated" if reserved_bytes is None else f"{gib(reserved_bytes)} GiB"
    first = Flow(
        [
            Text(request.model.name, "bold"),
            f"{short(summary.parameters)} parameters",
            Text.assemble("on  ", (groups, "bold")),
        ],
        "  ",
        indent=2,
    )
    parts = [
        f"sequence {training.seq_length:,}",
        f"batch {training.global_batch_size:,}",
        training.precision + mark("/training/precision"),
        f"gradients {training.gradient_dtype}" + mark("/training/gradient_dtype"),
        training.optimizer + mark("/training/optimizer"),
    ]
    basis = [
        f"efficiency {profile.name} ({profile.kind})",
        *_network(request.cluster),
        f"reserved memory {reserved}" + mark("/cluster/reserved_bytes_per_accelerator"),
        *([f"site {request.site}"] if request.site else []),
        "* default",
    ]
    rows: list[RenderableType] = [first, Flow(parts, indent=2), Flow(basis, indent=2, style="dim")]
    if request.guessed:
        said, *others = request.guessed
        more = f"; {len(others)} more: planner model lists them" if others else ""
        rows.append(prose(f"assumed: {said}{more}", 0, 2))
    return Group(*rows)


def _baseline(baseline: Baseline, plans: Iterable[PlanReport]) -> RenderableType:
    theirs = baseline.report.plan.model_dump()
    first, *more = plan_words(theirs)
    for ours in (one.plan.model_dump() for one in plans):
        if plan_words(ours) == [first, *more]:
            # Equal in words: what differs is none of what they say.
            more += [f"{n} {value_words(theirs[n])}" for n in ours if ours[n] != theirs[n]]
            break
    times = f"{baseline.speedup:.2f}x"
    speedup = Text.assemble(
        ("as fast as", "bold") if times == "1.00x"
        else (f"{times} faster than", "bold green") if baseline.speedup > 1
        else (f"{times} the speed of", "bold"),
        f" a hand-made plan: {first}",
    )  # fmt: skip
    return Group(Text(), Flow([speedup, *more], indent=2))


def _unbuildable(
    unbuildable: Unbuildable, summary: RequestSummary, console: Console
) -> Iterator[RenderableType]:
    """Why the framework asked for runs none, and the best plan of those that do."""
    yield prose(unbuildable.sentence, indent=0, hanging=2)
    yield Text()
    if unbuildable.instead is None and unbuildable.able:
        yield Text("No plan of these frameworks fits either", style="bold red")
    elif unbuildable.instead is None:
        yield prose("Without --framework, plans are estimated that no framework here can run.", 0)
    else:
        yield from report_rows(
            unbuildable.instead.plan, f"By {unbuildable.instead.framework}", summary, console
        )
