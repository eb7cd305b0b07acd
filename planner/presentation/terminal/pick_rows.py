"""The plans to choose from beside the fastest: what differs, and what each is better at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from cost_models.effects import is_read
from cost_models.plans import ParallelPlan
from planner.answers.plans.picks import TIED
from planner.documents.answer import Pick
from planner.documents.formats import gap, value_words, whole_plan_words
from planner.documents.plan_report import PlanReport
from planner.presentation.terminal.plan_rows import free_words, layer_words
from planner.presentation.terminal.text_wrap import Flow

# Fields that no word of a plan tells; of the others some follow from those that one does.
_UNTOLD = (
    "dynamic_cp", "reshard_after_forward", "rank_order", "attention_kernel", "cross_entropy",
    "moe_dispatcher", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p",
    "overlap_ep", "runtime", "compile",
)  # fmt: skip


def pick_rows(best: PlanReport, picks: Sequence[Pick]) -> Iterator[RenderableType]:
    """Each plan but the fastest, once: its words and what it is better at."""
    alike: dict[ParallelPlan, list[Pick]] = {}
    for pick in picks:
        if pick.plan.id != best.id:
            alike.setdefault(pick.plan.plan, []).append(pick)
    for own in alike.values():
        plan = own[0].plan
        names = " and ".join(pick.name for pick in own).capitalize()
        free = free_words(plan.memory, best.memory)
        head = f"{names}, {gap(own[0].slower_by)} slower, {free}: "
        *words, last = _words(plan, best.plan)
        better = "; ".join(pick.why.removesuffix(TIED) for pick in own)
        pieces = [*(f"{word} ·" for word in words), f"{last}:", *better.split()]
        yield Flow(pieces, " ", indent=2, head=head)


def _words(report: PlanReport, best: ParallelPlan) -> Iterator[str]:
    """A plan in words, with all that it has otherwise than the fastest."""
    plan = report.plan
    yield from (word for word in whole_plan_words(plan) if word != "recompute none")
    if plan.pp > 1:
        yield from layer_words(report)
    for name in _UNTOLD:
        own = getattr(plan, name)
        # What only one of them reads follows from what is told already.
        if own != getattr(best, name) and is_read(plan, name) and is_read(best, name):
            yield f"{name.replace('_', ' ')} {value_words(own)}"
