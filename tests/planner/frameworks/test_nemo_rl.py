"""NeMo-RL's runs: the policy's training, from YAML that inherits and from overrides."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import lint
from planner.frameworks import get
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.nemo_rl.config import table
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.models import parse_model
from planner.inputs.requests.parser import parse_cluster

# What a user's file of DPO says of the training, after dpo-llama3.1-8b-instruct-4n8g-megatron...
DPO = """\
defaults: ../../dpo.yaml
dpo:
  max_num_steps: 20
policy:
  model_name: meta-llama/Llama-3.1-8B-Instruct
  train_global_batch_size: 256
  train_micro_batch_size: 1
  max_total_sequence_length: 2048
  dtensor_cfg:
    enabled: false
  make_sequence_length_divisible_by: ${policy.megatron_cfg.tensor_model_parallel_size}
  megatron_cfg:
    enabled: true
    pipeline_model_parallel_size: 2
cluster:
  gpus_per_node: 8
  num_nodes: 4
"""
OWN = """\
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 128
  train_micro_batch_size: 2
  max_total_sequence_length: 4096
  precision: bfloat16
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${..train_micro_batch_size}}
  megatron_cfg:
    enabled: false
  dtensor_cfg:
    enabled: true
    tensor_parallel_size: 2
    sequence_parallel: true
    activation_checkpointing: true
    lora_cfg: {enabled: true, dim: 16, match_all_linear: true, dropout: 0.1}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""


def read(
    files: dict[str, str], framework: str, given: GivenValues | None = None, size: int | None = None
) -> Reading:
    one = get(framework)
    told = LaunchFiles(files, given)
    assert one.read is not None
    recognised = [name for name in ("megatron", "accelerate", "megatron-bridge", "verl")
                  if get(name).recognises(told)]  # fmt: skip
    assert recognised == [framework]
    return one.read(told, size)


def run(words: str, program: str = "run_grpo.py") -> dict[str, str]:
    return {"run.sh": f"NODES=2\nuv run examples/{program} {words}\n"}


def test_a_file_over_a_public_one() -> None:
    """DPO trains pairs: two sequences for each of the batch."""
    reading = read({"mine/dpo.yml": DPO}, "megatron")
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage) == (2, 2, 8, 1)
    assert (training.global_batch_size, plan.micro_batch_size) == (512, 2)
    assert (training.seq_length, training.precision) == (2048, "bf16")
    assert (plan.sequence_parallel, plan.recompute) == (True, "none")
    assert (training.gradient_dtype, plan.overlap_param_gather) == ("bf16", True)
    assert (reading.nodes, reading.accelerators_per_node) == (4, 8)
    assert (reading.model.num_layers, reading.refusals, reading.unread) == (32, (), ())
    assert any(f"dpo.yaml is taken from NVIDIA-NeMo/RL {table()['commit']}" in one
               for one in reading.assumed)  # fmt: skip
    assert not reading.written
    scored = DPO.replace("../../dpo.yaml", "rm.yaml").replace("dpo:", "rm:")
    assert read({"mine.yaml": scored}, "megatron").training.loss == "reward"


def test_a_program_of_that_name_that_is_not_its_own_is_no_run() -> None:
    files = {**run("--config own.yaml", "run_sft.py"), "run_sft.py": "import lightning as L\n"}
    for one in ("megatron", "accelerate"):
        assert not get(one).recognises({**files, "own.yaml": "lr: 1\n"})


def test_the_policy_on_torch() -> None:
    reading = read({"own.yaml": OWN}, "accelerate")
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.dp, plan.zero_stage, plan.sequence_parallel) == (2, 8, 3, True)
    assert (plan.micro_batch_size, plan.recompute) == (2, "full")
    assert plan.runtime == "transformers-foreach"
    assert (training.lora_rank, training.lora_dropout, len(training.lora_targets)) == (16, 0.1, 4)
    assert (training.gradient_reduce_dtype, training.seq_length) == ("fp32", 4096)
    assert (reading.unread, reading.refusals) == ((), ())


def test_a_public_run_by_its_name_with_overrides() -> None:
    """Non-colocated: the nodes that generate do not train."""
    name = "examples/configs/recipes/llm/grpo-qwen3-30ba3b-10n8g-megatron-cp2-r3-async.yaml"
    reading = read(run(f"--config {name} ++policy.train_global_batch_size=64"), "megatron")
    plan = reading.plan
    assert (plan.tp, plan.pp, plan.cp, plan.ep) == (4, 2, 2, 4)
    assert reading.nodes == 8
    assert reading.training.global_batch_size == 64
    moved = run(f"--config={name} policy.megatron_cfg.context_parallel_size=1 "
                "policy.generation.colocated.enabled=true cluster.num_nodes=$NODES")  # fmt: skip
    other = read(moved, "megatron")
    assert (other.plan.cp, other.nodes, other.plan.dp) == (1, 2, 2)


def test_recompute_fp8_and_what_is_given() -> None:
    words = (
        "--config examples/configs/grpo_math_8B_megatron.yaml "
        "policy.megatron_cfg.activation_checkpointing=true "
        "policy.megatron_cfg.recompute_granularity=selective "
        "policy.megatron_cfg.recompute_modules=[core_attn,mlp] "
        "policy.megatron_cfg.fp8_cfg.enabled=true policy.megatron_cfg.fp8_cfg.fp8_recipe=mxfp8 "
        "policy.megatron_cfg.fp8_cfg.fp8_param=true cluster.num_nodes=$UNKNOWN"
    )
    with pytest.raises(Unreadable, match=r"--set cluster.num_nodes="):
        read(run(words), "megatron")
    words = words.replace("$UNKNOWN", "2")
    given = GivenValues({"policy.megatron_cfg.tensor_model_parallel_size": "4"},
                  model=parse_model("qwen3-14b")[0])  # fmt: skip
    reading = read(run(words), "megatron", given)
    assert (reading.plan.tp, reading.model.name) == (4, "qwen3-14b")
    assert reading.plan.recompute_modules == ("core_attn", "mlp")
    assert (reading.training.precision, reading.training.fp8_recipe) == ("fp8", "mxfp8")
    assert reading.training.fp8_param_gather


def test_a_base_that_lies_beside() -> None:
    over = "defaults: base.yaml\npolicy:\n  dtensor_cfg: {tensor_parallel_size: 4}\n"
    reading = read({"a.yaml": over, "base.yaml": OWN}, "accelerate")
    assert (reading.plan.tp, reading.plan.dp) == (4, 4)
    whole = OWN.replace("policy:\n", "policy:\n  _override_: true\n").replace("dim: 16", "dim: 4")
    own = read({"a.yaml": f"defaults: base.yaml\n{whole}", "base.yaml": OWN}, "accelerate")
    assert own.training.lora_rank == 4
    deeper = over.replace("{tensor", "{_override_: true, tensor")  # has no effect there
    reading = read({"a.yaml": deeper, "base.yaml": OWN}, "accelerate")
    assert (reading.plan.tp, reading.plan.recompute, reading.training.lora_rank) == (4, "full", 16)
    bare = OWN.replace("policy:\n", "policy:\n  _override_: true\n").replace(
        "    activation_checkpointing: true\n", ""
    )
    reading = read({"a.yaml": f"defaults: base.yaml\n{bare}", "base.yaml": OWN}, "accelerate")
    assert reading.plan.recompute == "none"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("../../dpo.yaml", "grpo_math_2B.yaml", r"dpo.yaml:1: .*the nearest: .*grpo_math_1B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "me/mine", r"mine is no preset .*--model"),
        ("enabled: false", "enabled: true", "megatron_cfg and dtensor_cfg of NeMo-RL enabled"),
        ("_size: 2\n", "_size: two\n", "must be a whole number from 1, got 'two'"),
        (": 2048", ": ${mul:2,x}", "mul:2,x.*not resolved: --set policy.max_total"),
        (": 2048", ": ${policy.max_total_sequence_length}", "circular reference"),
        ("    enabled: true\n", "    enabled: true\n    model_overrides: {num_moe_experts: 8}\n",
         "num_moe_experts"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(old: str, new: str, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        read({"dpo.yaml": DPO.replace(old, new, 1)}, "megatron")


def test_a_circle_of_files() -> None:
    one, two = OWN + "defaults: b.yaml\n", OWN + "defaults: a.yaml\n"
    with pytest.raises(Unreadable, match="form a cycle"):
        read({"a.yaml": one, "b.yaml": two}, "megatron")


def test_every_public_configuration_is_read_or_asks_for_its_model() -> None:
    """None is misunderstood: what stops one is the model, which is given then."""
    model, count = parse_model("qwen3-30b-a3b")[0], 0
    for path, said in table()["configs"].items():
        if "recipes" not in path and not said.get("policy"):
            continue
        files = LaunchFiles(run(f"--config {path}"), GivenValues(model=model))
        names = [name for name in ("megatron", "accelerate") if get(name).recognises(files)]
        assert len(names) == 1, path
        reader = get(names[0]).read
        assert reader is not None
        count += reader(files, 64).plan.tp > 0
    assert count > 250


def test_lint_judges_it() -> None:
    found = lint({"dpo.yaml": DPO}, parse_cluster("4x8xh100-sxm")).findings
    assert [one for one in found if one.severity == "error"] == []
