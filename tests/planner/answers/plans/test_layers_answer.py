"""The layer tables of a plan add up to its estimate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.plans import Plans
from planner import estimate
from planner.answers.plans.layer_contents import LayersAnswer, layers_answer
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import cost_model

DENSE: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "cluster": "8x8xh100-sxm",
    "training": {"seq_length": 8192, "global_batch_size": 1024},
}
PLAN = {"tp": 4, "pp": 4, "cp": 2, "sequence_parallel": True}
FULL = {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SOME = {"recompute": "selective", "recompute_modules": ["mlp"]}


def tables(plan: dict[str, Any]) -> LayersAnswer:
    asked = parse_request(DENSE | {"plan": plan}, need_plan=True)
    return layers_answer(asked, asked.named_plan)


def test_kernels_are_those_of_the_report() -> None:
    (table,) = tables(PLAN).layers
    report = estimate(**DENSE, plan=PLAN).estimate
    assert [(row.kernel, row.forward_s, row.backward_s) for row in table.kernels] == [
        (row["kernel"], row["forward_s"], row["backward_s"]) for row in report.kernels
    ]
    assert table.layers == 80
    fc1 = next(row for row in table.kernels if row.kernel == "fc1")
    # 8,192 tokens over cp 2; gate and up of 28,672 over tp 4.
    assert (fc1.shape, fc1.formula) == ("4,096 x 8,192 x 14,336", "2·m·k·n FLOP")
    assert fc1.forward_flop == 2 * 4096 * 8192 * 14336
    assert fc1.rate == pytest.approx(fc1.forward_flop / fc1.forward_s)
    assert 0.3 < fc1.share < 1.0
    assert fc1.source.startswith("built in: ")
    assert not any(row.recomputed for row in table.kernels)


@pytest.mark.parametrize("recompute", [{}, SOME, FULL])
def test_tensors_add_up_to_what_a_layer_keeps(recompute: dict[str, Any]) -> None:
    plan = PLAN | recompute
    (table,) = tables(plan).layers
    asked = parse_request(DENSE | {"plan": plan}, need_plan=True)
    gathered = cost_model(asked).gathered(Plans.from_rows([asked.named_plan]))
    if recompute == FULL:
        # Only the input of each layer: 4,096 tokens over tp 4, 8,192 wide, 2 bytes.
        assert table.kept_bytes == 4096 / 4 * 8192 * 2
        assert {row.kept_bytes for row in table.tensors} == {0.0}
    else:
        assert table.kept_bytes == sum(row.kept_bytes for row in table.tensors)
        assert table.kept_bytes == pytest.approx(float(np.max(gathered.bytes.layers[0].saved)))
    dropped = {row.tensor for row in table.tensors if not row.kept_bytes}
    assert ("fc1 output" in dropped) == bool(recompute)


def test_recompute_without_its_exchanges_is_kernels_run_again() -> None:
    """Every forward kernel of the twenty layers of a stage."""
    answer = tables(PLAN | FULL)
    (table,) = answer.layers
    report = estimate(**DENSE, plan=PLAN | FULL).estimate
    again = sum(row.forward_s for row in table.kernels)
    kernels = report.time_parts_s["recompute"] - report.recompute_exchange_s
    assert kernels == pytest.approx(20 * answer.num_micro_batches * again, rel=1e-6)
    assert report.recompute_exchange_s == pytest.approx(
        sum(row.recomputed_s for row in answer.exchanges)
    )
    assert report.recompute_exchange_s > 1.0
    without = estimate(**DENSE, plan=PLAN).estimate
    assert without.recompute_exchange_s == 0.0


def test_what_is_hidden_stands_beside_what_shows() -> None:
    answer, report = tables(PLAN), estimate(**DENSE, plan=PLAN).estimate
    by_part = {row.part: row for row in answer.exchanges}
    assert set(by_part) == {"tp_comm", "cp_comm", "pp_comm", "dp_comm"}
    for part, row in by_part.items():
        assert row.exposed_s == pytest.approx(report.time_parts_s[part])
        assert row.total_s == pytest.approx(row.exposed_s + row.hidden_s)
    assert by_part["tp_comm"].hidden_s > 1.0
    shown = tables(PLAN | {"overlap_grad_reduce": False, "overlap_param_gather": False})
    late = {row.part: row for row in shown.exchanges}["dp_comm"]
    assert late.exposed_s > by_part["dp_comm"].exposed_s
    assert late.hidden_s < by_part["dp_comm"].hidden_s


def test_a_plan_that_cannot_run_has_no_layers() -> None:
    with pytest.raises(RequestError):
        tables({"tp": 3})
