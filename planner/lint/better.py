"""The better plan: the fastest of the framework, with as few changes as it takes."""

from __future__ import annotations

from typing import Any

from cost_models.plans import FIELDS, ParallelPlan, Plans
from planner.explain import report
from planner.lint.case import MINIMUM_GAIN, Case, changed
from planner.lint.findings import Better
from planner.lint.flags import changes
from planner.search import CHOICES, search
from planner.solve import prepared, smallest_change


def best(case: Case) -> Better | None:
    """The fastest plan that the framework accepts and that fits; None where nothing does."""
    asked, rules = prepared(case.request)
    found = search(asked, rules, top_k=1, own=case.plan).best
    return _better(case, _settled(case, found[0])) if found else None


def mended(case: Case) -> Better | None:
    """The fewest changes after which the script's plan runs and fits; None where none do."""
    asked, rules = prepared(case.request)
    found = smallest_change(asked, case.costs, case.plan, rules)
    return _better(case, found.plan) if found is not None else None


def _better(case: Case, plan: ParallelPlan) -> Better:
    return Better(
        report=report(case.costs, case.request, plan),
        changes=changes(case.framework, case.request, case.reading, plan),
    )


def _settled(case: Case, plan: ParallelPlan) -> ParallelPlan:
    """The plan with every choice as the script has it that is not worth changing.

    All that is left as it is costs less than MINIMUM_GAIN together.
    """
    costs = case.costs
    fastest = float(costs.evaluate(Plans.from_rows([plan])).iteration_time_s[0])
    grouped = {name for choice in CHOICES for name in choice}
    for choice in (*CHOICES, *((name,) for name in FIELDS if name not in grouped)):
        kept: dict[str, Any] = {name: getattr(case.plan, name) for name in choice}
        tried = changed(plan, kept)
        if tried is None or tried == plan or case.framework.reasons(case.request, tried):
            continue
        cost = costs.evaluate(Plans.from_rows([tried]))
        if cost.peak_bytes[0] <= case.capacity_bytes and cost.iteration_time_s[0] <= fastest * (
            1.0 + MINIMUM_GAIN
        ):
            plan = tried
    return plan
