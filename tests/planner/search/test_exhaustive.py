"""The search against brute force: the same best plan, nothing better left out."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.estimate import CostModel
from cost_models.flops import layer_matrix_parameters
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.spec import TrainingSpec
from planner.constraints import RULES, TP_IN_DOMAIN, Context, violations
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.search.exhaustive import SpaceTooLarge, cost_model, search
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


def ask(model: str, cluster: str, seq: int, batch: int, **search_fields: object) -> PlanRequest:
    return PlanRequest(
        model=preset(model),
        cluster=parse_shorthand(cluster),
        training=TrainingSpec(seq_length=seq, global_batch_size=batch),
        search=SearchSpec.model_validate(search_fields),
    )


class TestOddSizes:
    def test_126_layers_on_16_stages(self) -> None:
        limits = {"pp": Bounds(values=(16,))}
        outcome = search(ask("llama-3.1-405b", "64x8xh100-sxm", 8192, 512, limits=limits))
        best = outcome.best[0]
        assert best.pp == 16
        assert (best.first_stage_layers, best.last_stage_layers) == (7, 7)

    @pytest.mark.one_in(2)
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("model", "cluster", "batch"),
        [
            pytest.param("llama-3.1-70b", "240x8xh100-sxm", 1920, marks=pytest.mark.exhaustive),
            ("llama-3.1-8b", "24x4xh100-sxm", 960),
            ("gpt2", "1x1xa100-sxm-80gb", 8),
            ("llama-3.1-70b", "4xgb200-nvl72", 576),
            ("llama-3.1-8b", "3x8xh100-sxm", 48),
        ],
    )
    def test_clusters_of_every_shape(self, model: str, cluster: str, batch: int) -> None:
        asked = ask(model, cluster, 2048, batch)
        outcome = search(asked)
        assert outcome.best
        for plan in outcome.best:
            assert plan.accelerators == asked.cluster.accelerators

    @pytest.mark.slow
    def test_tensor_parallelism_inside_a_rack(self) -> None:
        limits = {"tp": Bounds(min=16)}
        asked = ask("llama-3.1-405b", "2xgb200-nvl72", 8192, 144, limits=limits)
        outcome = search(asked)
        assert outcome.counts is not None
        # Of 18, 36, 72 ... none divides the 128 heads; 16 divides the 144 ranks.
        assert outcome.counts.rejected["heads_not_divisible"] > 0
        assert outcome.best[0].tp == 16

    def test_heads_that_do_not_divide_are_refused_with_the_reason(self) -> None:
        limits = {"tp": Bounds(values=(3,))}
        outcome = search(ask("llama-3.1-8b", "1x6xh100-sxm", 1536, 6, limits=limits))
        assert not outcome.best
        assert outcome.counts is not None
        assert outcome.counts.rejected["heads_not_divisible"] > 0

    def test_experts_that_do_not_divide_are_refused_with_the_reason(self) -> None:
        limits = {"ep": Bounds(values=(3,))}
        outcome = search(ask("mixtral-8x7b", "1x6xh100-sxm", 1536, 6, limits=limits))
        assert not outcome.best
        assert outcome.counts is not None
        assert outcome.counts.rejected["experts_not_divisible"] > 0


class TestCountsAndOrder:
    def test_counts_add_up(self) -> None:
        counts = search(ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64)).counts
        assert counts is not None
        before = sum(n for reason, n in counts.rejected.items() if reason != "memory")
        assert counts.enumerated == counts.dominated + counts.costed + before
        assert counts.costed == counts.feasible + counts.rejected.get("memory", 0)

    def test_best_plans_are_in_order_and_distinct(self) -> None:
        asked = ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64, top_k=40)
        best = search(asked).best
        assert len(best) == 40
        assert len({plan.model_dump_json() for plan in best}) == 40
        values = [value_of(asked, plan) for plan in best]
        assert values == sorted(values)

    @pytest.mark.slow
    def test_same_question_same_answer(self) -> None:
        asked = ask("mixtral-8x7b", "2x8xh100-sxm", 4096, 64)
        assert search(asked).best == search(asked).best

    def test_pareto_front_is_a_front(self) -> None:
        asked = ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64)
        outcome = search(asked)
        estimates = cost_model(asked).evaluate(Plans.from_rows(outcome.pareto))
        times, peaks = estimates.iteration_time_s, estimates.peak_bytes
        assert np.all(np.diff(times) > 0)
        assert np.all(np.diff(peaks) < 0)
        assert times[0] == value_of(asked, outcome.best[0])

    @pytest.mark.slow
    def test_cost_and_speed_agree_on_one_cluster(self) -> None:
        fast = search(ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64)).best[0]
        cheap = search(ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64, objective="cost")).best[0]
        assert fast == cheap

    @pytest.mark.slow
    def test_memory_headroom_needs_least(self) -> None:
        asked = ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64)
        lean = search(ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64, objective="memory_headroom"))
        model = CostModel(asked.model, asked.cluster, asked.training)
        rows = Plans.from_rows([lean.best[0], search(asked).best[0]])
        peaks = model.evaluate(rows).peak_bytes
        assert peaks[0] < peaks[1]


class TestFoundByReview:
    def test_nothing_of_a_chunk_left_to_recompute(self) -> None:
        """Every layer count was dominated: an empty batch beside shared columns."""
        limits = {"zero_stage": Bounds(values=(1,))}
        asked = ask("llama-3.1-405b", "32x8xh100-sxm", 131072, 64, limits=limits)
        assert search(asked).counts is not None

    @pytest.mark.slow
    def test_offloaded_activations_try_every_layer_count(self) -> None:
        limits = {"offload_activations": Bounds(values=(True,))}
        asked = ask("llama-3.1-8b", "1x8xh100-sxm", 8192, 64, limits=limits)
        best, full = search(asked, top_k=1).best[0], search(asked, top_k=1, full=True).best[0]
        assert value_of(asked, best) == value_of(asked, full)

    @pytest.mark.parametrize("layers", [5, 17])
    def test_full_recompute_redoes_the_fewest_layers_that_fit(self, layers: int) -> None:
        """As much memory as so many layers need: the best of every count, found by bisection."""
        fixed = {"tp": 1, "cp": 1, "pp": 1, "zero_stage": 1, "micro_batch_size": 2}
        limits = {name: Bounds(values=(value,)) for name, value in fixed.items()}
        limits["recompute"] = Bounds(values=("none", "full"))
        asked = ask("llama-3.1-8b", "1x8xh100-sxm", 8192, 64, limits=limits, memory_risk=1.0)
        plan = ParallelPlan(dp=8, zero_stage=1, micro_batch_size=2, recompute="full",
                            recompute_num_layers=layers)  # fmt: skip
        capacity = float(cost_model(asked).evaluate(Plans.from_rows([plan])).peak_bytes[0])
        tight = with_memory(asked, capacity)
        best, full = search(tight).best[0], search(tight, full=True).best[0]
        assert (best.recompute, best.recompute_num_layers) == ("full", layers)
        assert value_of(tight, best) == value_of(tight, full)

    def test_a_zero_stage_that_is_legal_alone_stays_legal_in_a_list(self) -> None:
        fixed = {"tp": Bounds(values=(4,)), "pp": Bounds(values=(2,))}
        for stages in ((0,), (0, 2), (0, 3)):
            limits = {**fixed, "zero_stage": Bounds(values=stages)}
            assert search(ask("llama-3.1-8b", "1x8xh100-sxm", 4096, 64, limits=limits)).best


class TestLimits:
    def test_every_limit_is_kept(self) -> None:
        limits = {
            "tp": Bounds(max=2),
            "pp": Bounds(values=(2, 4)),
            "recompute": Bounds(values=("full",)),
            "micro_batch_size": Bounds(min=2),
            "zero_stage": Bounds(values=(1,)),
            "vpp": Bounds(values=(1,)),
            "dp": Bounds(max=4),
        }
        for plan in search(ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64, limits=limits)).best:
            assert plan.tp <= 2
            assert plan.pp in (2, 4)
            assert plan.recompute == "full"
            assert plan.micro_batch_size >= 2
            assert (plan.zero_stage, plan.vpp) == (1, 1)
            assert plan.dp <= 4

    def test_opened_axes_are_searched(self) -> None:
        names = ("offload_optimizer", "rank_order", "cp_kind")
        axes = {
            a.axis: a
            for a in Space(ask("llama-3.1-8b", "1x8xh100-sxm", 4096, 8, open=names)).axes()
        }
        assert all(axes[name].count > 1 for name in names)
        assert search(ask("llama-3.1-8b", "1x8xh100-sxm", 4096, 8, open=names)).best

    def test_fixed_recompute_layers(self) -> None:
        limits = {
            "recompute_num_layers": Bounds(values=(3,)),
            "recompute": Bounds(values=("full",)),
        }
        best = search(ask("llama-3.1-8b", "1x8xh100-sxm", 4096, 8, limits=limits)).best
        assert {plan.recompute_num_layers for plan in best} == {3}

    def test_explicit_splits_are_searched_when_given(self) -> None:
        splits = ((7, 9, 9, 7), (8, 8, 8, 8), (16, 16), (5, 9, 9, 8))
        limits = {"stage_layers": Bounds(values=splits)}
        outcome = search(ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64, limits=limits, top_k=50))
        assert {plan.stage_layers for plan in outcome.best} <= set(splits[:3])
        assert outcome.counts is not None
        assert "got 31" in outcome.counts.examples["layers_not_divisible"]  # 5 + 9 + 9 + 8

    def test_even_split_and_its_explicit_form_cost_the_same(self) -> None:
        asked = ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64)
        plan = ParallelPlan(pp=4, dp=4, vpp=2, schedule="interleaved-1f1b")
        explicit = plan.model_copy(update={"stage_layers": (8, 8, 8, 8)})
        assert value_of(asked, plan) == value_of(asked, explicit)


class TestBounds:
    def test_a_space_beyond_the_cap_is_refused(self) -> None:
        limits = {
            "dp_shard": Bounds(values=tuple(range(256))),
            "cp": Bounds(values=tuple(range(1, 257))),
            "tp": Bounds(values=tuple(range(1, 257))),
            "pp": Bounds(values=tuple(range(1, 257))),
        }
        with pytest.raises(SpaceTooLarge, match="combinations of tp, cp and pp"):
            search(ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64, limits=limits))

    def test_fields_without_effect_do_not_fill_the_list(self) -> None:
        names = ("rank_order", "cp_kind", "overlap_tp")
        best = search(ask("llama-3.1-8b", "1x8xh100-sxm", 4096, 64, open=names, top_k=50)).best
        for plan in best:
            assert plan.cp > 1 or plan.cp_kind == "p2p"
            assert plan.pp > 1 or plan.rank_order == "tp-cp-ep-dp-pp"
            assert plan.tp > 1 or not plan.overlap_tp

    def test_reasons_come_with_an_example(self) -> None:
        limits = {"tp": Bounds(values=(3,))}
        counts = search(ask("llama-3.1-8b", "2x8xh100-sxm", 4096, 64, limits=limits)).counts
        assert counts is not None
        assert "16 accelerators" in counts.examples["world_size"]
