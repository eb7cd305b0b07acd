"""NeMo 2's launches: a public recipe by its factory, or taken by a Python file."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import lint
from planner.frameworks import get
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.megatron_bridge.nemo2 import table
from planner.frameworks.megatron_bridge.nemo2_names import MODELS
from planner.frameworks.read_results import Reading, Unreadable
from planner.huggingface.named_models import find
from planner.inputs.requests.parser import parse_cluster

# As NeMo's quick start and the scripts of its users take a recipe.
TAKEN = """\
import nemo_run as run
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback

NODES = 4


def configure_recipe(nodes: int = 1, gpus_per_node: int = 8):
    recipe = llm.llama3_8b.pretrain_recipe(
        dir="/checkpoints/llama3", name="pretraining", num_nodes=nodes,
        num_gpus_per_node=gpus_per_node,
    )
    recipe.trainer.val_check_interval = 100
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.trainer.strategy.context_parallel_size = 1
    recipe.trainer.strategy.sequence_parallel = True
    recipe.data.micro_batch_size = 2
    recipe.data.global_batch_size = 256
    return recipe


def run_pretraining():
    recipe = configure_recipe(nodes=NODES)
    executor = run.LocalExecutor(ntasks_per_node=recipe.trainer.devices, launcher="torchrun")
    run.run(recipe, executor=executor, name="llama3_8b_pretraining")


if __name__ == "__main__":
    run_pretraining()
"""
MORE = "    recipe.data.global_batch_size = 256\n"


def read(files: dict[str, str], given: GivenValues | None = None) -> Reading:
    bridge, told = get("megatron-bridge"), LaunchFiles(files, given)
    assert bridge.read is not None
    known = ("megatron", "megatron-bridge", "accelerate", "pytorch", "torchtitan")
    assert [name for name in known if get(name).recognises(told)] == ["megatron-bridge"]
    return bridge.read(told, None)


def command(words: str, task: str = "pretrain") -> Reading:
    return read({"run.sh": f"NODES=2\nsrun nemo llm {task} --factory {words}\n"})


def test_a_recipe_by_its_factory() -> None:
    reading = command("llama3_70b")
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.cp, plan.vpp) == (4, 4, 2, 5)
    assert (plan.sequence_parallel, plan.zero_stage, plan.overlap_grad_reduce) == (True, 1, True)
    assert (training.seq_length, training.global_batch_size) == (8192, 512)
    assert plan.micro_batch_size == 1
    assert (training.precision, training.gradient_dtype) == ("bf16", "fp32")
    assert (plan.cross_entropy, plan.overlap_tp) == ("fused", False)
    assert (reading.model.num_layers, reading.model.hidden_size) == (80, 8192)
    assert (reading.nodes, reading.accelerators_per_node, reading.written) == (1, 8, False)
    assert any(f"NVIDIA/NeMo {table()['commit']}" in one for one in reading.assumed)


def test_arguments_and_overrides_of_a_factory() -> None:
    reading = command(
        "\"llama3_70b(num_nodes=$NODES, name='mine', performance_mode=True)\" "
        "trainer.strategy.tensor_model_parallel_size=8 trainer.strategy.context_parallel_size=1 "
        "data.global_batch_size=128 trainer.max_steps=100 trainer.devices=8 "
        "model.config.recompute_granularity=full model.config.recompute_method=block "
        "model.config.recompute_num_layers=4"
    )
    plan = reading.plan
    assert (plan.tp, plan.cp, reading.nodes, plan.overlap_tp) == (8, 1, 2, True)
    assert (plan.recompute, plan.recompute_num_layers) == ("full", 4)
    assert (reading.training.gradient_dtype, reading.training.global_batch_size) == ("bf16", 128)


def test_tuning_by_a_factory() -> None:
    adapters = command("llama3_8b peft.dim=16", "finetune").training
    assert (adapters.lora_rank, adapters.seq_length) == (16, 2048)
    whole = command("\"llama3_8b(peft_scheme='none')\"", "finetune")
    assert (whole.training.lora_rank, whole.plan.tp) == (0, 2)
    assert any("fill their sequences" in one for one in whole.assumed)


def test_a_recipe_in_python() -> None:
    reading = read({"pretrain.py": TAKEN})
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.cp, plan.dp) == (2, 1, 1, 16)
    assert (training.global_batch_size, plan.micro_batch_size) == (256, 2)
    assert (reading.nodes, reading.accelerators_per_node) == (4, 8)
    assert reading.model.num_layers == 32


def test_parts_that_a_file_makes_anew() -> None:
    text = TAKEN.replace(MORE, MORE + """\
    recipe.trainer.strategy = run.Config(
        nl.MegatronStrategy, tensor_model_parallel_size=1, pipeline_model_parallel_size=2,
    )
    recipe.trainer.plugins = bf16_with_fp8_mixed()
    recipe.trainer.plugins.grad_reduce_in_fp32 = False
    recipe.model.config = run.Config(llm.Llama31Config70B, seq_length=4096)
    recipe.data = run.Config(llm.MockDataModule, seq_length=4096, global_batch_size=64,
                             micro_batch_size=1)
    recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=False))
    recipe.optim.config.use_precision_aware_optimizer = True
    recipe.optim.config.exp_avg_dtype = "bfloat16"
    recipe.optim.config.exp_avg_sq_dtype = "bfloat16"
""")  # fmt: skip
    reading = read({"pretrain.py": text})
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.cp, plan.sequence_parallel) == (1, 2, 1, False)
    assert (training.precision, training.fp8_param_gather) == ("fp8", True)
    assert (training.gradient_dtype, training.optimizer_state_dtype) == ("bf16", "bf16")
    assert (reading.model.num_layers, training.seq_length) == (80, 4096)
    assert (training.global_batch_size, plan.overlap_param_gather) == (64, True)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"run.sh": "nemo llm pretrain --factory llama4_70b"}, r"the nearest are llama"),
        ({"run.sh": "nemo llm pretrain --factory hyena_1b"}, r"Hyena1bConfig, .* \(--model\)"),
        ({"run.sh": "nemo llm pretrain --factory 'llama3_8b(num_nodes=x)'"}, "not arguments"),
        ({"run.sh": "nemo llm finetune --factory \"llama3_8b(peft_scheme='dora')\""}, "dora"),
        ({"run.sh": "nemo llm pretrain --factory llama3_8b data.global_batch_size=$GBS"},
         "--set data.global_batch_size="),
        ({"run.sh": "nemo llm pretrain --factory llama3_8b trainer.devices=all"}, "whole number"),
        ({"run.sh": "nemo llm pretrain --factory llama3_8b model.config.num_moe_experts=8"},
         "another model"),
        ({"a.py": TAKEN.replace("nodes=NODES", "nodes=int(input())")}, "--set num_nodes="),
        ({"a.py": TAKEN.replace(MORE, MORE + "    recipe.model.config.num_heads_kv = 4\n")},
         "num_heads_kv"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(files: dict[str, str], text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        read(files)


def test_layers_may_be_fewer_and_values_given() -> None:
    text = TAKEN.replace(MORE, MORE + "    recipe.model.config.num_layers = 2\n")
    given = GivenValues({"trainer.strategy.tensor_model_parallel_size": "1"})
    reading = read({"pretrain.py": text}, given)
    assert (reading.model.num_layers, reading.plan.tp) == (2, 1)
    asked = TAKEN.replace("nodes=NODES", "nodes=int(input())")
    assert read({"pretrain.py": asked}, GivenValues({"num_nodes": "6"})).nodes == 6


def test_every_public_recipe_of_a_preset_is_read() -> None:
    assert all(find(name).num_layers for name in MODELS.values())
    count = 0
    for key, row in table()["recipes"].items():
        name, _, rest = key.partition(".")
        task, _, words = rest.partition("_recipe")
        if row["model"] not in MODELS:
            continue
        quoted = words.replace("=lora", "='lora'").replace("=none", "='none'")
        reading = command(f'"{name}{quoted}"', task)
        count += reading.model.num_layers > 0
    assert count > 120


def test_lint_judges_it() -> None:
    found = lint({"pretrain.py": TAKEN}, parse_cluster("4x8xh100-sxm")).findings
    assert [one for one in found if one.severity == "error"] == []


# A script that makes the trainer itself, as the examples of nemo.lightning do.
WHOLE = """\
import torch
from megatron.core.optimizer import OptimizerConfig
from nemo import lightning as nl
from nemo.collections import llm

if __name__ == "__main__":
    data = llm.MockDataModule(seq_length=4096, global_batch_size=64, micro_batch_size=2)
    model = llm.LlamaModel(llm.Llama3Config8B(seq_length=4096), tokenizer=data.tokenizer)
    strategy = nl.MegatronStrategy(
        tensor_model_parallel_size=4, pipeline_model_parallel_size=2, sequence_parallel=True,
        pipeline_dtype=torch.bfloat16,
    )
    optim = nl.MegatronOptimizerModule(
        config=OptimizerConfig(optimizer="adam", bf16=True, use_distributed_optimizer=True)
    )
    trainer = nl.Trainer(
        devices=8, num_nodes=2, strategy=strategy,
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed"),
    )
    llm.train(model=model, data=data, trainer=trainer, optim=optim, tokenizer="data")
"""
PARTIAL = """\
import nemo_run as run
from nemo import lightning as nl
from nemo.collections import llm

def recipe():
    strategy = run.Config(nl.MegatronStrategy, context_parallel_size=2)
    return run.Partial(
        llm.pretrain,
        model=run.Config(llm.LlamaModel, config=run.Config(llm.Llama31Config8B)),
        trainer=run.Config(nl.Trainer, devices=8, num_nodes=4, strategy=strategy),
        data=run.Config(llm.MockDataModule, seq_length=8192, global_batch_size=128),
    )

if __name__ == "__main__":
    run.run(recipe())
"""


def test_a_script_that_makes_strategy_and_trainer_itself_is_read() -> None:
    whole = read({"train.py": WHOLE})
    plan, training = whole.plan, whole.training
    assert (plan.tp, plan.pp, plan.dp, plan.micro_batch_size) == (4, 2, 2, 2)
    assert plan.sequence_parallel
    assert plan.zero_stage == 1
    assert (training.seq_length, training.global_batch_size) == (4096, 64)
    assert (whole.model.name, whole.nodes, whole.accelerators_per_node) == ("llama-3.1-8b", 2, 8)
    partial = read({"train.py": PARTIAL})
    assert (partial.plan.tp, partial.plan.cp, partial.plan.dp) == (1, 2, 16)
    assert (partial.training.seq_length, partial.training.global_batch_size) == (8192, 128)
    assert partial.plan.micro_batch_size == 4  # the data modules' own
    with pytest.raises(Unreadable, match="NemotronHConfig8B, which is no preset"):
        read({"train.py": WHOLE.replace("Llama3Config8B", "NemotronHConfig8B")})
