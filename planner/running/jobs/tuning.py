"""Runs of a tuning on this machine, through the validator's launchers."""

from __future__ import annotations

from collections.abc import Callable

from cost_models.plans import ParallelPlan
from planner.documents.problems import refuse
from planner.documents.request import Bounds, PlanRequest
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.site import LearnedRun, Site
from planner.running.autotune.answer import TuneAnswer, short_id
from planner.running.autotune.next_run import Budget, question, tune
from planner.running.validate.learned_run import CODE_BASE as FRAMEWORK
from planner.running.validate.learned_run import measured_run
from planner.running.validate.processes.process import Limits, RunFailed
from planner.running.validate.run import Options, own_folder, prepare_here, require_torch, run


def measured_here(
    request: PlanRequest,
    plan: ParallelPlan,
    site: Site,
    limits: tuple[int, float],
    progress: Callable[[str], None],
) -> LearnedRun:
    """A real run of a plan; limits: timed steps, and seconds.

    Raises RequestError where the plan is too large for this machine, and
    planner.running.validate.processes.process.RunFailed.
    """
    require_torch()
    of_plan = request.model_copy(update={"plan": plan})
    prepared = prepare_here(of_plan)
    if prepared.small.request != of_plan:
        detail = "this machine runs a smaller plan only: name it as the cluster (local)"
        raise refuse("/cluster", "too_large", detail)
    steps, wall_s = limits
    options = Options(steps=steps, limits=Limits(wall_s=wall_s))
    with own_folder(None) as folder:
        report = run(prepared, options, folder, progress)
    return measured_run(report, site, "planner tune", options.warmup_steps)


def tuned_here(
    request: PlanRequest, site: str, budget: Budget, progress: Callable[[str], None]
) -> TuneAnswer:
    """Runs the next plan and learns from it until there is none; plans that fail are left out.

    Raises RequestError, and planner.running.validate.processes.process.RunFailed where no plan runs
    at all.
    """
    failed: dict[str, RunFailed] = {}
    while True:
        known_site = storage.find_or_new(site)
        named = known_site.name if known_site.name in storage.names() else None
        tuned = request.model_copy(update={"site": named})
        known = question(tuned, known_site, tuple(failed))
        if not known.plans and failed:
            raise next(iter(failed.values()))
        answer = tune(known, budget)
        if answer.next is None:
            return answer
        following = answer.next
        plan = next(c.plan for c in answer.candidates if c.id == following.id)
        name = f"run {answer.runs + 1}, plan {short_id(following.id)}: "
        limits = following.iterations, following.time_limit_s
        try:
            learned = measured_here(tuned, plan, known_site, limits, _named(progress, name))
        except RunFailed as error:
            failed[following.id] = error
            continue
        storage.learn(site, (learned,))


def _named(progress: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda text: progress(name + text)


def bound_here(request: PlanRequest) -> PlanRequest:
    """The request for the script that runs here; nothing is compiled, as a CPU's kernels are."""
    if request.search.framework not in (None, FRAMEWORK):
        detail = f"runs on this machine are of {FRAMEWORK}, not {request.search.framework}"
        raise refuse("/search/framework", "not_allowed", detail, allowed=(FRAMEWORK,))
    limits = {"compile": Bounds(values=(False,)), **request.search.limits}
    search = request.search.model_copy(update={"framework": FRAMEWORK, "limits": limits})
    return request.model_copy(update={"search": search})
