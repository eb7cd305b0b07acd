"""A plan in every order of its ranks: the time of each, and the frameworks that run it."""

from __future__ import annotations

from cost_models.estimate import CostModel
from cost_models.plans import VOCABULARIES, ParallelPlan, Plans, code
from planner import frameworks
from planner.constraints import RULES, BoolArray, Context, passing
from planner.documents.answer import RankOrder
from planner.documents.request import PlanRequest


def rank_orders(
    model: CostModel, request: PlanRequest, plan: ParallelPlan
) -> tuple[RankOrder, ...]:
    """All orders, the fastest first; empty if the order has no effect (no stages or replicas)."""
    if plan.pp == 1 or plan.dp == 1:
        return ()
    rows = [plan.model_copy(update={"rank_order": order}) for order in VOCABULARIES["rank_order"]]
    seconds = model.evaluate(Plans.from_rows(rows)).iteration_time_s.tolist()
    run_by = _run_by(request, rows)
    found = [
        RankOrder(
            rank_order=row.rank_order,
            iteration_time_s=own,
            slower_by=own / min(seconds) - 1.0,
            frameworks=tuple(name for name in run_by if run_by[name][k]),
        )
        for k, (row, own) in enumerate(zip(rows, seconds, strict=True))
    ]
    return tuple(sorted(found, key=lambda order: order.iteration_time_s))


def _run_by(request: PlanRequest, rows: list[ParallelPlan]) -> dict[str, BoolArray]:
    """For each framework, which of the plans it runs."""
    context = Context(request.model, request.cluster, request.training)
    plans = Plans.from_rows(rows)
    found = {}
    for name in frameworks.FRAMEWORKS:
        framework = frameworks.get(name)
        if not framework.competes:
            continue
        own = plans.with_columns(runtime=code("runtime", framework.runtime))
        found[name] = passing((*RULES, *framework.rules), context, own)
    return found
