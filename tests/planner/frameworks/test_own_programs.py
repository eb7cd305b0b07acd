"""Programs started with the options of a Trainer: loops, heads and shards of their own."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.launch_files import GivenValues
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.trainer_scripts import BATCH, LENGTH, MODEL, reading, why


def test_a_script_with_options_of_nobody_is_named() -> None:
    said = why("python finetune_fp16.py", "--model_path some/llama --output_path out")
    assert "the script calls finetune_fp16.py, whose options are those of no known trainer" in said
    assert "--num-layers" not in said


@pytest.mark.parametrize(
    ("program", "own"),
    [("loss.backward()\n", True), ("TrainingArguments()\nloss.backward()\n", False)],
)
def test_a_loop_of_its_own_is_said(program: str, own: bool) -> None:
    files = {"a.sh": f"torchrun a/train.py {MODEL} {BATCH} {LENGTH}\n", "train.py": program}
    found = read(files, parse_cluster("1x8xh100-sxm")).request
    assert ("a/train.py trains in a loop of its own" in str(found["guessed"])) is own


def test_programs_that_train_nothing_are_named_so() -> None:
    assert "generate.py trains nothing" in why("torchrun tools/generate.py --max_len 99")
    # Whatever configuration of a training they are given.
    files = {"a.sh": "python maxengine_server.py base.yml", "base.yml": "ici_fsdp_parallelism: 4"}
    with pytest.raises(RequestError, match=r"maxengine_server\.py trains nothing"):
        read(files, parse_cluster("1x8xh100-sxm"))


def test_a_program_that_shards_by_a_switch_of_its_own() -> None:
    words = (MODEL, BATCH, LENGTH, "--use_deepspeed")
    assert "shards in code of its own: --set zero_stage=3" in why("torchrun t.py", *words)
    known = GivenValues({"zero_stage": "3"})
    assert reading("torchrun t.py", *words, given=known).request["plan"]["zero_stage"] == 3
    named = (MODEL, BATCH, LENGTH, "--deepspeed --deepspeed_config configs/ds_zero2.json")
    assert reading("deepspeed t.py", *named).request["plan"]["zero_stage"] == 2


OWN_LOOP = """
import deepspeed
parser.add_argument("--per_device_train_batch_size", type=int, default=16, help="of a device")
parser.add_argument("--max_seq_len", type=int, default=512)
parser.add_argument("--model_name_or_path", type=str, required=True)
for batch in loader:
    model.backward(model(**batch).loss)
"""


CONFIG = """
def get_train_ds_config(stage):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "fp16": {
            "enabled": True,
            "loss_scale_window": 100,
        },
    }
"""


def test_a_program_of_its_own_loop_has_its_own_defaults() -> None:
    files = {
        "run.sh": f"deepspeed --num_gpus 2 main.py {MODEL} --zero_stage 2\n",
        "main.py": OWN_LOOP,
        "ds_utils.py": CONFIG,
    }
    found = read(files, parse_cluster("1x8xh100-sxm"))
    training = found.request["training"]
    assert (training["global_batch_size"], training["seq_length"]) == (32, 512)
    assert training["precision"] == "fp16"
    assert "defaults of main.py: per_device_train_batch_size 16" in str(found.assumed)
    given = {**files, "run.sh": files["run.sh"].replace("--zero", "--max_seq_len 1024 --zero")}
    again = read(given, parse_cluster("1x8xh100-sxm")).request["training"]
    assert again["seq_length"] == 1024
    both = {**files, "other.py": CONFIG.replace("fp16", "bf16")}
    assert "neither bf16 nor fp16 is on" in str(read(both, parse_cluster("1x8xh100-sxm")).assumed)


def test_a_program_that_trains_another_head_is_not_read_by_its_options() -> None:
    program = (
        "from transformers import AutoModelForSequenceClassification as A, TrainingArguments\n"
        "Trainer(model=A.from_pretrained('gpt2'), args=TrainingArguments('x'))\n"
    )
    script = f"torchrun --nproc_per_node 2 classify.py {MODEL} {BATCH} {LENGTH}\n"
    with pytest.raises(RequestError, match="is no decoder of the next token"):
        read({"run.sh": script, "classify.py": program}, parse_cluster("1x8xh100-sxm"))


def test_a_program_that_is_not_followed_is_said() -> None:
    script = f"torchrun --nproc_per_node 2 sft.py {MODEL} {BATCH} {LENGTH}\n"
    program = "from trl import SFTConfig\n"
    found = read({"run.sh": script, "sft.py": program}, parse_cluster("1x8xh100-sxm"))
    assert "sft.py is not followed, only its options are read" in str(found.assumed)


def test_a_folder_does_not_say_what_its_program_does() -> None:
    found = reading("torchrun eval_agent/fastchat/train/train.py", MODEL, BATCH, LENGTH)
    assert found.request["training"]["seq_length"] == 4096


def test_what_a_configuration_at_hand_says_is_in_the_command() -> None:
    files = {
        "a.sh": "torchrun scripts/run_sft.py --config configs/own.yaml\n",
        "own.yaml": 'model_name: "Meta-Llama-3.1-8B-Instruct"\nmax_length: 1280\n',
    }
    with pytest.raises(RequestError) as caught:
        read(files, parse_cluster("1x8xh100-sxm"))
    assert "planner plan --model Meta-Llama-3.1-8B-Instruct --seq-length 1280" in str(caught.value)
    assert "NeMo" not in str(caught.value)
