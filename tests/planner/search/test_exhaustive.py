"""The search against brute force: the same best plan, nothing better left out."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cost_models.flops import layer_matrix_parameters
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from planner.constraints import RULES, TP_IN_DOMAIN, Context, violations
from planner.documents.request import PlanRequest
from planner.search.exhaustive import cost_model, search
from planner.search.space import Space
from tests.fixtures.small_requests import fitting_requests, with_memory, with_usual_splits

SMALL = ((1, 1), (1, 2), (1, 4), (2, 2), (1, 3), (1, 6))
LARGE = ((1, 8), (2, 8), (3, 8), (4, 8))
MEDIUM = ((1, 8), (2, 4), (3, 4), (4, 8), (1, 6), (5, 2))


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def schedules_of(request: PlanRequest) -> tuple[str, ...]:
    bounds = request.search.limits.get("schedule")
    if bounds is None or bounds.values is None:
        return tuple(name for name, schedule in SCHEDULES.items() if schedule.synchronous)
    return tuple(str(name) for name in bounds.values)


def has_chunks(name: str, vpp: int, middle: int) -> bool:
    counts = SCHEDULES[name].chunk_counts
    return vpp in counts if counts else vpp > 1 and middle % vpp == 0


def longest_chunk(name: str, layers: int, pp: int, vpp: int, middle: int, end: int) -> int:
    placement = SCHEDULES[name].placement
    if pp == 1:
        return layers
    if placement == "loop":
        return middle // vpp + max(end - middle, 0)
    return layers // (pp * vpp if placement == "wave" else pp)


def every_plan(request: PlanRequest):  # type: ignore[no-untyped-def]
    """The undominated full space of a request, one plan at a time, written independently."""
    model, world = request.model, request.cluster.accelerators
    batch, layers = request.training.global_batch_size, model.num_layers
    context = Context(model, request.cluster, request.training)
    bounds = request.search.limits.get("zero_stage")
    zeros = (0, 1, 2, 3) if bounds is None else bounds.values
    bounds = request.search.limits.get("recompute_method")
    methods = ("block",) if bounds is None else bounds.values
    offloads = (False, True) if "offload_activations" in request.search.open else (False,)
    moe = model.moe
    light = ["layernorm", *(["mla_up_proj"] if model.mla else []), *(["moe_act"] if moe else [])]
    heavy = [
        *light,
        *(["mlp"] if "dense" in model.feed_forwards else []),
        *(["moe"] if moe else []),
    ]
    head = model.hidden_size * model.vocab_size
    last = layers_of(model).kinds[layers_of(model).order[-1]]
    lighter = min(max(ceil(head / layer_matrix_parameters(model, last)), 1), 4)
    recomputes = [("none", (), 0), ("selective", tuple(light), 0), ("selective", tuple(heavy), 0)]
    recomputes += [("full", (), n) for n in range(1, layers + 1)]
    order = ("core_attn", "layernorm", "mlp", "moe_act", "mla_up_proj", "moe", "shared_experts")
    for tp, cp, pp in product(divisors(world), repeat=3):
        if tp * cp * pp > world or world % (tp * cp * pp) or pp > layers:
            continue
        dp = world // (tp * cp * pp)
        splits = {(0, 0)}
        if pp > 1:
            for a, b in product(range(lighter + 1), repeat=2):
                if (layers + a + b) % pp == 0 and a + b:
                    middle = (layers + a + b) // pp
                    ends = (middle - a, middle - b)
                    # Two equal stages are the even split, already there.
                    if min(ends) >= 1 and (pp > 2 or ends[0] != ends[1]):
                        splits.add(ends if pp == 2 else (ends[0] if a else 0, ends[1] if b else 0))
        for (first, last), vpp in product(sorted(splits), range(1, max(layers, 2) + 1)):
            rest = layers - first - last
            middles = pp - (first > 0) - (last > 0)
            if middles and rest % middles:
                continue
            middle = rest // middles if middles else max(first, last)
            if vpp > 1 and pp == 1:
                continue
            for etp, ep, sp in product(
                sorted({1, tp}) if moe else [1],
                divisors(moe.num_experts) if moe else [1],
                (False, True),
            ):
                names = schedules_of(request) if pp > 1 else ("1f1b",)
                names = [name for name in names if has_chunks(name, vpp, middle)]
                for schedule, zero, (kind, modules, n) in product(names, zeros, recomputes):
                    if n > longest_chunk(schedule, layers, pp, vpp, middle, max(first, last)):
                        continue
                    for micro in divisors(batch):
                        if batch % (dp * micro):
                            continue
                        for method, offload in product(methods, offloads):
                            plan = ParallelPlan(
                                tp=tp, cp=cp, pp=pp, vpp=vpp, dp=dp, ep=ep, etp=etp,
                                sequence_parallel=sp, zero_stage=zero, micro_batch_size=micro,
                                recompute=kind, recompute_num_layers=n, schedule=schedule,
                                recompute_modules=tuple(m for m in order if m in modules),
                                recompute_method=method, offload_activations=offload,
                                first_stage_layers=first, last_stage_layers=last,
                            )  # fmt: skip
                            if not violations(context, plan, (*RULES, TP_IN_DOMAIN)):
                                yield plan


def brute_force(request: PlanRequest) -> tuple[int, float | None, list[ParallelPlan], float]:
    """(plans, lowest objective, the plans that reach it, least memory), priced one at a time."""
    model = cost_model(request)
    capacity = request.cluster.groups[0].accelerator.memory_bytes
    headroom = request.search.objective == "memory_headroom"
    best: float | None = None
    winners: list[ParallelPlan] = []
    count, least = 0, np.inf
    for plan in every_plan(request):
        count += 1
        estimates = model.evaluate(Plans.from_rows([plan]))
        peak = float(estimates.peak_bytes[0])
        least = min(least, peak)
        if peak > capacity:
            continue
        value = peak if headroom else float(estimates.iteration_time_s[0])
        if best is None or value < best * (1 - 1e-12):
            best, winners = value, [plan]
        elif value <= best * (1 + 1e-12):
            winners.append(plan)
    return count, best, winners, least


def value_of(request: PlanRequest, plan: ParallelPlan) -> float:
    estimates = cost_model(request).evaluate(Plans.from_rows([plan]))
    if request.search.objective == "memory_headroom":
        return float(estimates.peak_bytes[0])
    return float(estimates.iteration_time_s[0])


def check_against_brute_force(request: PlanRequest) -> None:
    # Repartitioning starts from the best plans of a search: test_repartitioned_plans.py.
    request = with_usual_splits(request)
    outcome = search(request)
    assert outcome.counts is not None
    count, best, winners, least = brute_force(request)
    full = search(request, full=True)
    assert full.counts is not None
    assert full.counts.costed == count
    assert best is not None
    assert value_of(request, outcome.best[0]) == pytest.approx(best, rel=1e-12)
    assert value_of(request, full.best[0]) == pytest.approx(best, rel=1e-12)
    assert full.best[0] in winners
    # The dominance rules may settle a tie otherwise, never the value.
    assert outcome.best[0] in winners
    short = with_memory(request, least * (1 - 1e-9))
    assert not search(short).best
    assert not search(short, full=True).best


@pytest.mark.slow
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(fitting_requests(most_layers=3, worlds=SMALL))
def test_same_best_plan_as_brute_force(request_: PlanRequest) -> None:
    check_against_brute_force(request_)


@pytest.mark.exhaustive
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fitting_requests(most_layers=4, worlds=SMALL))
def test_same_best_plan_as_brute_force_fifty_times(request_: PlanRequest) -> None:
    check_against_brute_force(request_)


def random_plans(request: PlanRequest, count: int, seed: int) -> Plans:
    """Legal plans of the full space, drawn uniformly; all where there are not so many."""
    rng = np.random.default_rng(seed)
    total = sum(len(chunk) for chunk in Space(request, full=True).chunks(1 << 14))
    chosen = np.sort(rng.choice(total, size=min(total, count), replace=False))
    kept: list[ParallelPlan] = []
    start = 0
    for chunk in Space(request, full=True).chunks(1 << 14):
        stop = start + len(chunk)
        low, high = np.searchsorted(chosen, [start, stop])
        kept += [chunk.row(int(i) - start) for i in chosen[low:high]]
        start = stop
    return Plans.from_rows(kept)


def check_against_random(request: PlanRequest, count: int) -> tuple[int, int]:
    """How many plans were drawn, and how many of them fit."""
    outcome = search(request)
    assert outcome.best
    plans = random_plans(request, count, seed=7)
    estimates = cost_model(request).evaluate(plans)
    fits = estimates.peak_bytes <= request.cluster.groups[0].accelerator.memory_bytes
    if not fits.any():
        return len(plans), 0
    values = estimates.iteration_time_s
    if request.search.objective == "memory_headroom":
        values = estimates.peak_bytes
    best = value_of(request, outcome.best[0])
    assert best <= float(values[fits].min()) * (1 + 1e-12)
    return len(plans), int(fits.sum())


@pytest.mark.slow
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(fitting_requests(most_layers=6, worlds=MEDIUM))
def test_no_random_legal_plan_is_better(request_: PlanRequest) -> None:
    check_against_random(request_, 500)


@pytest.mark.exhaustive
@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(fitting_requests(most_layers=24, worlds=LARGE, least_layers=12, batches=(16, 32, 64, 96)))
def test_no_random_legal_plan_is_better_fifty_times(request_: PlanRequest) -> None:
    """Only requests with so many legal plans, some of which fit, count as one of the fifty."""
    drawn, fitting = check_against_random(request_, 10_000)
    assume(drawn == 10_000 and fitting)


@pytest.mark.slow
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    fitting_requests(most_layers=6, worlds=MEDIUM),
    st.sampled_from(["memory", "hbm", "flop", "domain", "network"]),
    st.floats(1.0, 4.0),
)
def test_more_of_anything_never_makes_the_best_plan_slower(
    request_: PlanRequest, what: str, factor: float
) -> None:
    request_ = request_.model_copy(
        update={"search": request_.search.model_copy(update={"objective": "tokens_per_s"})}
    )
    group = request_.cluster.groups[0]
    accelerator, tiers = group.accelerator, list(group.network)
    fields = {
        "memory": ("memory_bytes",),
        "hbm": ("memory_bytes_per_s",),
        "flop": ("peak_bf16_flop_per_s", "peak_fp16_flop_per_s", "peak_fp8_flop_per_s"),
    }.get(what, ())
    better = {name: (getattr(accelerator, name) or 0) * factor or None for name in fields}
    if what in ("domain", "network"):
        i = 0 if what == "domain" else len(tiers) - 1
        rate = tiers[i].bandwidth_bytes_per_s * factor
        tiers[i] = tiers[i].model_copy(update={"bandwidth_bytes_per_s": rate})
    richer = group.model_copy(
        update={"accelerator": accelerator.model_copy(update=better), "network": tuple(tiers)}
    )
    wider = request_.model_copy(
        update={"cluster": request_.cluster.model_copy(update={"groups": (richer,)})}
    )
    before, after = search(request_, top_k=1).best, search(wider, top_k=1).best
    assert before
    assert after
    assert value_of(wider, after[0]) <= value_of(request_, before[0]) * (1 + 1e-12)
