"""Why not this plan: every reason is reached, has its numbers, and the change offered does fit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.answers.plans.competition import prepared
from planner.answers.plans.plan_answers import IllegalPlan, estimate, find, illegal, why
from planner.documents.answer import REASONS, WhyAnswer
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.search.exhaustive import search
from tests.fixtures.small_requests import fitting_requests


def ask(
    model: str = "llama-3.1-8b", cluster: str = "2x8xh100-sxm", seq: int = 4096, batch: int = 64,
    training: dict[str, Any] | None = None, **search_fields: Any,
) -> PlanRequest:  # fmt: skip
    return PlanRequest(
        model=preset(model),
        cluster=parse_shorthand(cluster),
        training=TrainingSpec(seq_length=seq, global_batch_size=batch, **(training or {})),
        search=SearchSpec.model_validate(search_fields),
    )


# What breaks a rule breaks it in every framework: one of them is searched, where it adds no reason.
alone = partial(ask, framework="megatron")


def no_host_link(request: PlanRequest) -> PlanRequest:
    group = request.cluster.groups[0].model_copy(update={"host_link_bytes_per_s": None})
    cluster = request.cluster.model_copy(update={"groups": (group,)})
    return request.model_copy(update={"cluster": cluster})


# (reason, request, plan, what the sentence must name)
CASES: list[tuple[str, PlanRequest, dict[str, Any], tuple[str, ...]]] = [
    ("memory", ask("llama-3.1-70b"), {"tp": 8, "dp": 2}, ("stage 0", "GiB", "optimizer")),
    ("memory_risk", ask(memory_risk=0.01),
     {"dp": 16, "zero_stage": 1, "recompute": "selective", "recompute_modules": ("layernorm",)},
     ("chance", "1 %", "megatron")),
    ("world_size", alone(), {"tp": 8, "dp": 4}, ("32", "16")),
    ("batch_identity", alone(), {"dp": 16, "micro_batch_size": 3}, ("64", "16", "3")),
    ("heads_not_divisible", alone(cluster="1x6xh100-sxm", seq=1536, batch=6), {"tp": 3, "dp": 2},
     ("32 attention heads", "tp 3")),
    ("heads_not_divisible", ask(cluster="8x8xh100-sxm"), {"cp": 64, "cp_kind": "a2a"},
     ("32 attention heads", "cp 64")),
    ("kv_heads", alone(cluster="1x6xh100-sxm", seq=1536, batch=6), {"tp": 6},
     ("8 key/value", "tp 6")),
    ("ffn_not_divisible", alone(cluster="1x6xh100-sxm", seq=1536, batch=6), {"tp": 3, "dp": 2},
     ("14336", "tp 3")),
    ("ffn_not_divisible", alone("mixtral-8x7b", "1x6xh100-sxm", 1536, 6), {"etp": 3, "dp": 6},
     ("14336", "etp 3")),
    ("layers_not_divisible", alone(cluster="1x5xh100-sxm", batch=5), {"pp": 5}, ("32", "5")),
    ("layers_not_divisible", alone(), {"pp": 16, "stage_layers": (2,) * 15 + (3,)}, ("33", "32")),
    ("layers_not_divisible", alone(), {"dp": 16, "first_stage_layers": 4}, ("pp > 1",)),
    ("vpp_layout", alone(), {"pp": 4, "dp": 4, "vpp": 3, "schedule": "interleaved-1f1b"}, ("3",)),
    ("vpp_layout", alone(), {"dp": 16, "vpp": 2, "schedule": "interleaved-1f1b"}, ("pp > 1",)),
    ("schedule_micro_batches", alone(),
     {"pp": 8, "dp": 2, "vpp": 2, "micro_batch_size": 8, "schedule": "interleaved-1f1b"},
     ("8", "4")),
    ("experts_not_divisible", alone("mixtral-8x7b"), {"dp": 16, "ep": 16}, ("8 experts", "ep 16")),
    ("experts_not_divisible", alone(), {"dp": 16, "ep": 2}, ("no experts",)),
    ("experts_not_divisible", alone("mixtral-8x7b", "1x6xh100-sxm", 1536, 6), {"dp": 6, "ep": 4},
     ("ep 4", "6 ranks")),
    ("sequence_parallel", alone(), {"dp": 16, "sequence_parallel": True}, ("tp > 1",)),
    ("sequence_parallel", alone("mixtral-8x7b"), {"tp": 2, "dp": 8}, ("sequence_parallel",)),
    ("cp_seq", alone(), {"cp": 2, "pp": 2, "dp": 4, "dynamic_cp": True}, ("pp 2", "dp x cp 8")),
    ("cp_seq", ask(training={"sample_lengths": (900,), "packing": "padded"}),
     {"cp": 2, "dp": 8, "dynamic_cp": True}, ("packed samples",)),
    ("cp_seq", ask(seq=4104), {"cp": 8, "dp": 2}, ("4104", "16")),
    ("zero_stage", alone(), {"pp": 4, "dp": 4, "zero_stage": 2}, ("zero_stage 2", "pp 4")),
    ("zero_stage", alone(), {"dp": 16, "dp_shard": 3}, ("3", "16")),
    ("recompute", alone(), {"dp": 16, "recompute": "full", "recompute_num_layers": 33},
     ("33", "32")),
    ("recompute", alone(), {"dp": 16, "recompute": "selective", "recompute_modules": ("moe",)},
     ("moe",)),
    ("recompute", alone(), {"cp": 2, "dp": 8, "attention_kernel": "unfused"}, ("cp 2",)),
    ("offload", no_host_link(alone()), {"dp": 16, "offload_optimizer": True},
     ("host_link_bytes_per_s",)),
    ("optimizer_in_backward", ask(training={"optimizer_in_backward": True}),
     {"pp": 2, "dp": 8}, ("one micro-batch", "pp 2")),
    ("fp8_shape", alone(seq=4100, training={"precision": "fp8"}), {"dp": 16},
     ("multiples of 8", "4100 tokens")),
    ("attention_kernel", alone(cluster="1x8xv100-sxm2-32gb", training={"precision": "fp16"}),
     {"dp": 8}, ("V100 SXM2 32GB", "unfused")),
    ("gradient_scaling", ask(framework="trl", cluster="1x8xa100-sxm", training={
        "precision": "fp16", "lora_rank": 8, "frozen_dtype": "nf4",
        "gradient_reduce_dtype": "fp32"}), {"dp": 8}, ("in bf16",)),
    ("framework_unsupported", ask(framework="megatron"), {"pp": 4, "dp": 4, "schedule": "gpipe"},
     ()),
    ("adapters", alone(training={"lora_rank": 8, "lora_targets": ("q_a_proj",)}), {"dp": 16},
     ("llama-3.1-8b", "q_a_proj")),
    ("user_limit", ask(limits={"tp": Bounds(max=2)}), {"tp": 4, "dp": 4}, ("4", "2")),
]  # fmt: skip
OF_RULES = [case for case in CASES if case[0] not in ("memory", "memory_risk", "user_limit")]


def test_every_reason_is_reached() -> None:
    """By the cases above, and tp_exceeds_domain, which only bounds the default space."""
    outcome = search(ask())
    assert outcome.counts is not None
    assert outcome.counts.rejected["tp_exceeds_domain"] > 0
    assert {code for code, *_ in CASES} | {"tp_exceeds_domain"} == set(REASONS)


def check_change(request: PlanRequest, plan: ParallelPlan, answer: WhyAnswer) -> None:
    change = answer.smallest_change
    if change is None:
        # Only where the whole space of the request holds nothing that its framework runs.
        assert not search(*prepared(request), top_k=1).best
        return
    applied = plan.model_copy(update={n: getattr(change.plan, n) for n in change.set})
    assert applied == change.plan
    report = estimate(request, change.plan).estimate
    assert report.fits
    assert report.memory.peak_bytes == pytest.approx(change.peak_bytes, rel=1e-12)
    assert report.iteration_time_s == pytest.approx(change.iteration_time_s, rel=1e-12)


@pytest.mark.parametrize(("code", "request_", "fields", "named"), OF_RULES)
def test_the_rule_is_named(
    code: str, request_: PlanRequest, fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    _, rules = prepared(request_)
    found = illegal(request_, ParallelPlan.model_validate(fields), rules)
    (text,) = [reason.text for reason in found if reason.code == code]
    assert all(piece in text for piece in named)


# A search each: of the cases of one reason the first; the others with the exhaustive tests.
@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "request_", "fields", "named"),
    [
        pytest.param(*case, marks=() if case[0] != before else pytest.mark.exhaustive)
        for case, before in zip(CASES, (None, *(code for code, *_ in CASES)), strict=False)
    ],
)
def test_the_reason_is_named_and_the_smallest_change_fits(
    code: str, request_: PlanRequest, fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    plan = ParallelPlan.model_validate(fields)
    answer = why(request_, plan)
    found = {reason.code: reason.text for reason in answer.reasons}
    assert code in found
    for piece in named:
        assert piece in found[code]
    verdicts = {"memory": "does not fit", "memory_risk": "may run out"}
    assert answer.verdict == verdicts.get(code, "illegal")
    check_change(request_, plan, answer)


@pytest.mark.slow
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    fitting_requests(most_layers=6, worlds=((1, 2), (1, 4), (2, 4))),
    st.fixed_dictionaries(
        {
            "tp": st.sampled_from([1, 2, 3, 4]),
            "pp": st.sampled_from([1, 2, 3]),
            "dp": st.sampled_from([1, 2, 4, 8]),
            "micro_batch_size": st.sampled_from([1, 2, 5]),
            "zero_stage": st.integers(0, 3),
        }
    ),
)
def test_drawn_plans_get_a_change_that_fits(request_: PlanRequest, fields: dict[str, Any]) -> None:
    plan = ParallelPlan.model_validate(fields)
    answer = why(request_, plan)
    # Something fits, so a change is named wherever one is needed.
    assert (answer.smallest_change is None) == (not answer.reasons)
    if answer.reasons:
        check_change(request_, plan, answer)


class TestVerdicts:
    @pytest.mark.slow
    def test_the_best_plan_is_best(self) -> None:
        best = find(ask()).best
        assert best is not None
        answer = why(ask(), best.plan)
        assert (answer.verdict, answer.slower_by, answer.reasons) == ("best", 0.0, ())

    def test_a_slower_plan_says_by_how_much_and_where(self) -> None:
        answer = why(ask(), ParallelPlan(tp=8, sequence_parallel=True, dp=2))
        assert answer.verdict == "slower"
        assert answer.estimate is not None
        assert answer.best is not None
        gap = answer.estimate.iteration_time_s - answer.best.iteration_time_s
        assert sum(answer.differences_s.values()) == pytest.approx(gap, rel=1e-9)
        assert answer.slower_by == pytest.approx(gap / answer.best.iteration_time_s)
        assert next(iter(answer.differences_s)) == "tp_comm"

    @pytest.mark.slow
    def test_a_small_change_is_small(self) -> None:
        """70B on 32 ranks with tp 8: recompute, ZeRO or stages, not a new plan."""
        plan = ParallelPlan(tp=8, sequence_parallel=True, dp=4)
        request = ask("llama-3.1-70b", "4x8xh100-sxm", seq=8192, batch=64)
        change = why(request, plan).smallest_change
        assert change is not None
        assert len(set(change.set) - {"dp", "recompute_num_layers", "recompute_modules"}) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "fields",
        [
            {"schedule": "gpipe"},
            {"recompute": "full", "recompute_num_layers": 5},
            {"recompute": "selective", "recompute_modules": ("mlp",)},
            {"stage_layers": (15, 17)},
            {"first_stage_layers": 15, "last_stage_layers": 17},
        ],
    )
    def test_only_what_is_wrong_changes(self, fields: dict[str, Any]) -> None:
        """Illegal by its micro-batch alone: everything else stays as given."""
        plan = ParallelPlan.model_validate({"tp": 4, "pp": 2, "micro_batch_size": 3, **fields})
        change = why(ask(cluster="1x8xh100-sxm", batch=8), plan).smallest_change
        assert change is not None
        assert set(change.set) == {"micro_batch_size"}

    def test_estimating_an_illegal_plan_names_every_reason(self) -> None:
        plan = ParallelPlan(tp=3, dp=5)
        with pytest.raises(IllegalPlan) as caught:
            estimate(ask(), plan)
        codes = {reason.code for reason in caught.value.reasons}
        assert codes == {reason.code for reason in illegal(ask(), plan)}
        assert {"world_size", "heads_not_divisible"} <= codes
