"""From a plan at full scale to one that this machine trains: what changes, and what never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cost_models.catalog import local
from planner.answers.plans.plan_answers import illegal
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.frameworks.base import Unsupported
from planner.frameworks.pytorch import FRAMEWORK
from planner.inputs.requests.parser import parse_request
from planner.running.validate.as_pytorch_script import native
from planner.running.validate.scaling.scale_down import MAX_CPU_PROCESSES, scaled
from tests.fixtures.small_patterns import PATTERNS
from tests.fixtures.tiers import examples


def request(
    plan: dict[str, Any],
    model: Any = "llama-3.1-70b",
    cluster: str = "8x8xh100-sxm",
    **training: Any,
) -> PlanRequest:
    batch = {"seq_length": 8192, "global_batch_size": 512, **training}
    return parse_request({"model": model, "cluster": cluster, "training": batch, "plan": plan})


def changed(asked: PlanRequest) -> dict[str, Any]:
    return {one.field: one.used for one in native(asked).differences}


QWEN: dict[str, Any] = {
    "num_layers": 32, "hidden_size": 1280, "num_attention_heads": 16, "ffn_hidden_size": 3420,
    "gated_mlp": True, "norm": "rmsnorm", "qkv_bias": True, "bidirectional": True,
    "tokens": 1024, "span": 1024, "input_width": 1176, "merge": 4, "other_parameters": 9216,
    "projector": [{"inputs": 5120, "outputs": 5120}, {"inputs": 5120, "outputs": 4096}],
    "layer_pattern": [
        *[[{"kind": "attention", "chunk": 64}, {"kind": "mlp"}]] * 7,
        [{"kind": "attention"}, {"kind": "mlp"}],
    ],
}  # fmt: skip


class TestNative:
    def test_a_native_plan_stays_as_it_is(self) -> None:
        plan = {
            "runtime": "torch", "cross_entropy": "unfused", "zero_stage": 3,
        }  # fmt: skip
        assert changed(request(plan)) == {}

    def test_zero_1_becomes_fsdp_without_resharding(self) -> None:
        used = changed(request({"tp": 8, "sequence_parallel": True, "zero_stage": 1}))
        assert used["plan/zero_stage"] == 3
        assert used["plan/reshard_after_forward"] is False
        assert used["plan/runtime"] == "torch"

    def test_the_vocabulary_is_padded_as_frameworks_pad_it(self) -> None:
        used = changed(request({"tp": 8, "sequence_parallel": True}, "gpt3-175b", seq_length=2048))
        assert used["model/vocab_size"] == 51200  # 50257 up to a multiple of 128 x 8

    def test_modules_that_torch_cannot_checkpoint_apart_are_dropped(self) -> None:
        plan = {"recompute": "selective", "recompute_modules": ["layernorm", "core_attn"]}
        assert changed(request(plan))["plan/recompute_modules"] == ("core_attn",)
        plan = {"recompute": "selective", "recompute_modules": ["layernorm"]}
        assert changed(request(plan))["plan/recompute"] == "none"

    def test_what_has_no_near_form_is_refused_with_the_reason(self) -> None:
        plan = {"pp": 8, "vpp": 1, "schedule": "zb-h1", "tp": 8}
        with pytest.raises(Unsupported, match=r"schedule is 1f1b or gpipe or .*not zb-h1"):
            native(request(plan))

    def test_every_difference_says_why(self) -> None:
        found = native(request({"tp": 4, "cp": 2, "pp": 4, "cp_kind": "a2a"})).differences
        assert found
        assert all(one.why and one.asked != one.used for one in found)


DEGREES = st.sampled_from([1, 2, 4, 8])


class TestScale:
    def test_every_split_dimension_stays_split_while_there_are_processes(self) -> None:
        plan = {"tp": 8, "sequence_parallel": True, "pp": 4, "dp": 2}
        small = scaled(request(plan, global_batch_size=512)).plan
        assert (small.tp, small.pp, small.dp, small.accelerators) == (2, 2, 2, 8)

    def test_what_shrinks_says_what_the_run_cannot_show(self) -> None:
        changes = {one.field: one for one in scaled(request({"tp": 8, "pp": 4})).changes}
        assert (changes["plan/tp"].was, changes["plan/tp"].now) == (8, 2)
        assert "collectives" in changes["plan/tp"].hides
        assert changes["model/hidden_size"].was == 8192
        assert "cluster" in changes

    def test_the_layer_keeps_its_proportions(self) -> None:
        asked = request({"tp": 8, "pp": 4})
        model = scaled(asked).request.model
        assert model.num_attention_heads * model.head_dim == model.hidden_size
        full = asked.model.ffn_hidden_size / asked.model.hidden_size
        assert model.ffn_hidden_size / model.hidden_size == pytest.approx(full, rel=0.15)
        assert model.num_query_groups < model.num_attention_heads

    @pytest.mark.parametrize("cp", [1, 4])
    @pytest.mark.parametrize("name", PATTERNS)
    def test_every_kind_of_layer_stays(self, name: str, cp: int) -> None:
        wide = {
            "num_layers": 48, "hidden_size": 4096, "num_attention_heads": 32,
            "num_query_groups": 8, "ffn_hidden_size": 14336, "gated_mlp": True,
            "vocab_size": 128256, "norm": "rmsnorm", "layer_pattern": PATTERNS[name] * 2,
        }  # fmt: skip
        split = {} if name == "recurrences" else {"tp": 2, "sequence_parallel": True}
        split = split if cp == 1 else {"cp": cp, "cp_kind": "a2a" if name == "windows" else "p2p"}
        asked = request({"pp": 4, "dp": 2, "runtime": "torch", **split}, wide, "2x8xh100-sxm")
        small = scaled(asked).request
        kinds = {tuple(block.kind for block in layer) for layer in asked.model.layer_pattern}
        layers = small.model.layer_pattern
        order = [layers[i % len(layers)] for i in range(small.model.num_layers)]
        assert {tuple(block.kind for block in layer) for layer in order} == kinds
        used = native(small, compiled=False)
        assert not FRAMEWORK.reasons(used.request, used.plan)
        assert used.plan.cp == min(cp, 2)
        assert parse_request(small.model_dump(mode="json"))

    @pytest.mark.parametrize(
        ("context", "others"), [({"cp": 2, "cp_kind": "a2a"}, 2), ({"pp": 2}, 2)]
    )
    def test_encoders_stay(self, context: dict[str, Any], others: int) -> None:
        """As in Qwen2.5-VL, two images of a sample."""
        wide = {
            "num_layers": 48, "hidden_size": 4096, "num_attention_heads": 32,
            "num_query_groups": 32, "vocab_size": 128256, "norm": "rmsnorm", "encoders": [QWEN],
        }  # fmt: skip
        split = {"tp": 2, "sequence_parallel": True, "dp": 2}
        asked = request(
            {"runtime": "torch", **split, **context}, wide, f"1x{4 * others}xh100-sxm",
            encoder_tokens=2048, frozen=["encoders"],
        )  # fmt: skip
        found = scaled(asked)
        (small,) = found.request.model.encoders
        chunks = {layer[0].chunk for layer in small.layer_pattern}  # type: ignore[union-attr]
        assert chunks == {None, small.span // 2}
        assert small.tokens == 2 * small.span
        assert found.request.training.encoder_tokens is None
        assert "model/encoders" in [one.field for one in found.changes]
        used = native(found.request, compiled=False)
        assert "model/encoders/other_parameters" in [one.field for one in used.differences]
        assert not FRAMEWORK.reasons(used.request, used.plan)
        assert parse_request(found.request.model_dump(mode="json"))

    def test_a_plan_for_this_machine_keeps_its_model(self) -> None:
        model = {
            "num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "vocab_size": 512,
        }  # fmt: skip
        asked = request(
            {"tp": 2, "pp": 2, "dp": 2}, model, "local", seq_length=64, global_batch_size=8
        )
        found = scaled(asked)
        assert found.request.model == asked.model
        assert found.request.cluster.accelerators == 8
        assert [one.field for one in found.changes] == []

    @given(
        tp=DEGREES,
        pp=DEGREES,
        dp=DEGREES,
        vpp=st.sampled_from([1, 2]),
        schedule=st.sampled_from(["1f1b", "interleaved-1f1b", "zb-v", "gpipe"]),
        zero=st.sampled_from([0, 1, 3]),
        kind=st.sampled_from(["llama-3.1-70b", "gpt3-175b"]),
    )
    @settings(
        deadline=None,
        max_examples=examples(60),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def test_drawn_plans_come_out_runnable(
        self, tp: int, pp: int, dp: int, vpp: int, schedule: str, zero: int, kind: str
    ) -> None:
        """Whatever is legal at full scale can be run here."""
        plan = {
            "tp": tp, "sequence_parallel": tp > 1, "pp": pp, "dp": dp, "vpp": vpp,
            "schedule": schedule, "zero_stage": zero, "runtime": "torch",
            "reshard_after_forward": zero != 3 or pp == 1,
        }  # fmt: skip
        nodes = max(1, tp * pp * dp // 8)
        per_node = min(tp * pp * dp, 8)
        try:
            asked = request(plan, kind, f"{nodes}x{per_node}xh100-sxm", seq_length=2048)
        except RequestError:  # a schedule and a number of chunks that contradict each other
            assume(False)
        assume(not illegal(asked, asked.plan))
        small = scaled(asked)
        used = native(small.request, compiled=False)
        assert used.plan.accelerators <= MAX_CPU_PROCESSES
        assert not FRAMEWORK.reasons(used.request, used.plan)
        for name in ("tp", "pp"):
            if small.plan.accelerators < MAX_CPU_PROCESSES:
                assert getattr(small.plan, name) > 1 or getattr(asked.plan, name) == 1


def test_local_processes_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # where no nvidia-smi tells of GPUs
    local.cluster.cache_clear()
    alone, many = local.cluster(1), local.cluster(4 * local.cpu_cores())
    local.cluster.cache_clear()
    one, shared = alone.groups[0].accelerator, many.groups[0].accelerator
    assert shared.peak_flop_per_s("fp32") == pytest.approx(one.peak_flop_per_s("fp32") / 4)
    assert many.accelerators == 4 * local.cpu_cores()
