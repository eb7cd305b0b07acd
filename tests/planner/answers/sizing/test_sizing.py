"""Sizing against known answers, against single estimates, and against wrong input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from planner import estimate, size
from planner.answers.sizing import rows as rows_module
from planner.answers.sizing.answer import SizingAnswer
from planner.answers.sizing.compute import size as compute
from planner.answers.sizing.request import parse_sizing
from planner.cli import run
from planner.documents.problems import RequestError
from planner.presentation.drawing.sizing_figure import sizing_figure

TRAINING = {"seq_length": 4096, "global_batch_size": 512, "tokens": 3e11}
SIZING = {"accelerators": ["h100-sxm", "mi300x", "a100-80gb"], "sizes": [8, 64, 128, 512]}


def asked(**sizing: Any) -> dict[str, Any]:
    return {"model": "llama-3.1-8b", "training": TRAINING, "sizing": {**SIZING, **sizing}}


@pytest.fixture(scope="module")
def answer() -> SizingAnswer:
    return size(asked())


@pytest.mark.exhaustive
def test_batches_that_reach_the_same_loss() -> None:
    """512 of a critical batch of 1,024: 1.5 times the fewest tokens, so 1,024 takes 2/1.5."""
    assert size(asked(sizes=[64])).batch_sizes == ()
    found = size(asked(sizes=[64], critical_batch_size=1024)).batch_sizes
    by_size = {one.global_batch_size: one for one in found}
    assert list(by_size) == [64, 128, 256, 512, 1024, 2048, 4096]
    assert by_size[512].tokens == pytest.approx(3e11)
    assert by_size[512].steps == pytest.approx(3e11 / 512 / 4096)
    assert by_size[1024].tokens == pytest.approx(4e11)
    assert [one.efficient for one in found] == [True] * 5 + [False] * 2


# SC'21: plan, batch and code of 2021 (arXiv 2104.04473, table 1 and section 5.1; GPT-3 by the plan
# of the table's next smaller model, which the paper does not give for it).
OF_2021 = {
    "runtime": "megatron-2021", "recompute": "full", "recompute_method": "uniform",
    "recompute_num_layers": 1, "attention_kernel": "unfused", "zero_stage": 0,
    "overlap_grad_reduce": False, "overlap_param_gather": False, "overlap_p2p": False,
    "cross_entropy": "unfused",
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "cluster", "batch", "tokens", "plan", "days"),
    [
        (
            "gpt3-175b",
            "128x8xa100-sxm-80gb",
            1536,
            300e9,
            {"tp": 8, "pp": 8, "vpp": 2, "micro_batch_size": 2},
            34.0,
        ),
        ("megatron-1t", "384x8xa100-sxm-80gb", 3072, 450e9, {"tp": 8, "pp": 64}, 84.0),
    ],
)
def test_days_of_the_megatron_paper(
    model: str, cluster: str, batch: int, tokens: float, plan: dict[str, Any], days: float
) -> None:
    """About 84 days for 1T parameters, about 34 for GPT-3; today's best plan beats both."""
    training = {
        "seq_length": 2048, "global_batch_size": batch, "precision": "fp16", "tokens": tokens,
    }  # fmt: skip
    # Gradients were accumulated and reduced in fp16 then.
    half = {**training, "gradient_dtype": "fp16", "gradient_reduce_dtype": "fp16"}
    found = estimate(model=model, cluster=cluster, training=half, plan={**OF_2021, **plan})
    assert found.estimate.days == pytest.approx(days, rel=0.05)
    accelerators = int(cluster.split("x")[0]) * 8
    sizing = {"accelerators": ["a100-80gb"], "sizes": [accelerators]}
    best = size(model=model, training=training, sizing=sizing).rows[0]
    assert best.training_days is not None
    assert best.training_days < days


class TestRows:
    @pytest.mark.exhaustive
    def test_every_kind_in_every_size(self, answer: SizingAnswer) -> None:
        assert [(row.accelerator, row.accelerators) for row in answer.rows] == [
            (kind, count)
            for kind in ("h100-sxm-80gb", "mi300x", "a100-sxm-80gb")
            for count in (8, 64, 128, 512)
        ]

    @pytest.mark.slow
    def test_a_row_is_the_estimate_of_its_plan(self, answer: SizingAnswer) -> None:
        for row in answer.rows:
            assert row.plan is not None
            nodes = f"{row.nodes}x{row.accelerators // row.nodes}x{row.accelerator}"
            one = estimate(
                model="llama-3.1-8b",
                cluster=nodes,
                training=TRAINING,
                plan=row.plan.model_dump(mode="json"),
            ).estimate
            assert row.iteration_time_s == one.iteration_time_s
            assert row.training_days == one.days

    def test_money_and_energy_are_of_the_wall_clock(self, answer: SizingAnswer) -> None:
        for row in answer.rows:
            assert row.days is not None
            assert row.training_days is not None
            assert row.effective_share is not None
            assert row.days == pytest.approx(row.training_days / row.effective_share)
            price = row.price_usd_per_accelerator_hour
            assert price is not None
            assert row.cost_usd == pytest.approx(24 * row.days * row.accelerators * price)
            assert row.power_watts is not None
            assert row.energy_kwh == pytest.approx(row.power_watts / 1000 * 24 * row.days)

    def test_nothing_on_the_front_is_beaten_and_all_else_is(self, answer: SizingAnswer) -> None:
        def beaten(i: int) -> bool:
            own = answer.rows[i]
            return any(
                other.days <= own.days
                and other.cost_usd <= own.cost_usd
                and (other.days, other.cost_usd) != (own.days, own.cost_usd)
                for other in answer.rows
            )

        for i, row in enumerate(answer.rows):
            assert row.on_front == (i in answer.front) == (not beaten(i))

    def test_steps_add_up_along_the_front(self, answer: SizingAnswer) -> None:
        first, last = answer.rows[answer.front[0]], answer.rows[answer.front[-1]]
        saved = sum(step.days_saved for step in answer.steps)
        assert saved == pytest.approx(first.days - last.days)
        assert all(step.usd_per_day_saved > 0 for step in answer.steps)

    def test_scaling_stops_paying_at_a_steep_step(self) -> None:
        """A day saved there costs more than a day of training; no step from there on costs less."""
        answer = size(asked(accelerators=["h100-sxm"], sizes=[8, 64, 1024, 4096]))
        step = answer.stops_paying
        assert step is not None
        slow, fast = answer.rows[step.row], answer.rows[step.faster_row]
        a_day = slow.cost_usd / slow.days
        assert step.usd_per_day_saved > a_day
        assert step.usd_per_day_saved == pytest.approx(
            (fast.cost_usd - slow.cost_usd) / (slow.days - fast.days)
        )
        for i in answer.front[answer.front.index(step.row) + 1 :]:
            row = answer.rows[i]
            price = (row.cost_usd - slow.cost_usd) / (slow.days - row.days)
            assert price >= step.usd_per_day_saved * (1 - 1e-9)

    def test_fewest_accelerators_that_keep_the_limits(self) -> None:
        found = size(asked(deadline_days=20))
        kept = [row for row in found.rows if not row.exceeds and row.days is not None]
        assert found.fewest is not None
        chosen = found.rows[found.fewest]
        assert chosen in kept
        assert chosen.accelerators == min(row.accelerators for row in kept)

    @pytest.mark.slow
    def test_processes_find_what_one_finds(self) -> None:
        few = asked(sizes=[8, 64])
        assert compute(parse_sizing(few), workers=2).rows == size(few).rows


def test_the_command_uses_the_cores_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one of many cores, another process would take longer to start than it saves."""
    file, told = tmp_path / "sizing.json", list[int]()
    file.write_text(json.dumps(asked(sizes=[8])))

    def noted(request: Any, workers: int) -> SizingAnswer:
        told.append(workers)
        return compute(request)

    monkeypatch.setattr("planner.answers.sizing.compute.size", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert run(["size", str(file), "--json"]) == 0
    assert told == [1]


class TestAssumptions:
    def test_without_failures_only_checkpoints_are_lost(self) -> None:
        found = size(asked(failures_per_1000_node_days=0, checkpoint_s=0))
        assert {row.effective_share for row in found.rows} == {1.0}

    def test_more_failures_take_more_days(self, answer: SizingAnswer) -> None:
        worse = size(asked(failures_per_1000_node_days=40))
        for before, after in zip(answer.rows, worse.rows, strict=True):
            assert after.days > before.days
            assert after.plan == before.plan

    def test_other_assumptions_wait_for_no_search(self, answer: SizingAnswer) -> None:
        searched = rows_module.best.cache_info().misses
        prices = {"h100-sxm": 9.0}
        found = size(asked(pue=1.9, prices_usd_per_accelerator_hour=prices, restart_s=60))
        assert rows_module.best.cache_info().misses == searched
        assert [row.plan for row in found.rows] == [row.plan for row in answer.rows]

    def test_a_price_changes_the_cost_and_is_named(self, answer: SizingAnswer) -> None:
        found = size(asked(prices_usd_per_accelerator_hour={"mi300x": 4.0}))
        for before, after in zip(answer.rows, found.rows, strict=True):
            factor = 4.0 / 1.99 if after.accelerator == "mi300x" else 1.0
            assert after.cost_usd == pytest.approx(factor * before.cost_usd)
        assert any("mi300x: $4 per accelerator-hour, as given" in n.text for n in found.assumptions)

    @pytest.mark.slow
    def test_no_price_no_cost_and_it_says_so(self) -> None:
        found = size(asked(accelerators=["a10g", "l40s", "gaudi3"], sizes=[64]))
        assert found.cheapest is None
        assert found.fastest is not None
        assert all(row.cost_usd is None for row in found.rows)
        assert sum("no price known" in note.text for note in found.assumptions) == 3

    def test_limits_are_marked_and_kept(self, answer: SizingAnswer) -> None:
        days = sorted(row.days for row in answer.rows)[5]
        found = size(asked(deadline_days=days, budget_usd=1e12, power_watts=1e12))
        assert sum("deadline" in row.exceeds for row in found.rows) == len(found.rows) - 6
        assert found.cheapest is not None
        assert found.rows[found.cheapest].days <= days

    def test_nothing_within_the_limits_is_an_answer(self) -> None:
        found = size(asked(deadline_days=1e-6))
        assert found.cheapest is found.fastest is None
        assert all(row.exceeds == ("deadline",) for row in found.rows)

    def test_a_model_that_fits_nowhere(self) -> None:
        found = size(
            model="llama-3.1-405b",
            training=TRAINING,
            sizing={"accelerators": ["h100-sxm"], "sizes": [1, 8]},
        )
        assert [row.reason for row in found.rows] == ["nothing fits", "nothing fits"]
        assert found.smallest == {"h100-sxm-80gb": None}

    def test_a_kind_without_the_precision_is_a_row_with_the_reason(self) -> None:
        training = {**TRAINING, "precision": "fp8"}
        found = size(
            model="llama-3.1-8b",
            training=training,
            sizing={"accelerators": ["a100-80gb", "h100-sxm"], "sizes": [64]},
        )
        assert "no fp8 matrix units" in (found.rows[0].reason or "")
        assert found.rows[1].plan is not None


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ([], ""),
        ({"model": "llama-3.1-8b", "training": {**TRAINING, "tokens": None}}, "/training/tokens"),
        (asked(accelerators=["h1000"]), "/sizing/accelerators/0"),
        (asked(accelerators=[]), "/sizing/accelerators"),
        (asked(sizes=[0]), "/sizing/sizes/0"),
        (asked(sizes=list(range(1, 400))), "/sizing/sizes"),
        (asked(clusters=["64xh1000"]), "/sizing/clusters/0"),
        (asked(clusters=["64xh100", "h100"]), "/sizing/clusters/1"),
        (asked(clusters=["0xh100"]), "/sizing/clusters/0"),
        (asked(deadline_days=float("nan")), "/sizing/deadline_days"),
        (asked(budget_usd=-1), "/sizing/budget_usd"),
        (asked(dead_line=3), "/sizing/dead_line"),
        (asked(prices_usd_per_accelerator_hour={"h1000": 3}),
         "/sizing/prices_usd_per_accelerator_hour/h1000"),
        ({**asked(), "cluster": "8x8xh100-sxm"}, "/cluster"),
        ({**asked(), "sizing": 3}, "/sizing"),
    ],
)  # fmt: skip
def test_bad_input_is_named_by_its_place(document: Any, pointer: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_sizing(document)
    assert pointer in [problem.pointer for problem in error.value.problems]


@pytest.mark.slow
def test_named_clusters_alone_are_compared() -> None:
    request = parse_sizing(asked(clusters=["64 h100", "8xMI300X", "64xh100-sxm"]))
    assert request.sizing.clusters == ("64xh100-sxm-80gb", "8xmi300x")
    assert parse_sizing(request.document()).sizing == request.sizing
    found = compute(request)
    rows = [(row.accelerators, row.accelerator) for row in found.rows]
    assert rows == [(64, "h100-sxm-80gb"), (8, "mi300x")]
    assert set(found.best_of_kind) == {"h100-sxm-80gb", "mi300x"}


@pytest.mark.slow
def test_the_command_prints_the_same_document(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    file = tmp_path / "sizing.json"
    file.write_text(json.dumps(asked(sizes=[64])))
    assert run(["size", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == json.loads(size(asked(sizes=[64])).model_dump_json())["rows"]


def test_options_lie_over_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    file = tmp_path / "sizing.json"
    file.write_text(json.dumps(asked()))
    line = ["size", str(file), "--sizes", "64", "--accelerators", "h100-sxm,mi300x"]
    line += ["--detect-s", "30"]
    assert run([*line, "--price", "mi300x=9", "--pue", "1.5", "--json"]) == 0
    sizing = json.loads(capsys.readouterr().out)["request"]["sizing"]
    assert sizing["sizes"] == [64]
    assert sizing["pue"] == 1.5
    assert sizing["detect_s"] == 30
    assert sizing["prices_usd_per_accelerator_hour"] == {"mi300x": 9}
    assert run([*line, "--price", "mi300x"]) == 2
    assert "NAME=USD" in capsys.readouterr().err
    assert run([*line, "--deadline-days", "soon"]) == 2
    assert "--deadline-days: must be a number" in capsys.readouterr().err


@pytest.mark.slow
def test_the_screen_names_what_to_rent(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    file = tmp_path / "sizing.json"
    file.write_text(json.dumps(asked(deadline_days=60, sizes=[64])))
    assert run(["size", str(file)]) == 0
    text = capsys.readouterr().out
    for words in ("Cheapest", "Smallest that fits", "Assumed", "a catalog default of"):
        assert words in text


def test_the_picture_has_a_dot_for_every_priced_row(answer: SizingAnswer) -> None:
    tree = ElementTree.fromstring(sizing_figure(answer))
    titles = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(answer.rows)
    rings = list(tree.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(rings) == len(answer.front) + 1  # and that of the legend
