"""A plan in every order of its ranks: what each costs, and which frameworks run it."""

from __future__ import annotations

from cost_models.estimate import CostModel
from cost_models.plans import VOCABULARIES, ParallelPlan, Plans
from planner import frameworks
from planner.answer import RankOrder
from planner.request import PlanRequest


def rank_orders(
    model: CostModel, request: PlanRequest, plan: ParallelPlan
) -> tuple[RankOrder, ...]:
    """The fastest first; none where the order is of no effect: without stages or replicas."""
    if plan.pp == 1 or plan.dp == 1:
        return ()
    rows = [plan.model_copy(update={"rank_order": order}) for order in VOCABULARIES["rank_order"]]
    seconds = model.evaluate(Plans.from_rows(rows)).iteration_time_s.tolist()
    found = [
        RankOrder(
            rank_order=row.rank_order,
            iteration_time_s=own,
            slower_by=own / min(seconds) - 1.0,
            frameworks=_run_by(request, row),
        )
        for row, own in zip(rows, seconds, strict=True)
    ]
    return tuple(sorted(found, key=lambda order: order.iteration_time_s))


def _run_by(request: PlanRequest, plan: ParallelPlan) -> tuple[str, ...]:
    def runs(name: str) -> bool:
        framework = frameworks.get(name)
        own = plan.model_copy(update={"runtime": framework.runtime})
        return not framework.reasons(request, own)

    return tuple(filter(runs, frameworks.FRAMEWORKS))
