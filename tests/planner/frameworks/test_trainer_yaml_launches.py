"""A trainer's YAML, or accelerate's configuration, and the script that starts a program with it."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.launch_files import GivenValues
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.trainer_scripts import BATCH, MODEL, TRL, why

FACTORY = "model_name_or_path: meta-llama/Llama-2-7b-hf\ncutoff_len: 1024\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FACTORY + "finetuning_type: lora\ndo_predict: true\n", "nothing is trained"),
        (FACTORY + "finetuning_type: lora\ntask: mmlu_test\n", "nothing is trained"),
        (TRL + "num_generations: 16\n", "GRPO"),
    ],
)
def test_yaml_that_trains_nothing_or_generates(text: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read({"run.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert said in str(caught.value)


def test_grpo_by_the_lengths_of_its_parts() -> None:
    samples = "num_generations: 8"
    response = f"max_completion_length: 2048\n{samples}"
    with pytest.raises(RequestError, match="also generates samples"):
        read({"grpo.yaml": TRL.replace("max_length: 1024", samples)}, parse_cluster("1x8xh100-sxm"))
    text = TRL.replace("max_length: 1024", f"max_prompt_length: 500\n{response}")
    found = read({"grpo.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert found.request["training"]["seq_length"] == 500 + 2048
    assert "only the training of GRPO is read" in str(found.request["guessed"])
    with pytest.raises(RequestError, match="is of rloo, whose step cannot be read"):
        read({"rloo.yaml": text}, parse_cluster("1x8xh100-sxm"))


def test_an_own_length_beside_a_configuration_of_accelerate() -> None:
    script = f"accelerate launch --config_file c.yaml train.py {MODEL} {BATCH} --cutoff_len 4096\n"
    config = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
    found = read({"run.sh": script, "c.yaml": config}, parse_cluster("1x8xh100-sxm")).request
    assert (found["training"]["seq_length"], found["plan"]["zero_stage"]) == (4096, 3)


def test_a_configuration_that_the_caller_names_is_asked_for() -> None:
    words = f"{MODEL} {BATCH} --use_peft --max_seq_length 2048"
    assert "config is $1, which the files do not say" in why(
        "accelerate launch --config_file $1 train.py", words
    )


@pytest.mark.parametrize(
    ("call", "replicas"),
    [
        ("python src/train.py", 1),
        ("export CUDA_VISIBLE_DEVICES=0,1\npython sft.py --config", 2),
        ("srun -N 1 --ntasks 4 python sft.py --config", 4),
        # Another program with the same YAML is no training.
        ("python sample.py sft.yaml\ntorchrun --nproc_per_node 4 sft.py", 4),
        ("python sample.py sft.yaml\naccelerate launch --num_processes 4 sft.py", 4),
    ],
)
def test_python_alone_starts_one_process_with_a_trainers_yaml(call: str, replicas: int) -> None:
    files = {"run.sh": f"{call} sft.yaml\n", "sft.yaml": TRL}
    plan = read(files, parse_cluster("1x8xh100-sxm")).request["plan"]
    assert plan.get("dp", 1) == replicas


def test_options_of_accelerate_overrule_its_configuration_beside_a_trainers_yaml() -> None:
    script = "accelerate launch --config_file z3.yaml --num_processes 4 sft.py --config sft.yaml\n"
    config = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nmax_seq_length: 4096\nuse_peft: false\nbf16: true\n"
    )
    z3 = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\nnum_processes: 8\n"
    files = {
        "run.sh": script,
        "sft.yaml": config,
        "other.yaml": z3.replace("3", "2"),
        "z3.yaml": z3,
    }
    plan = read(files, parse_cluster("8x8xh100-sxm")).request["plan"]
    assert (plan["dp"], plan["zero_stage"]) == (4, 3)


def test_variables_in_the_names_of_a_run_are_not_asked_for() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nnum_generations: 8\nmax_prompt_length: 512\n"
    text += "max_completion_length: 1024\nper_device_train_batch_size: 8\n"
    found = read(
        {"a.yaml": text + "output_dir: out/run${VERSION}\n"}, parse_cluster("1x8xh100-sxm")
    )
    assert found.request["training"]["seq_length"] == 1536


def test_keys_without_a_launcher_run_on_the_cluster() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 8\nmax_length: 64\n"
    found = read({"a.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert found.request["plan"]["dp"] == 8
    assert "no launcher among the files: 8 ranks" in str(found.assumed)


@pytest.mark.parametrize("words", ["recipes/sft.yaml", "--config recipes/sft.yaml"])
def test_a_configuration_that_is_not_here_is_asked_for(words: str) -> None:
    program = (
        "from trl import SFTConfig, SFTTrainer, TrlParser, ModelConfig\n"
        "args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()\n"
        "SFTTrainer(model=model.model_name_or_path, args=args).train()\n"
    )
    files = {"run.sh": f"accelerate launch sft.py {words}\n", "sft.py": program}
    text = "recipes/sft.yaml, its configuration, is not among the files"
    with pytest.raises(RequestError, match=text):
        read(files, parse_cluster("1x8xh100-sxm"))


def test_llama_factory_trains_adapters_unless_it_says_otherwise() -> None:
    found = read({"run.yaml": FACTORY}, parse_cluster("1x8xh100-sxm")).request
    assert found["training"]["lora_rank"] == 8


@pytest.mark.parametrize(
    "said", ["per_device_train_batch_size=$OF_SHELL", "gradient_checkpointing=${OF_SHELL}"]
)
@pytest.mark.parametrize("trainer", [FACTORY + "finetuning_type: full\nstage: sft\n", TRL])
def test_an_override_of_unknown_value_is_asked_for(said: str, trainer: str) -> None:
    """The run takes what the shell puts there, not what the YAML says of the key."""
    config = trainer + "per_device_train_batch_size: 2\ngradient_checkpointing: true\n"
    for words in (f"run.yaml {said}", f"--config run.yaml --{said.replace('=', ' ')}"):
        script = f"torchrun --nproc_per_node 8 train.py {words}\n"
        with pytest.raises(RequestError) as caught:
            read({"run.yaml": config, "launch.sh": script}, parse_cluster("1x8xh100-sxm"))
        assert "which the files do not say: --set OF_SHELL=..." in str(caught.value)


def test_an_override_whose_value_the_user_gives() -> None:
    """A variable that decides nothing, such as a folder, is not asked for."""
    config = FACTORY + "finetuning_type: full\nper_device_train_batch_size: 2\n"
    script = "llamafactory-cli train run.yaml per_device_train_batch_size=$B output_dir=$OUT\n"
    given = GivenValues({"B": "4"})
    found = read(
        {"run.yaml": config, "launch.sh": script}, parse_cluster("1x8xh100-sxm"), given=given
    ).request
    assert found["plan"]["micro_batch_size"] == 4
