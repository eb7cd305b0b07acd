"""torchtune: one YAML for a recipe, read back as it was planned."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.answers.lint.lint import lint
from planner.documents.request import PlanRequest
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.rules import EQUAL_NODES
from planner.frameworks.sources import launch_at
from planner.frameworks.torchtune.components import RECIPES, SIGNATURES
from planner.frameworks.torchtune.rules import PARTIAL_TRAINING, RULES
from planner.frameworks.torchtune.settings import MLP, recipe
from planner.huggingface.named_models import find
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.accelerate import QWEN3
from tests.fixtures.frameworks.torchtune import ALL, CASES, LORA, runs
from tests.fixtures.launches import MODELS, run_script, unreached, written
from tests.tools.checkouts import checkout

Case = tuple[PlanRequest, ParallelPlan]
TORCHTUNE = frameworks.get("torchtune")
ORACLE = Path(__file__).parents[2] / "oracles" / "torchtune_check.py"


def config(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(TORCHTUNE.write(*case).files["config.yaml"])
    return found


def same(case: Case) -> None:
    request, plan = case
    assert TORCHTUNE.read is not None
    reading = TORCHTUNE.read(TORCHTUNE.write(request, plan).files, None)
    assert canonical(reading.plan, reading.model) == canonical(plan, request.model)
    left = {"name": "", "numerics": request.model.numerics}
    assert reading.model.model_copy(update=left) == request.model.model_copy(update=left)
    tokens = {"tokens": reading.training.tokens}
    assert reading.training == request.training.model_copy(update=tokens)
    assert (reading.refusals, reading.unknown, reading.unread, reading.assumed) == ((), (), (), ())


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(case: str) -> None:
    same(CASES[case])


def test_drawn_plans_read_back_and_have_the_keys_of_their_recipe() -> None:
    legal = legal_cases("torchtune", 150)
    assert len(legal) > 50
    for case in legal:
        same(case)
        said, name = config(case), recipe(case[0].training, case[1])
        assert said.keys() <= set(RECIPES[name])
        for section in said.values():
            if isinstance(section, dict) and "_component_" in section:
                path = section.pop("_component_")
                assert section.keys() <= SIGNATURES.get(path, section).keys()


def test_every_node_starts_its_processes_and_one_device_starts_none(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for number in (1, 2):
        (tmp_path / "model" / f"{number}.safetensors").touch()
    for case, words in (
        ("llama-fsdp", ["--nnodes", "2", "--nproc_per_node", "8", "--node_rank", "1",
                        "--rdzv_endpoint", "node-0:29500", "full_finetune_distributed"]),
        ("qwen2-in-4-bits", ["lora_finetune_single_device"]),
    ):  # fmt: skip
        made = TORCHTUNE.write(*CASES[case])
        written(tmp_path, made)
        (call,) = run_script(
            tmp_path,
            made.main,
            variables={"NODE_RANK": "1", "MASTER_ADDR": "node-0", "MODEL": "model"},
        )
        assert call[:2] == ["tune", "run"]
        assert call[2 : call.index("--config")] == words
        assert call[-2:] == [
            "checkpointer.checkpoint_dir=model",
            "checkpointer.checkpoint_files=[1.safetensors,2.safetensors]",
        ]


@pytest.mark.parametrize(
    ("model", "component", "tokenizer", "checkpoint"),
    [
        ("llama-2-7b", "llama2.llama2_7b", "llama2.llama2_tokenizer", "LLAMA2"),
        ("llama-3.1-8b", "llama3_1.llama3_1_8b", "llama3.llama3_tokenizer", "LLAMA3"),
        ("llama-3.2-1b", "llama3_2.llama3_2_1b", "llama3.llama3_tokenizer", "LLAMA3_2"),
        ("mistral-7b", "mistral.mistral_7b", "mistral.mistral_tokenizer", "MISTRAL"),
        ("phi-3-mini", "phi3.phi3_mini", "phi3.phi3_mini_tokenizer", "PHI3_MINI"),
        ("qwen2.5-7b", "qwen2_5.qwen2_5_7b_base", "qwen2_5.qwen2_5_tokenizer", "QWEN2"),
        ("qwen3-8b", "qwen3.qwen3_8b_base", "qwen3.qwen3_tokenizer", "QWEN3"),
        ("llama-33b", "llama2.llama2", "llama2.llama2_tokenizer", "LLAMA2"),
        ("phi-3-medium", "phi3.phi3", "phi3.phi3_mini_tokenizer", "PHI3_MINI"),
    ],
)
def test_a_model_has_the_builder_of_its_name(
    model: str, component: str, tokenizer: str, checkpoint: str
) -> None:
    said = config(runs(find(model), (1, 1), training={"seq_length": 1024}))
    assert said["model"]["_component_"] == f"torchtune.models.{component}"
    assert said["tokenizer"]["_component_"] == f"torchtune.models.{tokenizer}"
    assert said["checkpointer"]["model_type"] == checkpoint
    longer = config(runs(find("llama-2-7b"), (1, 1), training={"seq_length": 8192}))["model"]
    assert (longer["_component_"], longer["max_seq_len"]) == (
        "torchtune.models.llama2.llama2",
        8192,
    )


LLAMA8 = find("llama-3.1-8b")
REFUSED: dict[str, Case] = {
    "torchtune has no component for mixtral: llama3 comes closest and differs in moe": runs(
        "mixtral"
    ),
    "differs in rotary_share": runs(find("glm-4-9b")),
    "its components have no sliding window: 4096 tokens are fewer than the 8192": runs(
        find("mistral-7b"), training={"seq_length": 8192}
    ),
    "cp drops the mask that separates them: cp is 1, not 2": runs(cp=2, cp_kind="all_gather"),
    "ParallelDims has no pipeline axis: pp is 1, not 2": runs(pp=2),
    "its optimizers are Adam and 8-bit Adam": runs(training={"optimizer": "muon"}),
    "Adafactor fails on sharded weights": runs(training={"optimizer": "adafactor"}),
    "step whole weights, not the shards": runs(training={"optimizer": "paged_adam"}),
    "weights are DTensors of two meshes: Adam only": runs(
        LLAMA8, tp=2, sequence_parallel=True, training={"optimizer": "sgd"}
    ),
    "tensor parallelism is that of full_finetune_distributed for llama2, llama3": runs(
        "qwen2", tp=2, sequence_parallel=True
    ),
    "2 key/value heads do not divide over tp 4": runs(
        ModelSpec(**{**MODELS["llama"].model_dump(), "num_query_groups": 2}),
        tp=4,
        sequence_parallel=True,
    ),
    "sequence_parallel with tp > 1": runs(LLAMA8, tp=2),
    "ZeRO 3 with dp > 1, else 0; got 0 with dp 8": runs(zero_stage=0),
    "more than one dp rank: dp_shard 1": runs(dp_shard=1),
    "16 layers, got 4": runs(recompute="full", recompute_num_layers=4),
    "only FSDP (ZeRO 3) keeps states in host memory": runs(shape=(1, 1), offload_optimizer=True),
    "no optimizer offload": runs(offload_optimizer=True, training={"optimizer": "adam_8bit"}),
    "activation offload needs full recompute, got none": runs(offload_activations=True),
    "all have one type, bf16 or fp32": runs(training={"master_weights_dtype": "fp32"}),
    "only adapters: no frozen parts": runs(training={"frozen": ["norms"]}),
    "lora_targets are modules of transformers": runs(
        training={**LORA, "lora_targets": ["linear_qkv"]}
    ),
    "and of the MLP all (gate_proj, up_proj, down_proj) or none, not q_proj, up_proj": runs(
        training={**LORA, "lora_targets": ["q_proj", "up_proj"]}
    ),
    "step after the backward pass": runs(training={**LORA, "optimizer_in_backward": True}),
    "its qwen2 keeps matrices without adapters in bf16: nf4 needs": runs(
        "qwen2", training={**LORA, "frozen_dtype": "nf4"}
    ),
    "stay in half precision: frozen_dtype nf4": runs(
        training={**LORA, "frozen_dtype": "nf4 and fp32"}
    ),
    "its llama3 fails on frozen weights in nf4": runs(
        ModelSpec(**{**MODELS["llama"].model_dump(), "vocab_size": 128256}), training=ALL
    ),
    "8 heads of 64 are not 256: o_proj in lora_targets": runs(
        QWEN3, training={**LORA, "lora_targets": ["q_proj"]}
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text: str) -> None:
    assert any(text in reason.text for reason in TORCHTUNE.reasons(*REFUSED[text]))


def test_every_rule_of_its_own_refuses_something() -> None:
    own = {*RULES, *PARTIAL_TRAINING} - {EQUAL_NODES}
    assert not own & unreached(TORCHTUNE, list(REFUSED.values()))


def test_it_is_judged_under_its_own_name() -> None:
    files = dict(TORCHTUNE.write(*CASES["llama-fsdp"]).files)
    answer = lint(files, parse_cluster("2x8xh100-sxm"))
    assert [one for one in answer.findings if one.severity == "error"] == []
    assert answer.framework == "torchtune"
    wrong = files["config.yaml"].replace("fsdp_cpu_offload: false", "fsdp_cpu_ofload: true")
    found = read({**files, "config.yaml": wrong})
    assert [one.name for one in found.unknown] == ["fsdp_cpu_ofload"]
    assert "did you mean fsdp_cpu_offload" in found.assumed[-1]


# Of a public recipe, as one of 0.6 has it.
PUBLIC = """\
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: null
model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 8
  lora_alpha: 16
  lora_dropout: 0.0
dataset:
  packed: False
batch_size: 2
gradient_accumulation_steps: 8
optimizer:
  _component_: bitsandbytes.optim.PagedAdamW
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
dtype: bf16
enable_activation_checkpointing: True
compile: True
"""


def read(files: dict[str, str], accelerators: int | None = None, **given: Any) -> Reading:
    assert TORCHTUNE.read is not None
    return TORCHTUNE.read(LaunchFiles(files, GivenValues(**given)), accelerators)


def test_a_public_config_is_read_by_the_builder_that_it_names() -> None:
    script = "tune run lora_finetune_single_device --config a.yaml batch_size=4 lora=x\n"
    found = read({"run.sh": script, "a.yaml": PUBLIC})
    training, plan = found.training, found.plan
    assert found.model.num_layers == 32
    assert found.model.numerics.rope_scaling == LLAMA8.numerics.rope_scaling
    assert training.lora_targets == ("q_proj", "v_proj", "o_proj", *MLP)
    assert (training.frozen_dtype, training.lora_rank) == ("nf4", 8)
    assert (training.optimizer, training.master_weights_dtype) == ("paged_adam", "none")
    assert (plan.micro_batch_size, training.global_batch_size) == (4, 32)
    assert (plan.recompute, plan.cross_entropy, plan.compile) == ("full", "chunked", True)
    assert (plan.accelerators, training.seq_length) == (1, 2048)
    assert any("samples of 2048 tokens taken" in text for text in found.assumed)
    older = PUBLIC.replace("packed: False", "packed: False\n  max_seq_len: 8192")
    assert read({"run.sh": script, "a.yaml": older}).training.seq_length == 8192
    given = {"values": {"tokenizer.max_seq_len": "4096"}, "model": MODELS["llama"]}
    other = read({"a.yaml": PUBLIC}, 8, **given)
    assert (other.training.seq_length, other.model.num_layers, other.plan.dp) == (4096, 16, 8)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "llama3_1.qlora_llama3_1_8b",
            "gemma2.gemma2_2b",
            "has no model here; did you mean gemma_2b",
        ),
        ("CEWithChunkedOutputLoss", "DPOLoss", "loss._component_ must be one of"),
        ("dtype: bf16", "dtype: fp16", "dtype must be one of bf16, fp32, got 'fp16'"),
        ("batch_size: 2\n", "", "batch_size is missing"),
        ("optimizer:\n  _component_: bitsandbytes.optim.PagedAdamW\n", "", "trains nothing"),
        ("'v_proj'", "'w_proj'", "not 'w_proj'"),
        ("dtype: bf16", "ac_mode: selective\ndtype: bf16", "only full activation checkpointing"),
        ("lora_dropout: 0.0", "lora_dropout: lots", "must be from 0 to below 1, got 'lots'"),
        ("lora_rank: 8", "apply_lora_to_output: True", "adapters of the head are not costed"),
        ("dataset:", "teacher_model: {_component_: x}\ndataset:", "is of a recipe that cannot be"),
        ("dtype: bf16", "dtype: bf16\ndata_parallel_shard_dim: 3", "are not the 8 processes"),
        (
            "dataset:",
            "policy_model: {_component_: x}\ndataset:",
            "policy_model is of reinforcement",
        ),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(old: str, new: str, text: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(text)):
        read({"a.yaml": PUBLIC.replace(old, new)}, 8)


def test_a_launch_says_the_recipe_and_the_ranks() -> None:
    with pytest.raises(Unreadable, match="how many accelerators run it"):
        read({"a.yaml": PUBLIC})
    with pytest.raises(Unreadable, match="tune run: starts none of full_finetune_single_device"):
        read(
            {
                "run.sh": "tune run ppo_full_finetune_single_device --config a.yaml\n",
                "a.yaml": PUBLIC,
            }
        )
    copies = PUBLIC + "data_parallel_replicate_dim: 4\ndata_parallel_shard_dim: {}\n"
    script = "tune run --nproc_per_node 4 --nnodes=2 lora_finetune_distributed --config x/a.yaml\n"
    found = read({"run.sh": script, "b.yaml": PUBLIC, "a.yaml": copies.format(2)})
    assert (found.plan.dp, found.plan.dp_shard, found.nodes) == (8, 2, 2)
    assert found.refusals == ()
    plain = read({"a.yaml": copies.format(1)}, 4)
    assert "its copies never reduce gradients" in plain.refusals[0].reason.text


def test_a_config_that_comes_with_it_is_found_in_a_checkout_or_asked_for(tmp_path: Path) -> None:
    script = "srun tune run --nproc_per_node 4 \\\n lora_finetune_distributed --config dev/tuned\n"
    with pytest.raises(Unreadable, match="tune cp dev/tuned"):
        read({"run.sh": script})
    with pytest.raises(Unreadable, match="its config dev/tuned is not among the files"):
        read({"run.sh": script, "other.yaml": PUBLIC})
    assert frameworks.get("torchtune").recognises({"run.sh": script})
    assert not frameworks.get("torchtune").recognises({"run.sh": f"# {script}"})
    configs = tmp_path / "recipes" / "configs" / "dev"
    configs.mkdir(parents=True)
    (configs / "tuned.yaml").write_text(PUBLIC)
    (tmp_path / "run.sh").write_text(script)
    files, _ = launch_at([str(tmp_path / "run.sh")])
    assert read(files).plan.dp == 4


def test_a_config_of_a_recipe_for_a_single_device_has_one_process() -> None:
    for files in (
        {"a.yaml": "#   tune run lora_finetune_single_device --config a\n" + PUBLIC},
        {"8B_lora_single_device.yaml": PUBLIC},
        {"a.yaml": f"output_dir: ./lora_single_device_output\n{PUBLIC}"},
    ):
        found = read(files, 8)
        assert (found.plan.dp, found.training.global_batch_size) == (1, 16)
        assert any("one process" in one for one in found.assumed)
    many = "tune run --nproc_per_node 4 lora_finetune_distributed --config single_device.yaml\n"
    assert read({"run.sh": many, "single_device.yaml": PUBLIC}).plan.dp == 4


def test_an_override_that_the_script_leaves_open_is_asked_for() -> None:
    script = "tune run lora_finetune_single_device --config a.yaml batch_size=$BATCH\n"
    with pytest.raises(Unreadable, match="--set BATCH="):
        read({"run.sh": script, "a.yaml": PUBLIC})


@pytest.mark.exhaustive
def test_its_own_configs_are_read() -> None:
    """Of full and LoRA tuning of the models here, every one, with nothing left unread."""
    folder = checkout("pytorch/torchtune") / "recipes" / "configs"
    number = 0
    for path in sorted(folder.glob("*/*.yaml")):
        tuning = re.search(r"_(full|q?lora)(_multinode|_single_device|_low_memory)*$", path.stem)
        if path.parent.name in ("dev", "gemma2", "llama3_2_vision", "llama4") or not tuning:
            continue
        text = path.read_text()
        # Adapters at the head, fake quantization, a teacher.
        if re.search("apply_lora_to_output: True|^quantizer:|^teacher_model:", text, re.MULTILINE):
            continue
        found = read({"a.yaml": text}, 1 if "single_device" in path.stem else 8)
        named = [one.name for one in found.unread]
        assert (named, found.refusals) == ([], ()), path
        number += 1
    assert number > 100


@pytest.mark.exhaustive
def test_its_own_recipes_take_every_config(tmp_path: Path) -> None:
    """Over drawn plans: keys, arguments of components, and models of as many parameters."""
    own = checkout("pytorch/torchtune")
    cases = [*CASES.values(), *legal_cases("torchtune", 400)]
    assert len(cases) > 100
    paths = [tmp_path / f"{place}.yaml" for place in range(len(cases))]
    for path, (request, plan) in zip(paths, cases, strict=True):
        text = TORCHTUNE.write(request, plan).files["config.yaml"]
        path.write_text(f"recipe: {recipe(request.training, plan)}\n{text}")
    command = [sys.executable, str(ORACLE), "check", str(own), *map(str, paths)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    lines = [line.split() for line in found.stdout.splitlines()]
    assert [words for words in lines if words[:1] == ["WRONG"]] == []
    built = {words[1]: int(words[2]) for words in lines if words[:1] == ["BUILT"]}
    assert built == {
        str(path): total_parameters(request.model)
        for path, (request, _) in zip(paths, cases, strict=True)
    }


def test_a_template_is_read_with_its_placeholders() -> None:
    places = (
        "output_dir: {{log_dir}}/out  # filled in\n{% if quick %}\nmax_steps_per_epoch: 1\n"
        "{% endif %}\nfiles:\n  - {{ first }}.safetensors\n"
    )
    one, other = read({"a.yaml": PUBLIC + places}, 1), read({"a.yaml": PUBLIC}, 1)
    assert (one.model, one.training, one.plan) == (other.model, other.training, other.plan)
    shown = {setting.name: setting.value for setting in one.settings}
    assert shown["output_dir"] == "{{log_dir}}/out"
    with pytest.raises(Unreadable, match=re.escape("batch_size must be")):
        read({"a.yaml": PUBLIC.replace("batch_size: 2", "batch_size: {{batch}}")}, 8)


def test_dpo_takes_pairs_and_whole_logits() -> None:
    paired = re.sub(
        r"loss:\n  _component_: \S+", "loss:\n  _component_: torchtune.rlhf.loss.DPOLoss", PUBLIC
    )
    assert paired != PUBLIC
    usual, found = read({"a.yaml": PUBLIC}, 8), read({"a.yaml": paired}, 8)
    assert found.training.loss == "dpo"
    assert found.plan.micro_batch_size == 2 * usual.plan.micro_batch_size
    assert found.training.global_batch_size == 2 * usual.training.global_batch_size
    assert found.plan.cross_entropy == "unfused"
    called = "tune run --nproc_per_node 4 lora_dpo_distributed --config a.yaml\n"
    found = read({"run.sh": called, "a.yaml": f"{paired}ref_checkpointer:\n  _component_: x\n"})
    assert (found.plan.dp, found.training.loss) == (4, "dpo")
    assert any("lora_dpo_distributed does not read ref_checkpointer" in o for o in found.assumed)
    assert not found.written
