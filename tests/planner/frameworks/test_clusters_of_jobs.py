"""How many accelerators a job asks for, and the kernels that follow from what it runs."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import ReadAnswer, read
from planner.frameworks.accelerate.launch_config import names_offload
from planner.inputs.requests.parser import parse_cluster

MEGATRON = """python -m torch.distributed.run $LAUNCH pretrain_gpt.py --num-layers 4 \\
  --hidden-size 256 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512 \\
  --micro-batch-size 1 --global-batch-size 64 --vocab-size 1024 --tokenizer-type NullTokenizer
"""
TRAINER = """{head}
{starts} train.py --model_name_or_path {model} --per_device_train_batch_size 2 \\
  --max_seq_length 512 --bf16 True {more}
"""
NEOX = """{
  "pipe_parallel_size": 0, "model_parallel_size": 1, "num_layers": 4, "hidden_size": 256,
  "num_attention_heads": 4, "seq_length": 512,
  "max_position_embeddings": 512, "train_micro_batch_size_per_gpu": 4, "vocab_file": "x",
  "make_vocab_size_divisible_by": 1, "tokenizer_type": "GPT2BPETokenizer"
}"""


def reading(**files: str) -> ReadAnswer:
    named = {name.replace("__", "."): text for name, text in files.items()}
    return read(named, parse_cluster("8x8xh100-sxm"))


@pytest.mark.parametrize(
    ("asked", "nodes", "each"),
    [("rt_AF=2", 2, 8), ("rt_F=4", 4, 4), ("node_f=2", 2, 4), ("rt_HF=1", 1, 8)],
)
def test_whole_nodes_of_grid_engine(asked: str, nodes: int, each: int) -> None:
    launch = MEGATRON.replace("$LAUNCH", f"--nnodes $NHOSTS --nproc_per_node {each}")
    answer = reading(launch__sh=f"#!/bin/bash\n#$ -l {asked}\n#$ -l h_rt=1:00:00\n{launch}")
    assert (answer.nodes, answer.accelerators_per_node) == (nodes, each)
    assert answer.request["plan"]["dp"] == nodes * each


@pytest.mark.parametrize(("words", "dp"), [("--nrs 16 -g 1", 16), ("-n 2 -a 6 -g 6", 12)])
def test_jsrun_starts_the_tasks_of_each_resource_set(words: str, dp: int) -> None:
    text = MEGATRON.replace("python -m torch.distributed.run $LAUNCH", f"jsrun {words} python")
    text = text.replace("--global-batch-size 64", "--global-batch-size 48")
    assert reading(launch__sh=text).request["plan"]["dp"] == dp


@pytest.mark.parametrize(("gres", "gpus"), [("gpu:RTXA6000:2", 2), ("gpu:1", 1)])
def test_gpt_neox_in_a_job_of_slurm(gres: str, gpus: int) -> None:
    script = f"#!/bin/bash\n#SBATCH --gres={gres}\n#SBATCH --ntasks=1\n"
    answer = reading(
        job__sbatch=f"{script}python ./deepy.py train.py -d configs small.yml\n", small__yml=NEOX
    )
    assert answer.request["plan"]["dp"] == gpus
    assert answer.request["training"]["global_batch_size"] == 4 * gpus
    nodes = NEOX.replace('"num_layers"', '"num_nodes": 4, "num_layers"')
    several = reading(
        job__sbatch=f"{script}python ./deepy.py train.py -d configs small.yml\n", small__yml=nodes
    )
    assert several.request["plan"]["dp"] == 4 * gpus


@pytest.mark.parametrize(
    ("name", "offloads"),
    [
        ("ds_z3_offload.json", True),
        ("zero2-offloading.json", True),
        ("stage3_no_offloading_accelerate.conf", False),
        ("z3_no-offload.json", False),
        ("zero3_nooffload.json", False),
        ("zero2-non-offload.json", False),
        ("zero3_offload_none.json", False),
        ("zero3.json", False),
    ],
)
def test_a_name_says_that_it_offloads(name: str, offloads: bool) -> None:
    assert names_offload(name) is offloads


@pytest.mark.parametrize(
    ("model", "more", "kernel"),
    [
        ("bigscience/bloom-560m", "", "unfused"),
        ("bigscience/bloom-560m", "--attn_implementation flash_attention_2", "flash2"),
        ("Qwen/Qwen2.5-0.5B", "", None),
    ],
)
def test_the_class_of_a_model_decides_its_attention(
    model: str, more: str, kernel: str | None
) -> None:
    text = TRAINER.format(head="", starts="torchrun --nproc_per_node 2", model=model, more=more)
    answer = reading(launch__sh=text)
    assert answer.request["plan"].get("attention_kernel") == kernel
    said = any("has unfused attention alone" in note for note in answer.assumed)
    assert said == (kernel == "unfused")


def test_a_module_may_be_accelerates_launcher() -> None:
    starts = "python -m accelerate.commands.launch --mixed_precision fp16 --num_processes 4"
    text = TRAINER.format(head="", starts=starts, model="Qwen/Qwen2.5-0.5B", more="")
    answer = reading(launch__sh=text.replace("--bf16 True ", ""))
    assert answer.request["training"]["precision"] == "fp16"
    assert answer.request["plan"]["dp"] == 4


AXOLOTL = """base_model: Qwen/Qwen2.5-0.5B
datasets: [{path: x}]
sequence_len: 512
micro_batch_size: 2
plugins:
  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin
"""


@pytest.mark.parametrize(
    ("more", "loss"), [("", "chunked"), ("cut_cross_entropy: false\n", "unfused")]
)
def test_axolotls_plugin_cuts_the_loss_unless_told_not_to(more: str, loss: str) -> None:
    assert reading(config__yml=AXOLOTL + more).request["plan"]["cross_entropy"] == loss


@pytest.mark.parametrize(
    ("method", "said"), [("reinforce", True), ("dpo", True), ("normal", False)]
)
def test_gpt_neox_says_what_a_method_has_beside(method: str, said: bool) -> None:
    config = NEOX.replace('"num_layers"', f'"train_impl": "{method}", "num_layers"')
    answer = reading(small__yml=config)
    assert any(f"train_impl {method}" in note for note in answer.assumed) is said
