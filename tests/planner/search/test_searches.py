"""Single searches: sizes of every shape, counts and order, limits, and the space's bounds."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.search.exhaustive import SpaceTooLarge, cost_model, search
from planner.search.space import Space
from tests.fixtures.small_requests import with_memory
from tests.planner.search.test_exhaustive import value_of


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
