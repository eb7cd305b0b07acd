"""The pipeline of one plan: simulated with its own stage times, beside the closed form."""

from __future__ import annotations

from cost_models.estimate import Estimates
from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES
from cost_models.schedules.makespan import makespan_s
from cost_models.schedules.simulate import Links, Times
from cost_models.schedules.simulated_bubble import first_rounds
from planner import frameworks
from planner.documents.plan_report import Pipeline

# Action orders longer than this would take seconds to simulate.
MOST_ACTIONS = 400_000
# Rounds of p micro-batches after which a step repeats itself.
ROUNDS = 3


def pipeline(estimates: Estimates, row: int, plan: ParallelPlan) -> Pipeline | None:
    """The simulated pipeline of the plan in `row` of the estimates; None without stages."""
    if plan.pp == 1:
        return None
    schedule = SCHEDULES[plan.schedule]
    # Closed forms are of chunks that are alike.
    uneven = plan.vpp > 1 and bool(plan.stage_layers) and schedule.placement == "loop"
    # An asynchronous schedule fills once per run but the simulator once per order, so its time is
    # not that of a step.
    stages_s = None
    if schedule.synchronous:
        count = int(estimates.num_micro_batches[row])
        times, links = estimates.stage_times(plan, row)
        stages_s = simulated_s(plan, count, times, links)
        if stages_s is not None:
            stages_s += estimates.outside_chunks_s(plan, times, row)
    return Pipeline.of(
        schedule,
        schedule=schedule.id,
        frameworks=frameworks.running(schedule.id),
        closed_form=schedule.holds,
        shown="scaled simulation" if schedule.extra_s is None or uneven else "closed form",
        simulated_iteration_time_s=stages_s,
    )


def simulated_s(plan: ParallelPlan, micro_batches: int, times: Times, links: Links) -> float | None:
    """Seconds from the first forward to the last backward of one step, messages included.

    A long step is simulated over a few rounds and continued at the pace of its steady state.
    """
    schedule, stages, chunks = SCHEDULES[plan.schedule], plan.pp, plan.vpp

    def whole_s(count: int) -> float:
        return makespan_s(schedule, stages, chunks, count, times, links)

    few = first_rounds(schedule, stages, chunks, micro_batches, ROUNDS, ROUNDS)
    more = few + stages
    if 3 * stages * chunks * min(more, micro_batches) > MOST_ACTIONS:
        return None
    if more >= micro_batches:
        return whole_s(micro_batches)
    after = whole_s(more)
    pace_s = (after - whole_s(few)) / stages
    return after + (micro_batches - more) * pace_s
