"""What a search keeps, and in which order, against everything that it priced, sorted here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, ClassVar

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.estimate import CostModel, Estimates
from cost_models.keyed_plans import FloatArray, KeyedPlans
from cost_models.plans import ParallelPlan, Plans, concatenate
from cost_models.spec import TrainingSpec
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.progress import Step, Watch, watched
from planner.search import exhaustive as search_module
from planner.search import outcome as outcome_module
from planner.search.exhaustive import cost_model, search
from planner.search.outcome import Outcome
from planner.search.plan_distance import changed_fields


def ask(model: str, cluster: str, seq: int, batch: int, limits: dict[str, Bounds]) -> PlanRequest:
    return PlanRequest(
        model=preset(model),
        cluster=parse_shorthand(cluster),
        training=TrainingSpec(seq_length=seq, global_batch_size=batch),
        search=SearchSpec(limits=limits, memory_risk=1.0),
    )


Priced = list[tuple[float, float, tuple[float, ...], ParallelPlan, bool]]


def searched(
    monkeypatch: pytest.MonkeyPatch, asked: PlanRequest, **how: Any
) -> tuple[Outcome, Priced]:
    """A search in many small chunks, and (seconds, bytes, fields, plan, fits) of what it priced."""
    priced: Priced = []

    def visit(plans: Plans, estimates: Estimates, fits: bool) -> None:
        columns = [np.broadcast_to(c, (len(plans),)).tolist() for _, c in plans.columns()]
        for i, fields in enumerate(zip(*columns, strict=True)):
            seconds, peak = float(estimates.iteration_time_s[i]), float(estimates.peak_bytes[i])
            priced.append((seconds, peak, fields, plans.row(i), fits))

    monkeypatch.setattr(search_module, "CHUNK", 64)
    found = search(
        asked, visit=partial(visit, fits=True), visit_misses=partial(visit, fits=False), **how
    )
    return found, priced


class TestKeeper:
    """What a search keeps against all that it priced, sorted here."""

    FEW: ClassVar = {
        "cp": Bounds(values=(1,)), "schedule": Bounds(values=("1f1b",)),
        "recompute": Bounds(values=("none", "full")), "first_stage_layers": Bounds(values=(0,)),
        "last_stage_layers": Bounds(values=(0,)), "micro_batch_size": Bounds(values=(1, 2)),
    }  # fmt: skip
    ASKED = ask("llama-3.1-8b", "1x8xh100-sxm", 8192, 16, limits=FEW)

    @pytest.mark.parametrize("top_k", [1, 7, 60])
    def test_the_best_by_time_then_memory_then_fields(
        self, monkeypatch: pytest.MonkeyPatch, top_k: int
    ) -> None:
        outcome, priced = searched(monkeypatch, self.ASKED, top_k=top_k)
        fitting = sorted((row for row in priced if row[4]), key=lambda row: row[:3])
        assert outcome.best == [row[3] for row in fitting[:top_k]]
        assert not outcome.nearest
        assert outcome.counts is not None
        assert outcome.counts.costed == len(priced)
        assert outcome.counts.feasible == len(fitting)
        assert outcome.counts.rejected["memory"] == len(priced) - len(fitting) > 0
        assert outcome.counts.examples
        assert outcome.search_time_s > 0

    def test_whoever_waits_sees_the_best_so_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Step] = []
        with watched(Watch(show=seen.append)):
            outcome, priced = searched(monkeypatch, self.ASKED)
        assert len(seen) > 1
        seconds, peak, _, best, _ = min(row for row in priced if row[4])
        assert best == outcome.best[0]
        assert seen[-1].best == {
            "plan": best.model_dump(mode="json"),
            "iteration_time_s": seconds,
            "peak_bytes": peak,
        }
        assert 0 < seen[0].done <= seen[-1].done <= seen[-1].total
        nothing = ask("llama-3.1-405b", "1x8xh100-sxm", 8192, 16, limits=self.FEW)
        with watched(Watch(show=seen.append)):
            search(nothing)
        assert seen[-1].best is None

    @pytest.mark.parametrize("top_k", [1, 7])
    def test_equal_scores_are_settled_alike(
        self, monkeypatch: pytest.MonkeyPatch, top_k: int
    ) -> None:
        """Whether no score differs or only a few do."""

        def score(plans: Plans, estimates: Estimates) -> FloatArray:
            return np.broadcast_to(plans.tp % 4, (len(plans),)).astype(np.float64)

        outcome, priced = searched(monkeypatch, self.ASKED, top_k=top_k, score=score)
        ranked = sorted((row for row in priced if row[4]), key=lambda r: (r[3].tp % 4, *r[:3]))
        assert outcome.best == [row[3] for row in ranked[:top_k]]

    def test_plans_of_one_time_and_memory_go_by_their_fields(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lists of 8 from thousands of plans that a cost model cannot tell apart."""
        plain = CostModel.evaluate

        def alike(self: CostModel, plans: Plans) -> Estimates:
            found = plain(self, plans)
            ones = np.ones(len(plans))
            return replace(found, iteration_time_s=ones, peak_bytes=ones)

        def little(self: CostModel, gathered: KeyedPlans) -> FloatArray:
            return np.ones(len(gathered.plans))

        monkeypatch.setattr(CostModel, "evaluate", alike)
        monkeypatch.setattr(CostModel, "needed_bytes_of", little)
        outcome, priced = searched(monkeypatch, self.ASKED, top_k=8)
        assert outcome.best == [row[3] for row in sorted(priced, key=lambda r: r[:3])[:8]]
        assert outcome.pareto == [next(row[3] for row in priced)]

    def test_the_front_has_every_plan_that_no_other_beats(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outcome, priced = searched(monkeypatch, self.ASKED)
        front: list[tuple[float, float]] = []
        for seconds, peak, *_, fits in sorted(priced, key=lambda row: row[:2]):
            if fits and (not front or peak < front[-1][1]):
                front.append((seconds, peak))
        costs = {row[3].model_dump_json(): row[:2] for row in priced}
        assert [costs[plan.model_dump_json()] for plan in outcome.pareto] == front
        assert len(front) > 5
        # A front too long to show is thinned out evenly, from the fastest on.
        monkeypatch.setattr(outcome_module, "_PARETO_LIMIT", 4)
        thinned, _ = searched(monkeypatch, self.ASKED)
        step = ceil(len(front) / 4)
        assert thinned.pareto == outcome.pareto[::step]
        monkeypatch.setattr(outcome_module, "_PARETO_LIMIT", len(front))
        assert searched(monkeypatch, self.ASKED)[0].pareto == outcome.pareto

    def test_the_nearest_miss_needs_least(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = ask("llama-3.1-405b", "1x8xh100-sxm", 8192, 16, limits=self.FEW)
        outcome, priced = searched(monkeypatch, asked)
        assert not outcome.best
        assert not outcome.pareto
        (nearest,) = outcome.nearest
        least = min(priced, key=lambda row: row[1])
        assert nearest == least[3]

    def test_the_best_of_a_few_plans(self) -> None:
        model = cost_model(self.ASKED)
        plans = Plans.from_rows([ParallelPlan(tp=8), ParallelPlan(dp=8), ParallelPlan(tp=2, dp=4)])
        found = model.evaluate(plans)
        by_time = search_module.best_of(model, plans, lambda _, e: e.iteration_time_s)
        assert by_time == plans.row(int(np.argmin(found.iteration_time_s)))
        by_memory = search_module.best_of(model, plans, lambda _, e: e.peak_bytes)
        assert by_memory == plans.row(int(np.argmin(found.peak_bytes))) != by_time


class TestFewestLayers:
    """Full recompute of as few of the layers as fit, found without pricing the others."""

    def asked(self, seq_length: int, **limits: tuple[Any, ...]) -> PlanRequest:
        fixed = {
            "tp": (1,), "cp": (1,), "pp": (1,), "zero_stage": (1,), "micro_batch_size": (4,),
            "recompute": ("full",), **limits,
        }  # fmt: skip
        bounds = {name: Bounds(values=values) for name, values in fixed.items()}
        return ask("llama-3.1-8b", "1x8xh200", seq_length, 32, limits=bounds)

    @pytest.mark.parametrize("seq_length", [2048, 2560, 3072, 4096, 5120])
    def test_one_layer_less_would_not_fit(self, seq_length: int) -> None:
        asked = self.asked(seq_length)
        outcome = search(asked)
        model, best = cost_model(asked), outcome.best[0]
        counts = range(1, 33)
        rows = [best.model_copy(update={"recompute_num_layers": n}) for n in counts]
        fits = model.needed_bytes(Plans.from_rows(rows)) <= (
            asked.cluster.groups[0].accelerator.memory_bytes
        )
        fewest = next(n for n in counts if fits[n - 1])
        assert best.recompute_num_layers == fewest
        assert outcome.counts is not None
        # Of 32 numbers of layers all and the fewest are priced.
        assert outcome.counts.costed == len({fewest, 32})
        assert "memory" not in outcome.counts.rejected
        refused = sum(outcome.counts.rejected.values())
        assert (outcome.counts.enumerated - refused) % 32 == 0

    def test_none_is_added_where_no_recompute_is_needed(self) -> None:
        asked = self.asked(512, recompute=("none", "full"))
        outcome = search(asked, top_k=50)
        assert {p.recompute_num_layers for p in outcome.best if p.recompute == "full"} <= {32}

    def test_none_is_added_where_not_even_all_layers_fit(self) -> None:
        outcome = search(self.asked(65536))
        assert not outcome.best
        assert outcome.nearest[0].recompute_num_layers == 32


def test_two_batches_as_one() -> None:
    first = [ParallelPlan(tp=2, dp=4), ParallelPlan(tp=2, pp=2, dp=2, stage_layers=(3, 5))]
    second = [ParallelPlan(tp=4, dp=2), ParallelPlan(tp=2, dp=4, zero_stage=2)]
    table = Plans.from_rows([*first, *second])
    a, b = table.take(np.array([0, 1])), table.take(np.array([2, 3]))
    together = concatenate(a, b)
    assert [together.row(i) for i in range(4)] == [*first, *second]
    # What is one value in both batches stays one value.
    shared = concatenate(a.with_columns(cp=2), b.with_columns(cp=2))
    assert shared.cp.ndim == 0
    apart = concatenate(a.with_columns(cp=2), b.with_columns(cp=4))
    assert apart.cp.tolist() == [2, 2, 4, 4]


class TestChangedFields:
    BASE = ParallelPlan(tp=2, dp=4, recompute="full", recompute_num_layers=4, zero_stage=1)

    def changes(self, **update: Any) -> float:
        asked = TestKeeper.ASKED
        plans = Plans.from_rows([self.BASE.model_copy(update=update)])
        estimates = cost_model(asked).evaluate(plans)
        score = float(changed_fields(self.BASE)(plans, estimates)[0])
        seconds = float(estimates.iteration_time_s[0])
        return score - seconds / (1 + seconds)

    @pytest.mark.parametrize(
        ("update", "changed"),
        [
            ({}, 0),
            ({"dp": 2}, 0),
            ({"tp": 4, "dp": 2}, 1),
            ({"recompute": "none", "recompute_num_layers": 0}, 1),
            ({"pp": 2, "dp": 2, "schedule": "interleaved-1f1b", "vpp": 2}, 2),
            ({"pp": 2, "dp": 2, "stage_layers": (15, 17)}, 2),
            ({"pp": 2, "dp": 2, "first_stage_layers": 15}, 2),
            ({"zero_stage": 3, "reshard_after_forward": False}, 1),
            ({"tp": 4, "dp": 2, "sequence_parallel": True, "zero_stage": 2}, 3),
        ],
    )
    def test_choices_that_differ(self, update: dict[str, Any], changed: int) -> None:
        assert self.changes(**update) == pytest.approx(changed, abs=1e-9)

    def test_the_same_explicit_split_is_no_change(self) -> None:
        plan = ParallelPlan(pp=2, dp=4, stage_layers=(15, 17))
        plans = Plans.from_rows([plan, plan.model_copy(update={"stage_layers": (17, 15)})])
        estimates = cost_model(TestKeeper.ASKED).evaluate(plans)
        score = changed_fields(plan)(plans, estimates)
        assert np.floor(score).tolist() == [0.0, 1.0]
