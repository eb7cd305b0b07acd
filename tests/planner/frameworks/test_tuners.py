"""LLaMA-Factory and TRL: one YAML beside accelerate's config, read back as it was planned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.answers.lint.lint import lint
from planner.documents.request import PlanRequest
from planner.frameworks import trl
from planner.frameworks.accelerate import trainer_yaml
from planner.frameworks.accelerate.rules import RULES as ACCELERATE
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Unreadable
from planner.inputs.requests.parser import parse_cluster, parse_request
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import accelerate, legal_cases
from tests.fixtures.frameworks.llama_factory import CASES
from tests.fixtures.frameworks.trl import CASES as OF_TRL
from tests.fixtures.launches import launch, run_script, unreached, written
from tests.tools.checkouts import checkout

Case = tuple[PlanRequest, ParallelPlan]
NAMES = ("llama-factory", "trl")
BY_NAME = {"llama-factory": CASES, "trl": OF_TRL}
ORACLE = Path(__file__).parents[2] / "oracles" / "tuners_check.py"
CHECKOUTS = {"llama-factory": "hiyouga/LLaMA-Factory", "trl": "huggingface/trl"}


def same(name: str, case: Case) -> None:
    request, plan = case
    framework = frameworks.get(name)
    assert framework.read is not None
    reading = framework.read(framework.write(request, plan).files, None)
    assert canonical(reading.plan, reading.model) == canonical(plan, request.model)
    left = {"name": "", "numerics": request.model.numerics}
    assert reading.model.model_copy(update=left) == request.model.model_copy(update=left)
    tokens = {"tokens": reading.training.tokens}
    assert reading.training == request.training.model_copy(update=tokens)
    assert (reading.refusals, reading.unknown, reading.framework) == ((), (), name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(name: str, case: str) -> None:
    same(name, BY_NAME[name][case])


@pytest.mark.parametrize("name", NAMES)
def test_drawn_plans_read_back(name: str) -> None:
    legal = legal_cases(name, 100)
    assert len(legal) > 20
    for case in legal:
        same(name, case)


@pytest.mark.parametrize(
    ("name", "program"), [("llama-factory", "./src/train.py"), ("trl", "trl.scripts.sft")]
)
def test_accelerate_starts_it_on_every_node(name: str, program: str, tmp_path: Path) -> None:
    made = frameworks.get(name).write(*BY_NAME[name]["llama-fsdp"])
    written(tmp_path, made)
    (call,) = run_script(
        tmp_path, made.main, variables={"NODE_RANK": "1", "MASTER_ADDR": "node-0", "MODEL": "here"}
    )
    assert call[:2] == ["accelerate", "launch"]
    assert call[call.index("--machine_rank") + 1] == "1"
    assert program in call
    assert "here" in call[-1]


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_computed_again_by_fsdp_or_by_the_trainer(name: str) -> None:
    key, on = {
        "llama-factory": ("disable_gradient_checkpointing", False),
        "trl": ("gradient_checkpointing", True),
    }[name]
    for case, by_trainer, by_fsdp in (
        ("llama-copies", True, None),
        ("qwen2-offload", False, True),
        ("llama-fsdp", False, False),
    ):
        files = frameworks.get(name).write(*BY_NAME[name][case]).files
        assert yaml.safe_load(files["config.yaml"])[key] is (on if by_trainer else not on)
        fsdp = yaml.safe_load(files["accelerate.yaml"]).get("fsdp_config", {})
        assert fsdp.get("fsdp_activation_checkpointing") is by_fsdp


def test_a_trainers_yaml_is_read_with_accelerates_beside_it() -> None:
    """Sharding, ranks and recompute stand in accelerate's file, not in the trainer's."""
    trainer = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\ndataset_name: x\nmax_length: 4096\n"
        "per_device_train_batch_size: 2\ngradient_checkpointing: false\n"
    )
    sharded = (
        "distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 16\n"
        "deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n"
    )
    read = frameworks.get("accelerate").read
    assert read is not None
    reading = read({"sft.yaml": trainer, "zero3.yaml": sharded}, None)
    plan = reading.plan
    assert (plan.dp, plan.zero_stage, plan.offload_optimizer, plan.recompute) == (
        16, 3, True, "none",
    )  # fmt: skip
    usual = read({"sft.yaml": trainer.replace("gradient_checkpointing: false\n", "")}, 8)
    assert usual.plan.recompute == "full"  # as TRL has it
    with pytest.raises(
        Unreadable, match="MEGATRON_LM cannot be read: only FSDP, DeepSpeed and plain"
    ):
        read({"a.yaml": trainer, "b.yaml": sharded.replace("DEEPSPEED", "MEGATRON_LM")}, None)


def test_a_model_may_be_the_config_beside_the_yaml() -> None:
    files = frameworks.get("trl").write(*OF_TRL["llama-fsdp"]).files
    read = frameworks.get("trl").read
    assert read is not None
    assert read(files, None).model.hidden_size == CASES["llama-fsdp"][0].model.hidden_size
    alone = {name: text for name, text in files.items() if name != "config.json"}
    with pytest.raises(Unreadable, match=r"--model"):
        read(alone, None)
    given = LaunchFiles(alone, GivenValues(model=CASES["llama-fsdp"][0].model))
    assert read(given, None).model.num_layers == 16
    with pytest.raises(Unreadable, match="no YAML of TRL among the files"):
        read({"launch.sh": files["launch.sh"]}, 8)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_judged_under_its_own_name(name: str) -> None:
    files = dict(frameworks.get(name).write(*BY_NAME[name]["llama-fsdp"]).files)
    answer = lint(files, parse_cluster("2x8xh100-sxm"))
    assert [one for one in answer.findings if one.severity == "error"] == []
    assert answer.framework == frameworks.get(name).title


def changed(case: Case, **fields: Any) -> Case:
    request, plan = case
    return request, ParallelPlan(**{**plan.model_dump(), **fields})


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_counted_in_samples_and_in_sequences(name: str, tmp_path: Path) -> None:
    """A sample of DPO is two sequences: half of them are told, and read as twice as many."""
    request, plan = changed(BY_NAME[name]["llama-pairs"], micro_batch_size=4)
    made = frameworks.get(name).write(request, plan)
    said = yaml.safe_load(made.files["config.yaml"])
    assert said["per_device_train_batch_size"] == 2
    assert request.training.global_batch_size == 4 * plan.dp * said["gradient_accumulation_steps"]
    assert "packing" not in said
    same(name, (request, plan))
    written(tmp_path, made)
    (call,) = run_script(
        tmp_path, made.main, variables={"NODE_RANK": "0", "MASTER_ADDR": "x", "MODEL": "here"}
    )
    assert ("trl.scripts.dpo" in call) == (name == "trl")
    assert said.get("stage", "dpo") == "dpo"


@pytest.mark.parametrize("name", NAMES)
def test_refusals(name: str) -> None:
    framework = frameworks.get(name)
    context = accelerate.CASES["llama-context-ring"]
    narrow = accelerate.CASES["llama-fsdp"]
    for text, case in (
        ("cp drops the positions", context),
        ("accelerate's config makes FSDP reduce gradients in bf16", narrow),
    ):
        assert any(text in reason.text for reason in framework.reasons(*case))
        assert not frameworks.get("accelerate").reasons(*case)
    pairs = BY_NAME[name]["llama-pairs"]
    odd, chunks = changed(pairs, micro_batch_size=1), changed(pairs, cross_entropy="chunked")
    whole = changed(BY_NAME["llama-factory"]["llama-fsdp"], cross_entropy="unfused")
    mla = changed(accelerate.CASES["deepseek-v3"], cross_entropy="liger")
    packed, plan = BY_NAME[name]["llama-packed-adapters"]
    wide = packed.training.model_copy(update={"frozen_dtype": "nf4 and fp32"})
    widened = packed.model_copy(update={"training": wide}), plan
    assert any("micro_batch_size 1 is not even" in one.text for one in framework.reasons(*odd))
    assert any("dpo reads the prob" in one.text for one in framework.reasons(*chunks))
    runs = any("runs in chunks with" in one.text for one in framework.reasons(*whole))
    assert runs == (name == "trl")
    assert any("got deepseek_v3 on" in one.text for one in framework.reasons(*mla))
    assert any("stay in half precision" in one.text for one in framework.reasons(*widened))
    own = set(trainer_yaml.RULES) - set(ACCELERATE)
    assert not own & unreached(framework, [context, narrow, odd, chunks, mla, widened])
    four = launch(training={"lora_rank": 8, "frozen_dtype": "nf4"}, shape=(1, 8))
    assert any("not in nf4" in one.text for one in frameworks.get("accelerate").reasons(*four))
    assert not any("not in nf4" in one.text for one in framework.reasons(*four))


def test_trl_keeps_adapters_beside_four_bits_in_bf16() -> None:
    """fp16 then has no gradients that torch would scale (huggingface/trl#4901)."""
    framework = frameworks.get("trl")
    request, plan = BY_NAME["trl"]["llama-packed-adapters"]
    wide = CASES["llama-packed-adapters"][0], plan
    half = request.training.model_copy(update={"precision": "fp16"})
    narrow = request.model_copy(update={"training": half}), plan
    assert not framework.reasons(request, plan)
    assert any("of 4 bits in bf16: got fp32" in one.text for one in framework.reasons(*wide))
    assert any("torch scales no gradients" in one.text for one in framework.reasons(*narrow))
    assert not {trl.TYPES, trl.PACKED_FP16} & set(unreached(framework, [wide, narrow]))
    asked: dict[str, Any] = {
        "model": "llama-3.1-8b", "cluster": "1x1xh100-sxm", "search": {"framework": "trl"},
        "training": {"lora_rank": 8, "seq_length": 512, "global_batch_size": 4},
    }  # fmt: skip
    assert parse_request(asked).training.master_weights_dtype == "fp32"
    asked["training"]["frozen_dtype"] = "nf4"
    assert parse_request(asked).training.master_weights_dtype == "none"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_its_own_configuration_knows_every_key(name: str, tmp_path: Path) -> None:
    """Over drawn plans, by the fields and choices that a checkout declares."""
    own = checkout(CHECKOUTS[name])
    framework = frameworks.get(name)
    cases = [*BY_NAME[name].values(), *legal_cases(name, 400)]
    assert len(cases) > 100
    files = []
    for place, case in enumerate(cases):
        path = tmp_path / f"{place}.yaml"
        path.write_text(framework.write(*case).files["config.yaml"])
        files.append(str(path))
    command = [sys.executable, str(ORACLE), name, str(own), *files]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert [line for line in found.stdout.splitlines() if line.startswith("WRONG")] == []
