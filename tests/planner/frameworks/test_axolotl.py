"""Axolotl's YAML: read back, started on every node, refused, and taken by its own schema."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.package_files import table
from planner import frameworks
from planner.answers.lint.lint import read
from planner.answers.plans.plan_answers import find
from planner.documents.request import PlanRequest
from planner.frameworks.axolotl import EMBEDDINGS, FP16, KERNEL_OF_CP, TYPES
from planner.inputs.requests.parser import parse_cluster, parse_request
from tests.fixtures.frameworks import legal_cases, llama_factory
from tests.fixtures.frameworks.axolotl import CASES, HALF
from tests.fixtures.launches import run_script, unreached, written
from tests.oracles.axolotl_keys import keys
from tests.planner.frameworks.test_tuners import ORACLE, Case, changed, same
from tests.tools.checkouts import checkout

AXOLOTL = frameworks.get("axolotl")


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(case: str) -> None:
    same("axolotl", CASES[case])


def test_drawn_plans_read_back() -> None:
    legal = legal_cases("axolotl", 100)
    assert len(legal) > 20
    for case in legal:
        same("axolotl", case)


def test_it_starts_on_every_node(tmp_path: Path) -> None:
    """FSDP stands in its own file, and accelerate's has the processes alone."""
    made = AXOLOTL.write(*CASES["qwen2-offload"])
    written(tmp_path, made)
    (call,) = run_script(
        tmp_path, made.main, variables={"NODE_RANK": "1", "MASTER_ADDR": "node-0", "MODEL": "here"}
    )
    assert call[:2] == ["accelerate", "launch"]
    assert call[call.index("-m") + 1] == "axolotl.cli.train"
    assert call[-2:] == ["--base_model", "here"]
    beside, own = (yaml.safe_load(made.files[f"{name}.yaml"]) for name in ("accelerate", "config"))
    assert beside["distributed_type"] == "MULTI_GPU"
    assert "fsdp_config" not in beside
    assert own["fsdp_config"]["offload_params"] is True
    assert own["gradient_checkpointing"] is True
    assert own["datasets"] == [{"path": "mhenrichsen/alpaca_2k_test", "type": "alpaca"}]


def test_four_bits_have_adapters_of_its_own_kind() -> None:
    said = yaml.safe_load(AXOLOTL.write(*CASES["llama-packed-adapters"]).files["config.yaml"])
    assert (said["adapter"], said["load_in_4bit"], said["lora_r"]) == ("qlora", True, 16)


def test_all_weights_stay_in_bf16_and_adapters_in_fp32() -> None:
    """Its own preparation for FSDP 2 raises no weights to fp32, as accelerate's does."""
    copies, shards, adapters = (
        CASES[name] for name in ("llama-copies", "llama-fsdp", "llama-sharded-adapters")
    )
    for case in (copies, shards, adapters):
        assert not AXOLOTL.reasons(*case)
    wrong = [
        (llama_factory.CASES["llama-fsdp"][0], shards[1]),
        (of_weights(adapters, **HALF), adapters[1]),
    ]
    for one in wrong:
        assert any("kept in bf16 without a second copy" in r.text for r in AXOLOTL.reasons(*one))
    half = (of_weights(shards, precision="fp16"), shards[1])
    assert any("torch scales no gradients" in reason.text for reason in AXOLOTL.reasons(*half))
    kept = changed(shards, reshard_after_forward=False)
    assert any("cannot ask FSDP to keep" in reason.text for reason in AXOLOTL.reasons(*kept))
    assert not {TYPES, FP16} & set(unreached(AXOLOTL, [*wrong, half]))


def of_weights(case: Case, **fields: Any) -> PlanRequest:
    request, _ = case
    return request.model_copy(update={"training": request.training.model_copy(update=fields)})


def test_embeddings_of_copies_are_in_fp32_but_for_flash2() -> None:
    wrong = changed(CASES["llama-copies"], attention_kernel="flash")
    assert any("norms are kept in fp32 unless" in reason.text for reason in AXOLOTL.reasons(*wrong))
    assert EMBEDDINGS not in unreached(AXOLOTL, [wrong])
    for name in ("llama-fsdp", "llama-adapters"):
        assert not AXOLOTL.reasons(*changed(CASES[name], attention_kernel="flash"))


def test_a_sequence_is_split_by_ring_flash_attn() -> None:
    """Packed samples stay apart in it, one sequence at a time and with flash-attention 2."""
    case = CASES["llama-context"]
    said = yaml.safe_load(AXOLOTL.write(*case).files["config.yaml"])
    assert (said["context_parallel_size"], said["ring_attn_func"]) == (2, "varlen_llama3")
    assert (said["dp_shard_size"], said["dp_replicate_size"]) == (4, 2)
    wrong = [changed(case, micro_batch_size=2), changed(case, attention_kernel="flash")]
    for one in wrong:
        assert any("flash2 on one packed sequence" in r.text for r in AXOLOTL.reasons(*one))
    assert KERNEL_OF_CP not in unreached(AXOLOTL, wrong)


def test_checkpoints_go_to_host_memory_without_shards_too() -> None:
    case = CASES["llama-offloaded-copies"]
    said = yaml.safe_load(AXOLOTL.write(*case).files["config.yaml"])
    assert (said["activation_offloading"], said["gradient_checkpointing"]) == (
        "hidden_states", True,
    )  # fmt: skip
    kept = changed(case, recompute="none", recompute_num_layers=0)
    assert any("offload needs full recompute" in reason.text for reason in AXOLOTL.reasons(*kept))


def test_a_search_takes_the_kernel_that_copies_need() -> None:
    """All weights of Llama 3.1 8B on one card of 48 GB, as its examples/llama-3/fft-8b.yaml."""
    training = {"seq_length": 8192, "global_batch_size": 8, "optimizer": "paged_adam_8bit"}
    asked = {"model": "llama-3.1-8b", "cluster": "1x1xrtx-a6000", "training": training}
    best = find(parse_request({**asked, "search": {"framework": "axolotl"}})).best
    assert best is not None
    assert (best.plan.attention_kernel, best.plan.zero_stage) == ("flash2", 0)


@pytest.mark.parametrize("cards", [1, 4])
def test_what_is_left_open_is_as_it_trains(cards: int) -> None:
    asked = {
        "model": "llama-3.2-1b",
        "cluster": f"1x{cards}xh100-sxm",
        "training": {"seq_length": 2048, "global_batch_size": 8},
        "search": {"framework": "axolotl"},
    }
    training = parse_request(asked).training
    assert training.master_weights_dtype == "none"
    adapted = {**asked, "training": {"seq_length": 2048, "global_batch_size": 8, "lora_rank": 8}}
    assert parse_request(adapted).training.master_weights_dtype == "fp32"


@pytest.mark.exhaustive
def test_all_keys_of_its_schema_are_known() -> None:
    """Of an older version: the list is of 0.19.0."""
    found = set(keys(checkout("axolotl-ai-cloud/axolotl") / "src" / "axolotl"))
    known = set(table("planner.frameworks.axolotl", "keys.json")["keys"])
    assert len(found) > 400
    assert known - found == {"fp8_config", "liger_kernel_impl", "ple_cpu_offload"}
    assert found <= known


@pytest.mark.exhaustive
def test_its_own_schema_takes_every_case_and_every_legal_draw(tmp_path: Path) -> None:
    cases = [*CASES.values(), *legal_cases("axolotl", 400)]
    assert len(cases) > 100
    files = []
    for place, case in enumerate(cases):
        path = tmp_path / f"{place}.yaml"
        path.write_text(AXOLOTL.write(*case).files["config.yaml"])
        files.append(str(path))
    own = str(checkout("axolotl-ai-cloud/axolotl"))
    broken = tmp_path / "broken.yaml"
    broken.write_text(Path(files[0]).read_text() + "micro_batch_sise: 3\n")
    command = [sys.executable, str(ORACLE), "axolotl", own, *files, str(broken)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    (wrong,) = [line for line in found.stdout.splitlines() if line.startswith("WRONG")]
    assert "broken.yaml" in wrong
    assert "micro_batch_sise" in wrong


def test_a_base_model_alone_makes_no_axolotl() -> None:
    """Files of other programs name one too; their trainings stand in sections."""
    other = "base_model: Qwen/Qwen2.5-7B\nsft:\n  per_device_train_batch_size: 2\n"
    for more, own in (("", False), ("sequence_len: 512\n", True), ("datasets: []\n", True)):
        assert AXOLOTL.recognises({"config.yaml": other + more}) is own


@pytest.mark.parametrize(
    ("words", "ranks", "micro"),
    [
        ("--micro-batch-size 4", 8, 4),
        ("--num-processes 4 --micro_batch_size=3", 4, 3),
        ("--launcher torchrun -- --nproc_per_node=2 --nnodes=2", 4, 2),
        ("--launcher=accelerate -- --num_processes 2", 2, 2),
    ],
)
def test_its_console_command_is_read_with_its_launcher(words: str, ranks: int, micro: int) -> None:
    yaml_of_it = (
        "base_model: NousResearch/Llama-3.2-1B\ndatasets:\n- path: a\nsequence_len: 2048\n"
        "micro_batch_size: 2\ngradient_accumulation_steps: 2\nadapter: lora\nbf16: true\n"
    )
    files = {"run.sh": f"srun axolotl train tuned.yaml {words}\n", "tuned.yaml": yaml_of_it}
    answer = read(files, parse_cluster("1x8xh100-sxm"))
    plan = answer.request["plan"]
    assert (answer.framework, plan["dp"], plan["micro_batch_size"]) == ("axolotl", ranks, micro)
    assert answer.request["training"]["global_batch_size"] == ranks * micro * 2
    assert "launcher" not in str(answer.unread)
