"""The fastest published run beside a plan, and which features runs have shown together."""

from __future__ import annotations

import pytest

from cost_models.catalog.hardware import accelerator
from cost_models.plans import ParallelPlan
from planner.documents.scored_runs import Record, scored_runs
from planner.evidence.uncertainty.record import TOLD, Pairs, record, seen_together
from planner.inputs.requests.parser import parse_request
from planner.search.simplicity import unproven_features, used

H100 = accelerator("h100-sxm")


def of(model: str, cluster: str, plan: ParallelPlan, **fields: object) -> Record | None:
    training = {"seq_length": 8192, "global_batch_size": 128, **fields}
    asked = parse_request({"model": model, "cluster": cluster, "training": training})
    return record(asked.model, asked.cluster, asked.training, plan)


def test_the_record_is_the_fastest_run_of_that_size_in_its_precision() -> None:
    """Of 70B on H100 fp8 runs reach more than any in 16 bits, and do not count."""
    found = of("llama-3.1-70b", "8x8xh100-sxm", ParallelPlan(tp=4, pp=4, dp=4))
    assert found is not None
    runs = [
        run
        for run in scored_runs()
        if run.accelerator == H100.id and not (run.experts or run.adapters)
        and run.precision == "bf16" and 70.6e9 / 1.3 < run.parameters < 70.6e9 * 1.3
    ]  # fmt: skip
    assert found.run == max(runs, key=lambda run: run.model_flop_per_s)
    eight = of("llama-3.1-70b", "8x8xh100-sxm", ParallelPlan(tp=4, pp=4, dp=4), precision="fp8")
    assert eight is not None
    assert eight.run.precision != "bf16"
    assert eight.same_model
    assert eight.run.model_flop_per_s > found.run.model_flop_per_s


def test_measured_rates_are_those_that_sources_print() -> None:
    """Megatron-Bridge prints 786 TFLOP/s of a GPU for Llama 3 70B in fp8 on 64 H100."""
    (run,) = (run for run in scored_runs() if run.id == "bridge-083")
    assert run.model_flop_per_s == pytest.approx(786e12, rel=0.01)


def test_another_size_stands_where_none_trained_the_model() -> None:
    found = of("mixtral-8x7b", "8x8xh100-sxm", ParallelPlan(ep=8, dp=64))
    assert found is not None
    assert not found.same_model
    assert found.run.experts
    assert of("llama-3.1-8b", "1x1xrtx-5090", ParallelPlan()) is None


def test_it_says_what_the_plan_has_that_the_run_had_not_and_whether_any_had_it() -> None:
    plan = ParallelPlan(tp=8, pp=1, dp=8, zero_stage=1)
    found = of("llama-3.1-70b", "8x8xh100-sxm", plan)
    assert found is not None
    run = found.run
    assert f"tp {run.tp} -> 8" in found.differs
    chunks = ParallelPlan(pp=4, vpp=20, dp=16, schedule="interleaved-1f1b")
    rare = of("llama-3.1-70b", "8x8xh100-sxm", chunks)
    assert rare is not None
    assert f"vpp {run.vpp} -> 20 (no run there)" in rare.differs
    own = {name: getattr(run, name) for name in (*TOLD, "dp")}
    same = of("llama-3.1-70b", "8x8xh100-sxm", ParallelPlan.model_validate({
        **own, "recompute_num_layers": 80 if run.recompute == "full" else 0,
    }))  # fmt: skip
    assert same is not None
    assert same.differs == ()


def pairs(*names: str) -> Pairs:
    return frozenset(frozenset((one, other)) for one in names for other in names)


@pytest.mark.parametrize(
    ("seen", "missing"),
    [
        (pairs("TP", "PP", "VPP"), ()),
        (pairs("TP", "PP"), ("TP", "VPP")),
        (pairs("TP", "PP") | pairs("PP", "VPP"), ("TP", "VPP")),
        (pairs("PP", "VPP"), ("TP",)),
    ],
)
def test_a_plan_is_shown_where_runs_have_each_two_of_its_features(
    seen: Pairs, missing: tuple[str, ...]
) -> None:
    plan = ParallelPlan(tp=2, pp=2, vpp=2, schedule="interleaved-1f1b")
    assert used(plan) == ["TP", "PP", "VPP"]
    assert unproven_features(plan, seen) == missing


def test_what_is_seen_is_of_the_family_and_the_kind_of_model() -> None:
    """No dense run has EP, and Megatron's dense pipelines on Hopper have TP with VPP."""
    dense, experts = seen_together(H100, False), seen_together(H100, True)
    assert frozenset(("TP", "VPP")) in dense
    assert not any("EP" in pair for pair in dense)
    assert frozenset(("PP", "EP")) in experts
    # Two sources published MI runs, of plain data parallelism: the runs of all tell instead.
    assert frozenset(("TP", "VPP")) in seen_together(accelerator("mi300x"), False)
