"""Logs of real trainings: plan, model and step as a careful reader finds them.

The times were read from the whole logs, by hand or by the median of their later two thirds, not by
the reader under test.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.documents.problems import RequestError
from planner.inputs.logs import RunLog, lines_of, read_log, text_of

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"
GIB = 2.0**30


@cache
def run(name: str) -> RunLog:
    with (LOGS / f"{name}.log").open("rb") as file:
        return read_log(lines_of(file), name)


def gpt(layers: int, hidden: int, heads: int = 32, **more: Any) -> dict[str, Any]:
    """GPT-2's shape, as Megatron-LM's examples train it."""
    return {
        "model.num_layers": layers,
        "model.hidden_size": hidden,
        "model.num_attention_heads": heads,
        "model.ffn_hidden_size": 4 * hidden,
        "model.vocab_size": 50257,
        "model.position": "learned",
        **more,
    }


def plan(tp: int, pp: int, dp: int, micro: int, batch: int, **more: Any) -> dict[str, Any]:
    return {
        "plan.tp": tp,
        "plan.pp": pp,
        "plan.dp": dp,
        "plan.micro_batch_size": micro,
        "training.global_batch_size": batch,
        "accelerators": tp * pp * dp,
        **more,
    }


BASE = {"training.seq_length": 1024, "training.precision": "fp16", "plan.recompute": "full"}
SMALL = {"training.seq_length": 1024, "training.precision": "fp16", "plan.recompute": "none"}
LORA = {"model.name": "llama-2-70b", "training.lora_rank": 16, "training.seq_length": 8192}
GPT3 = {"model.name": "gpt3-175b", "model.num_layers": 96, "training.seq_length": 2048}
# Log -> (code base, seconds of a step, what it says).
LOGS_READ: dict[str, tuple[str, float, dict[str, Any]]] = {
    "megatron_gpt_4_nodes": (
        "megatron-lm", 1.381, gpt(40, 6144) | plan(4, 4, 1, 1, 4) | BASE,
    ),
    "megatron_gpt_8_nodes": (
        "megatron-lm", 1.617, gpt(48, 7168) | plan(4, 8, 1, 1, 4) | BASE,
    ),
    "megatron_gpt_16_nodes": (
        "megatron-lm", 2.740, gpt(64, 9216) | plan(4, 16, 1, 1, 4) | BASE,
    ),
    "megatron_gpt_32_nodes": (
        "megatron-lm", 4.213, gpt(64, 12288) | plan(4, 32, 1, 1, 4) | BASE,
    ),
    "megatron_gpt_64_nodes": (
        "megatron-lm", 6.726, gpt(64, 16384) | plan(4, 64, 1, 1, 4) | BASE,
    ),
    "megatron_gpt_52b": (
        "megatron-lm", 126.88, gpt(64, 8192) | plan(4, 16, 1, 4, 1024) | BASE,
    ),
    "megatron_deepspeed_gpt_52b": (
        "megatron-deepspeed", 136.33,
        gpt(64, 8192) | plan(4, 16, 1, 4, 1024) | BASE | {"plan.zero_stage": 0},
    ),
    "megatron_deepspeed_aurora": (
        "megatron-deepspeed", 3.40,
        {
            "training.global_batch_size": 6144, "training.seq_length": 8192,
            "accelerators": 3072,
        },
    ),
    "megatron_gpt_345m_dp4": (
        "megatron-lm", 0.288, gpt(24, 1024, 16) | plan(1, 1, 4, 1, 8) | SMALL,
    ),
    "megatron_gpt_345m_tp2_pp2": (
        "megatron-lm", 1.0826, gpt(24, 1024, 16) | plan(2, 2, 1, 4, 16) | SMALL,
    ),
    "megatron_gpt_345m_tp4": (
        "megatron-lm", 2.667, gpt(24, 1024, 16) | plan(4, 1, 1, 2, 8) | SMALL,
    ),
    "nemo_llama_1_layer": (
        "nemo", 0.451,
        plan(1, 1, 1, 1, 64)
        | {"model.num_layers": 1, "model.hidden_size": 256, "training.seq_length": 128},
    ),
    "nemo_cloudai": ("nemo", 12.65, {"training.global_batch_size": 128}),
    "deepspeed_opt_1.3b": (
        "deepspeed", 0.7458,
        {
            "model.name": "facebook/opt-1.3b", "plan.zero_stage": 2, "plan.micro_batch_size": 8,
            "training.seq_length": 512,
        },
    ),
    "trainer_gpt_4_nodes": (
        "trainer", 56.0,
        gpt(40, 7168) | plan(1, 1, 16, 4, 64) | {"plan.zero_stage": 3, "plan.recompute": "full"},
    ),
    "trainer_gpt_8_nodes": (
        "trainer", 112.0,
        gpt(64, 8192) | plan(1, 1, 32, 4, 128) | {"plan.zero_stage": 3, "plan.recompute": "full"},
    ),
    "trainer_gpt_16_nodes": (
        "trainer", 215.4,
        gpt(64, 11264) | plan(1, 1, 64, 4, 256) | {"plan.zero_stage": 3, "plan.recompute": "full"},
    ),
    "torchtitan_deepseek_v3_debug": (
        "torchtitan", 0.0630,
        plan(2, 1, 2, 8, 16, **{"plan.ep": 2, "plan.cp": 1, "plan.zero_stage": 3})
        | {"model.name": "deepseek_v3 debugmodel", "plan.recompute": "selective"}
        | {"training.seq_length": 2048, "accelerator": "NVIDIA GB200"},
    ),
    "mlperf_nvidia_gpt3": (
        "mlperf", 10.90,
        GPT3 | {"accelerators": 512, "nodes": 64, "training.global_batch_size": 2304},
    ),
    "mlperf_nvidia_lora": (
        "mlperf", 0.6387, LORA | {"accelerators": 64, "training.global_batch_size": 8},
    ),
    "mlperf_google_gpt3": ("mlperf", 11.81, GPT3 | {"training.global_batch_size": 2048}),
    "mlperf_gaudi_gpt3": ("mlperf", 11.60, GPT3 | {"training.global_batch_size": 2048}),
    "mlperf_gaudi_lora": ("mlperf", 10.21, LORA | {"training.global_batch_size": 8}),
    "mlperf_deepspeed_lora": ("mlperf", 9.87, LORA | {"training.global_batch_size": 32}),
    "nanotron_2_gpus": (
        "nanotron", 11.5, {"accelerators": 2, "training.global_batch_size": 64},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS_READ)
def test_run_is_what_the_log_says(name: str) -> None:
    code_base, seconds, said = LOGS_READ[name]
    found = run(name)
    assert found.code_base == code_base
    assert {field: found.get(field) for field in said} == said
    assert found.step.seconds == pytest.approx(seconds, rel=0.01)


def test_enough_logs_of_enough_code_bases() -> None:
    assert len(LOGS_READ) >= 20
    assert len({code_base for code_base, _, _ in LOGS_READ.values()}) >= 8
    assert {f"{name}.log" for name in LOGS_READ} | {"megatron_bridge_llama_1b.log"} == {
        path.name for path in LOGS.glob("*.log")
    }


def test_facts_stand_where_the_log_says_them() -> None:
    """The line of a fact holds its value."""
    names = {
        "model.num_layers": "num_layers",
        "model.hidden_size": "hidden_size",
        "plan.tp": "tensor_model_parallel_size",
        "plan.pp": "pipeline_model_parallel_size",
        "plan.micro_batch_size": "micro_batch_size",
        "plan.recompute": "checkpoint_activations",
    }
    lines = (LOGS / "megatron_gpt_8_nodes.log").read_text().splitlines()
    facts = {fact.field: fact for fact in run("megatron_gpt_8_nodes").facts}
    for field, name in names.items():
        assert lines[facts[field].line - 1].split()[0] == name


def test_launch_of_a_printed_block_is_whole() -> None:
    """The framework's own reader makes the specs and the plan."""
    reading = run("megatron_gpt_8_nodes").reading
    assert reading is not None
    assert reading.framework == "megatron"
    assert (reading.plan.tp, reading.plan.pp, reading.plan.accelerators) == (4, 8, 32)
    assert reading.refusals == ()
    deepspeed = run("megatron_deepspeed_gpt_52b").reading
    assert deepspeed is not None
    assert deepspeed.framework == "deepspeed"


def test_steps_left_out_have_their_reasons() -> None:
    """Twenty reports of ten steps: the first, two with overflow, one after the validation."""
    step = run("megatron_gpt_8_nodes").step
    assert {one.reason: one.steps for one in step.left_out} == {
        "warm-up": 10,
        "skipped or NaN iterations": 20,
        "after an evaluation or checkpoint": 10,
    }
    assert step.steps == 160
    # A clock that was set gave one step of -12.71 s.
    clock = {one.reason: one.steps for one in run("nemo_llama_1_layer").step.left_out}
    assert clock["implausible step times"] == 1


@pytest.mark.parametrize(
    ("name", "quantity", "gib"),
    [
        ("megatron_deepspeed_gpt_52b", "max allocated", 19961.07 / 1024),
        ("megatron_gpt_345m_tp2_pp2", "max reserved", 7622.0 / 1024),
        ("deepspeed_opt_1.3b", "max allocated", 22.95),
        ("torchtitan_deepseek_v3_debug", "max reserved", 3.18),
    ],
)
def test_memory_is_the_largest_report(name: str, quantity: str, gib: float) -> None:
    found = {one.quantity: one for one in run(name).memory}
    assert found[quantity].bytes / GIB == pytest.approx(gib, rel=1e-4)  # type: ignore[index]


def test_rates_agree_with_what_is_printed() -> None:
    """The log prints tokens/s and TFLOP/s of one of the four accelerators."""
    found = run("torchtitan_deepseek_v3_debug")
    assert found.tokens_per_s == pytest.approx(4 * 129_655, rel=0.01)
    assert found.tflops_per_accelerator == pytest.approx(66.9, rel=0.03)
    assert run("nanotron_2_gpus").tflops_per_accelerator == 38.3


def test_what_is_open_is_said() -> None:
    assert "plan.tp" in run("mlperf_nvidia_gpt3").left_open
    # That version had no option for the kernel, so today's default says nothing of it.
    assert run("megatron_gpt_8_nodes").left_open == ("plan.attention_kernel",)
    assert any("evaluation" in one for one in run("mlperf_google_gpt3").assumed)


def test_one_report_over_the_whole_run_is_no_steady_step() -> None:
    """Ten steps in one report, the first among them."""
    with pytest.raises(RequestError, match="10 steps in the log: at least 2 are needed"):
        run("megatron_bridge_llama_1b")


def test_configuration_of_bridge_is_read_with_megatron_s_table() -> None:
    lines = (LOGS / "megatron_bridge_llama_1b.log").read_text().splitlines()
    step = next(line for line in lines if "elapsed time" in line)
    later = [step.replace(" 10/ ", f" {n}/ ").replace("4647.8", "400.0") for n in (20, 30)]
    found = read_log([*lines, *later], "bridge")
    assert found.code_base == "megatron-bridge"
    said = plan(1, 1, 8, 1, 512, **{"plan.zero_stage": 1, "training.precision": "bf16"}) | {
        "model.num_layers": 16,
        "model.hidden_size": 2048,
        "model.num_query_groups": 8,
        "model.gated_mlp": True,
        "model.tied_embeddings": True,
        "model.vocab_size": 128256,
        "training.seq_length": 1024,
    }
    assert {field: found.get(field) for field in said} == said
    assert found.step.seconds == pytest.approx(0.4)


def test_text_says_what_was_read_and_what_is_open() -> None:
    text = text_of(run("megatron_gpt_8_nodes"))
    assert text.startswith("megatron_gpt_8_nodes: megatron-lm\nstep         1.618 s (1.616 to")
    assert "read         plan.tp 4 (megatron_gpt_8_nodes:" in text
    assert "left out     10 steps: warm-up" in text
    assert "left open    plan.attention_kernel" in text
    assert "memory       19.58 GiB max allocated" in text
