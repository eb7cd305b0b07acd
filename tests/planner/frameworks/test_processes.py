"""How many processes a launch starts, by whatever starts them."""

from __future__ import annotations

import pytest

from planner.frameworks.sources import framework_of, reading_of

MODEL = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--vocab-size 50257 --tokenizer-type NullTokenizer"
)


def world(text: str, asked: int = 512) -> int:
    """The ranks of a script's plan, on as many as are asked where it does not say."""
    files = {"run.sh": text.replace("MODEL", MODEL)}
    return reading_of(framework_of(files, None), files, asked).plan.accelerators


@pytest.mark.parametrize(
    ("script", "ranks"),
    [
        ("mpirun -np 16 python pretrain_gpt.py MODEL", 16),
        ("mpirun -n 16 -ppn 8 --hostfile hosts python3 pretrain_gpt.py MODEL", 16),
        ("/opt/mpi/bin/mpiexec -np 32 -x PATH python pretrain_gpt.py MODEL", 32),
        ("N=2; aprun -n $((N*4)) -N 4 python pretrain_gpt.py MODEL", 8),
        ("mpirun -np $RANKS python pretrain_gpt.py MODEL", 512),
        ("deepspeed --num_gpus 4 pretrain_gpt.py --deepspeed MODEL", 4),
        ("deepspeed --num_nodes 2 --num_gpus 4 pretrain_gpt.py --deepspeed MODEL", 8),
        ("deepspeed --hostfile hosts --num_gpus 4 pretrain_gpt.py --deepspeed MODEL", 512),
        (
            "#SBATCH -N 4\nsrun -n 32 --ntasks-per-node=8 bash -c 'python pretrain_gpt.py MODEL'",
            32,
        ),
        (
            "#PBS -l select=3:ncpus=64:ngpus=4\n#PBS -q big\nmpirun python pretrain_gpt.py MODEL",
            512,
        ),
        ("torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py MODEL", 16),
    ],
)
def test_the_processes_are_those_that_are_started(script: str, ranks: int) -> None:
    assert world(script) == ranks


def test_torchrun_says_how_many_run_a_configuration() -> None:
    config = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: lora\n"
        "cutoff_len: 1024\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
    )
    script = "N=2\ntorchrun --nproc_per_node $N --nnodes 1 src/train.py configs/lora.yaml\n"
    files = {"run.sh": script, "lora.yaml": config}
    reading = reading_of(framework_of(files, None), files, 512)
    assert (reading.plan.dp, reading.nodes, reading.accelerators_per_node) == (2, 1, 2)
    assert reading.training.global_batch_size == 16


@pytest.mark.parametrize(
    ("script", "ranks"),
    [
        ("#SBATCH --nodes=1\n#SBATCH --gpus-per-node=h100:4\nCALL", 4),
        ("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\nCALL", 512),
        ("#SBATCH --nodes 1\n#SBATCH --gpus tesla:1\nCALL", 1),
        ("#SBATCH --nodes=2\n#SBATCH --gpus=8\nCALL", 512),
        ("NNODES=2 NPROC_PER_NODE=8 CALL", 16),
        ("CALL", 512),
    ],
)
def test_what_llama_factorys_command_starts(script: str, ranks: int) -> None:
    config = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: lora\n"
        "cutoff_len: 1024\nper_device_train_batch_size: 1\n"
    )
    call = script.replace("CALL", "apptainer run --nv a.sif llamafactory-cli train lora.yaml\n")
    files = {"run.sh": f"#!/bin/bash\n{call}", "lora.yaml": config}
    assert reading_of(framework_of(files, None), files, 512).plan.dp == ranks


@pytest.mark.parametrize(
    ("call", "micro", "rank"),
    [
        ("llamafactory-cli train lora.yaml per_device_train_batch_size=4 lora_rank=32", 4, 32),
        ("torchrun --nproc_per_node 8 src/train.py lora.yaml", 2, 8),
        ("torchrun --nproc_per_node 8 src/train.py lora.yaml --lora_rank 16", 2, 16),
    ],
)
def test_what_a_call_says_beside_its_configuration_counts(call: str, micro: int, rank: int) -> None:
    config = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: lora\n"
        "cutoff_len: 1024\nper_device_train_batch_size: 2\nlora_rank: 8\nfsdp: []\n"
    )
    files = {"run.sh": call, "lora.yaml": config}
    reading = reading_of(framework_of(files, None), files, 8)
    assert (reading.plan.micro_batch_size, reading.training.lora_rank) == (micro, rank)
    assert reading.plan.zero_stage == 0  # an empty list of FSDP's words shards nothing


def test_a_quiet_search_is_taken_to_find_nothing_and_that_is_said() -> None:
    script = (
        "TP=2\nif echo $ARGS | grep -q fast; then TP=1; fi\n"
        "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP MODEL"
    )
    files = {"run.sh": script.replace("MODEL", MODEL)}
    reading = reading_of(framework_of(files, None), files, None)
    assert reading.plan.tp == 2
    assert any("grep -q fast" in one for one in reading.assumed)


@pytest.mark.parametrize("method", ["uniform", "block"])
def test_recompute_by_its_older_name(method: str) -> None:
    older = f"--activations-checkpoint-method {method} --activations-checkpoint-num-layers 2"
    files = {"run.sh": f"torchrun --nproc_per_node 8 pretrain_gpt.py {older} {MODEL}"}
    plan = reading_of(framework_of(files, None), files, None).plan
    assert (plan.recompute, plan.recompute_method, plan.recompute_num_layers) == ("full", method, 2)


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model llama-2/tokenizer.model", 32_000),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model $DIR/tokenizer.model", 32_000),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model jp-tokenizer-100k.v3.model", 100_000),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model mine/code_and_text.model", 128_256),
        ("--tokenizer-type GPT2BPETokenizer --vocab-file tokenizer_131072/vocab.json", 131_072),
        ("--tokenizer-type GPT2BPETokenizer --vocab-file my-vocab.json", 50_257),
        (
            "--tokenizer-type HuggingFaceTokenizer --tokenizer-model "
            "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
            128_256,
        ),
    ],
)  # fmt: skip
def test_a_vocabulary_is_that_of_the_file_and_not_of_the_class(words: str, tokens: int) -> None:
    stated = MODEL.replace("--vocab-size 50257 --tokenizer-type NullTokenizer", words)
    files = {"run.sh": f"torchrun --nproc_per_node 8 pretrain_gpt.py {stated}"}
    reading = reading_of(framework_of(files, None), files, None)
    assert reading.model.vocab_size == tokens
    assert any("tokens" in one for one in reading.assumed)
