"""The plan that a careful engineer would choose by hand, which the best plan is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from cost_models.estimate import CostModel
from cost_models.plans import AttentionKernel, ParallelPlan, Plans
from planner.answers.plans.explain import report
from planner.constraints import RULES, Context, Rule, passing
from planner.documents.answer import Baseline
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.search.axes import divisors

BASELINE_RULE = (
    "the smallest tp x pp that fits without recompute, tp first and tp and ep inside the fastest "
    "domain, sequence parallel, ZeRO-1, 1F1B, the largest micro-batch that is a power of two, fits "
    "and leaves a pipeline 4 micro-batches per stage; with full recompute if nothing fits without"
)
# Per stage: fewer leave more than a fifth of the step to the pipeline's bubble.
_MICRO_BATCHES = 4


def _by_hand(request: PlanRequest, kernel: AttentionKernel) -> Iterator[ParallelPlan]:
    """The plans that one tries in turn by hand, the fewest ranks for a copy of the model first."""
    world, layers = request.cluster.accelerators, request.model.num_layers
    domain = request.cluster.groups[0].network[0].domain_accelerators or world
    experts = request.model.moe.num_experts if request.model.moe is not None else 1
    sizes = divisors(world)
    narrow = [size for size in sizes if size <= domain]
    for full, product in itertools.product((False, True), sizes):
        for tp in (t for t in reversed(narrow) if product % t == 0):
            pp, dp = product // tp, world // product
            ep = max(e for e in narrow if experts % e == 0 and (tp * dp) % e == 0)
            if pp <= layers:
                yield ParallelPlan(
                    tp=tp, pp=pp, dp=dp, ep=ep, sequence_parallel=tp > 1, attention_kernel=kernel,
                    recompute="full" if full else "none",
                    recompute_num_layers=-(-layers // pp) if full else 0,
                )  # fmt: skip


def baseline(
    request: PlanRequest, model: CostModel, rules: tuple[Rule, ...], best: PlanReport | None
) -> Baseline | None:
    """The plan that a careful engineer would choose by hand, and the best plan's speedup."""
    if best is None:
        return None
    kernel = best.plan.attention_kernel
    plans = Plans.from_rows(list(_by_hand(request, kernel)))
    context = Context(request.model, request.cluster, request.training)
    legal = passing((*RULES, *rules), context, plans)
    if not legal.any():
        return None
    plans = plans.take(legal)
    fitting = np.flatnonzero(model.needed_bytes(plans) <= room_of(request).of(plans))
    if not len(fitting):
        return None
    own = report(
        model, request, _fullest(request, model, plans.row(int(fitting[0])), context, rules)
    )
    speedup = own.iteration_time_s / best.iteration_time_s
    return Baseline(rule=BASELINE_RULE, report=own, speedup=speedup)


def _fullest(
    request: PlanRequest,
    model: CostModel,
    plan: ParallelPlan,
    context: Context,
    rules: tuple[Rule, ...],
) -> ParallelPlan:
    """The plan with the largest micro-batch that fits."""
    share = request.training.global_batch_size // plan.dp
    most = share if plan.pp == 1 else share // (_MICRO_BATCHES * plan.pp)
    sizes = [2**i for i in range(most.bit_length()) if share % 2**i == 0]
    plans = Plans.from_rows([plan.model_copy(update={"micro_batch_size": n}) for n in sizes or [1]])
    legal = passing((*RULES, *rules), context, plans)
    fits = model.needed_bytes(plans) <= room_of(request).of(plans)
    return plans.row(int(np.flatnonzero(legal & fits)[-1]))
