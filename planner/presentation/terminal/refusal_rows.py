"""What a search refused, and what is nearest where nothing fits, as rows of a screen."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.documents import formats
from planner.documents.answer import Change, Counts, LimitConflict, Nearest, PlanAnswer
from planner.presentation.terminal.text_wrap import Flow, prose

_MAX_REASONS = 3


def count_rows(answer: PlanAnswer) -> list[RenderableType]:
    """How many plans there are, how many fit, and what refused the others."""
    counts = answer.counts
    line = Flow(
        [
            Text.assemble((f"{counts.feasible:,}", "bold"), f" of {counts.enumerated:,} plans fit"),
            f"{counts.dominated:,} dominated",
            f"{counts.costed:,} priced in {formats.seconds(answer.search_time_s)}",
        ],
        ", ",
        indent=2,
    )
    rejected = _rejected(counts)
    cut: list[RenderableType] = []
    if counts.cut_short:
        text = "The search was stopped: this is the best plan so far, others may be faster."
        cut.append(prose(text, 0, 2))
    if not rejected:
        return [*cut, line]
    # The memory is what most requests can change something about.
    memory = [pair for pair in rejected[1:] if pair[1] == "memory"]
    shown = [rejected[0], *(memory or rejected[1:2])]
    parts = [f"{count:,} for {formats.reason_words(reason)}" for count, reason in shown]
    if rest := sum(count for count, _ in rejected) - sum(count for count, _ in shown):
        parts.append(f"{rest:,} otherwise")
    return [*cut, line, Flow(parts, ", ", indent=2, head="rejected: ")]


def _rejected(counts: Counts) -> list[tuple[int, str]]:
    """How many plans each reason refused, most first."""
    return sorted(((n, reason) for reason, n in counts.rejected.items() if n), reverse=True)


def nothing_fits_rows(answer: PlanAnswer) -> list[RenderableType]:
    """Why nothing fits, and what is nearest to it."""
    rows: list[RenderableType] = [Text("Nothing fits", style="bold red")]
    rows += [_conflict_row(conflict) for conflict in answer.conflicts]
    if not answer.conflicts:
        rows += [
            prose(f"{formats.reason_words(reason)}: {text}", hanging=2)
            for reason, text in _explained(answer.counts)[:_MAX_REASONS]
        ]
    for nearest in answer.nearest[:3]:
        rows += [Text(), *nearest_rows(nearest)]
    if not any(nearest.plan for nearest in answer.nearest):
        rows.append(Text("No plan is legal within the limits of the request"))
    return rows


def _conflict_row(conflict: LimitConflict) -> RenderableType:
    """Limits that no plan meets, after the options that set them."""
    options = " and ".join(f"--{field.replace('_', '-')}" for field in conflict.fields)
    return prose(f"{options}: {conflict.text}", hanging=2)


def _explained(counts: Counts) -> list[tuple[str, str]]:
    """(reason, the sentence on one plan that it refused): memory first, then those of most."""
    reasons = [reason for _, reason in _rejected(counts) if reason in counts.examples]
    if len(reasons) > 1:  # every space has combinations that miss the cluster's size
        reasons = [reason for reason in reasons if reason != "world_size"]
    ordered = sorted(reasons, key=lambda reason: reason != "memory")
    return [(reason, counts.examples[reason]) for reason in ordered]


def nearest_rows(nearest: Nearest) -> list[RenderableType]:
    """The plan that misses by least, and the changes of the request that fit."""
    rows: list[RenderableType] = []
    if nearest.plan is not None and nearest.over_by_bytes is not None:
        plan = nearest.plan.model_dump()
        facts = Table.grid(padding=(0, 2))
        facts.add_row(Text("Nearest", style="bold"), Flow(formats.plan_words(plan)))
        facts.add_row("", Flow(formats.memory_words(plan)))
        facts.add_row("", f"stage {nearest.stage} is {formats.size(nearest.over_by_bytes)} over")
        rows.append(facts)
    return rows + [change_row(change) for change in nearest.changes[:3]]


def change_row(change: Change) -> RenderableType:
    """A row of the fields to change, with the peak memory and tokens/s after the change."""
    *fields, last = (f"{name} {formats.value_words(value)}" for name, value in change.set.items())
    parts = [
        *(Text(field, "bold green") for field in fields),
        Text.assemble((last, "bold green"), f": peak {formats.gib(change.peak_bytes)} GiB"),
        Text(f"{change.tokens_per_s:,.0f} tokens/s"),
    ]
    return Flow([Text.assemble("  set ", parts[0]), *parts[1:]], ", ", indent=4)
