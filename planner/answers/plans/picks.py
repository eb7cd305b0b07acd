"""Three plans to choose from: the fastest, the one to start with, the one with the most room."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from planner.answers.plans.chance_to_be_first import compared
from planner.answers.plans.explain import reports
from planner.documents.answer import Pick
from planner.documents.formats import listed
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.error_band import SURE
from planner.evidence.uncertainty.record import seen_together
from planner.search.outcome import Outcome
from planner.search.simplicity import MOST_FULL, MOST_SLOWER, kinds, unproven_features, used

# The plan with the most headroom may be slower than the fastest by this share.
ROOM_COSTS = 0.05
# The end of what is said of a recommended plan that may as well be the fastest.
TIED = "; statistically tied with the fastest"


def picks(
    request: PlanRequest,
    model: CostModel,
    outcome: Outcome,
    plans: Sequence[PlanReport],
    front: Sequence[PlanReport],
) -> tuple[Pick, ...]:
    """The fastest, the recommended and the roomiest plan; none if the objective is not time.

    plans, front: the best plans and the Pareto front of the outcome.
    """
    if not plans or request.search.objective == "memory_headroom":
        return ()
    first = plans[0]
    return (
        Pick(name="fastest", plan=first, slower_by=0.0, why="the shortest time expected"),
        _recommended(request, model, outcome.simple, first),
        _most_headroom(request, model, front, first),
    )


def _recommended(
    request: PlanRequest, model: CostModel, simple: list[ParallelPlan], first: PlanReport
) -> Pick:
    """The simplest plan that is statistically tied with the fastest and not close to a cliff.

    Where published runs have not shown what the fastest combines, the fastest that they have.
    """
    chip, experts = request.cluster.groups[0].accelerator, request.model.moe is not None
    missing = unproven_features(first.plan, seen_together(chip, experts))
    unproven = f"{' with '.join(missing)}, which no published run of its kind has"
    for one in reports(model, request, simple, simulated=False):
        slower = one.iteration_time_s / first.iteration_time_s - 1.0
        tied = slower <= MOST_SLOWER and compared(request, first, one).chance <= SURE
        if not (tied or (missing and one.plan == simple[-1])):
            continue
        fewer = _kinds(one.plan) < _kinds(first.plan)
        if one.plan == first.plan or not (fewer or missing or _is_cliff(first)):
            break
        plan = reports(model, request, [one.plan])[0]
        why = _features_saved(one.plan, first.plan) if fewer or missing else "more memory free"
        if missing:
            why += f"; the fastest has {unproven}"
        if tied:
            why += TIED
        return Pick(name="recommended", plan=plan, slower_by=slower, why=why)
    why = f"has {unproven}: measure it first" if missing else "no simpler plan is as fast"
    return Pick(name="recommended", plan=first, slower_by=0.0, why=why)


def _features_saved(plan: ParallelPlan, first: ParallelPlan) -> str:
    """What a plan does without that the fastest needs."""
    needs, before = used(plan), used(first)
    less = listed([name for name in before if name not in needs])
    why = f"does without {less}" if less else "published runs have shown its features"
    if added := [name for name in needs if name not in before]:
        why += f" (but with {listed(added)})"
    return why


def _most_headroom(
    request: PlanRequest, model: CostModel, front: Sequence[PlanReport], first: PlanReport
) -> Pick:
    """The plan of the Pareto front that needs the least memory and costs little time."""
    near = [
        one for one in front if one.iteration_time_s <= first.iteration_time_s * (1.0 + ROOM_COSTS)
    ]
    best = min((first, *near), key=lambda one: one.memory.peak_bytes)
    plan = first if best.plan == first.plan else reports(model, request, [best.plan])[0]
    return Pick(
        name="most headroom", plan=plan,
        slower_by=plan.iteration_time_s / first.iteration_time_s - 1.0,
        why=f"the least memory of the plans at most {100 * ROOM_COSTS:.0f} % slower",
    )  # fmt: skip


def _kinds(plan: ParallelPlan) -> int:
    return int(kinds(Plans.of(plan))[0])


def _is_cliff(report: PlanReport) -> bool:
    return report.memory.peak_bytes > MOST_FULL * report.memory.capacity_bytes
