"""Volta and Turing have no FlashAttention 2: plans, prices and files for them do without it."""

from __future__ import annotations

import re

import pytest

from cost_models.catalog.hardware import accelerator, parse_shorthand
from planner import frameworks
from planner.answers.lint.findings import Finding
from planner.answers.lint.lint import lint
from planner.answers.lint.linted_launch import on_accelerators
from planner.answers.plans.plan_answers import find
from planner.frameworks.sources import framework_of, reading_of
from planner.inputs.requests.parser import parse_cluster, parse_request
from tests.fixtures.scripts import PRETRAIN_7B

# What a script or a YAML says to get FlashAttention 2 or later, or cuDNN's.
FLASH = re.compile(
    r"attention-backend (flash|fused)|AttnBackend\.(flash|fused)|flash_attention_2|fa2\b|"
    r"attention_backend=(flash|fused)|use-flash-attn|flash_attention: true|\"flash\""
)
FP16 = {"gradient_dtype": "fp16", "gradient_reduce_dtype": "fp16"}
TYPES = {"gpt-neox": FP16, "colossalai": FP16, "trl": {"gradient_reduce_dtype": "fp16"}}
TYPES["llama-factory"] = TYPES["trl"]
WHOLE = ("megatron", "megatron-bridge", "deepspeed", "gpt-neox", "colossalai", "accelerate",
         "slime", "verl", "llama-factory", "trl")  # fmt: skip
ADAPTERS = ("llama-factory", "axolotl", "unsloth")


def asked(name: str, model: str, **training: object) -> dict[str, object]:
    return {
        "model": model,
        "cluster": "4x8xv100-sxm2-32gb",
        "training": {"seq_length": 2048, "global_batch_size": 64, **training},
        "search": {"framework": name},
    }


def files(document: dict[str, object]) -> tuple[str, str]:
    """The attention kernel of the best plan, and all of its files."""
    request = parse_request(document)
    report = find(request).best
    assert report is not None
    best = report.plan
    made = frameworks.get(str(request.search.framework)).write(request, best)
    return best.attention_kernel, "\n".join(made.files.values())


def test_those_without_bf16_are_before_ampere() -> None:
    older = {
        name for name in ("v100-sxm2-32gb", "t4", "titan-rtx") if accelerator(name).before_ampere
    }
    assert older == {"v100-sxm2-32gb", "t4", "titan-rtx"}
    for name in ("a100-sxm-80gb", "rtx-3090", "h100-sxm-80gb", "mi100", "tpu-v4", "ascend-910b3"):
        assert not accelerator(name).before_ampere


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_files_name_no_kernel_that_the_card_lacks(name: str) -> None:
    kernel, text = files(asked(name, "llama-2-7b", **TYPES.get(name, {})))
    assert FLASH.search(text) is None
    by_torch = name in ("accelerate", "trl", "llama-factory", "colossalai")
    assert kernel == ("flash" if by_torch else "unfused")


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_too(name: str) -> None:
    document = asked(name, "llama-2-7b", lora_rank=16) | {"cluster": "1x1xt4"}
    document["training"] |= {"seq_length": 1024, "frozen_dtype": "nf4"}
    kernel, text = files(document)
    assert FLASH.search(text) is None
    assert kernel == ("flash2" if name == "unsloth" else "flash")


@pytest.mark.slow
def test_torch_computes_grouped_heads_in_steps() -> None:
    """Its only kernel there takes as many keys as queries (torch 2.13)."""
    kernel, text = files(asked("accelerate", "llama-3.1-8b"))
    assert kernel == "unfused"
    assert "--attn_implementation eager" in text


def test_a_plan_of_no_framework_is_compared_with_one_by_hand() -> None:
    document = asked("megatron", "llama-2-7b")
    answer = find(parse_request(document))
    assert answer.baseline is not None
    assert answer.baseline.report.plan.attention_kernel == "unfused"


MEGATRON = f"{PRETRAIN_7B} --fp16"
TRL = """model_name_or_path: {model}
per_device_train_batch_size: 1
max_length: 1024
fp16: true
attn_implementation: {kernel}
use_peft: true
lora_r: 16
"""


def errors(launch: dict[str, str], cluster: str) -> list[Finding]:
    found = lint(launch, parse_cluster(cluster)).findings
    return [one for one in found if one.severity == "error"]


@pytest.mark.parametrize("backend", ["flash", "fused"])
def test_a_megatron_script_that_names_one_is_refused(backend: str) -> None:
    launch = {"a.sh": f"{MEGATRON} --attention-backend {backend}"}
    (one,) = errors(launch, "1x8xv100-sxm2-32gb")
    assert (one.code, one.line, one.option) == ("attention_kernel", 2, "--attention-backend")
    assert errors(launch, "1x8xa100-sxm") == []


@pytest.mark.parametrize("said", ["", " --attention-backend auto", " --attention-backend unfused"])
def test_one_that_leaves_it_to_transformer_engine_is_priced_unfused(said: str) -> None:
    launch, cluster = {"a.sh": MEGATRON + said}, parse_cluster("1x8xv100-sxm2-32gb")
    answer = lint(launch, cluster)
    assert answer.estimate is not None
    assert answer.estimate.plan.attention_kernel == "unfused"
    assert [one for one in answer.findings if one.severity == "error"] == []


@pytest.mark.parametrize("cluster", ["1x1xt4", "1x1xv100-sxm2-32gb"])
def test_a_trainers_yaml_that_names_flash_attention_2_is_refused(cluster: str) -> None:
    config = TRL.format(model="meta-llama/Llama-2-7b-hf", kernel="flash_attention_2")
    launch = {
        "a.sh": "accelerate launch --module trl.scripts.sft --config a.yaml",
        "a.yaml": config,
    }
    (one,) = errors(launch, cluster)
    assert (one.code, one.file, one.line) == ("attention_kernel", "a.yaml", 5)
    assert errors(launch, "1x1xa10") == []


@pytest.mark.parametrize(
    ("model", "kernel"),
    [("meta-llama/Llama-2-7b-hf", "flash"), ("meta-llama/Llama-3.1-8B", "unfused")],
)
def test_what_is_left_to_torch_is_what_torch_takes(model: str, kernel: str) -> None:
    config = TRL.format(model=model, kernel="sdpa")
    launch = {
        "a.sh": "accelerate launch --module trl.scripts.sft --config a.yaml",
        "a.yaml": config,
    }
    framework = framework_of(launch, None)
    reading = reading_of(framework, launch, 1)
    found = on_accelerators(reading, framework, parse_shorthand("1x1xt4"))
    assert found.plan.attention_kernel == kernel
    assert errors(launch, "1x1xv100-sxm2-32gb") == []


def test_four_bits_with_fp16_are_refused_where_they_are_said() -> None:
    config = TRL.format(model="meta-llama/Llama-2-7b-hf", kernel="sdpa") + "load_in_4bit: true\n"
    launch = {
        "a.sh": "accelerate launch --module trl.scripts.sft --config a.yaml",
        "a.yaml": config,
    }
    (one,) = errors(launch, "1x1xt4")
    assert (one.code, one.line, one.option) == ("gradient_scaling", 4, "fp16")
