"""What a Python script says by itself where its configuration is not among the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.python.notebooks import cells
from planner.frameworks.sources import launch_at
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.python_scripts import IMPORTS, PLAIN, reading, said, why

BY_CONFIG = """\
def main(config):
    train = config.get("training", {})
    model = AutoModelForCausalLM.from_pretrained(config.get("model_name", "Qwen/Qwen2.5-7B"))
    args = SFTConfig("out", per_device_train_batch_size=train.get("batch_size", 2),
                     gradient_accumulation_steps=getattr(config, "steps", 4),
                     bf16=config.get("bf16", default=True),
                     max_length=train.get("max_length", 2048))
    SFTTrainer(model=model, args=args).train()
"""


def test_keys_of_a_configuration_that_is_not_here_have_their_defaults() -> None:
    answer = reading(BY_CONFIG)
    training = answer.request["training"]
    assert (training["seq_length"], training["global_batch_size"]) == (2048, 2 * 4 * 8)
    assert answer.request["model"]["name"] == "qwen2.5-7b"
    keys = "model_name, batch_size, steps, bf16, max_length"
    assert f"keys that a configuration could set have their defaults: {keys}" in said(answer)


def test_a_configuration_that_is_here_says_them() -> None:
    opened = BY_CONFIG.replace(
        "def main(config):", "def main(path):\n    config = load_config(path)"
    )
    text = opened + 'main("run.yaml")\n'
    keys = "model_name: Qwen/Qwen2.5-3B\ntraining: {batch_size: 8, max_length: 512}\n"
    answer = reading(text, files={"run.yaml": keys})
    assert answer.request["training"]["seq_length"] == 512
    assert answer.request["plan"]["micro_batch_size"] == 8
    assert "could set have their defaults" not in said(answer)


def notebook(*sources: str) -> str:
    made = [{"cell_type": "code", "source": one.splitlines(keepends=True)} for one in sources]
    return json.dumps({"cells": made}, indent=1)


INSTALLS = "!pip install -q \\\n    trl peft \\\n    bitsandbytes\n%cd \\\n  here\nimport os"


@pytest.mark.parametrize("broken", ["", "the next cell is the training\n", "x = !nvidia-smi\n"])
def test_commands_over_several_lines_and_cells_that_are_no_python(broken: str) -> None:
    text = notebook(INSTALLS, broken, IMPORTS + PLAIN)
    answer = read({"tune.ipynb": text}, parse_cluster("1x8xh100-sxm"))
    assert answer.request["training"]["global_batch_size"] == 16
    assert ("cells that are no Python are left out: tune.ipynb:" in said(answer)) is bool(broken)


def test_the_lines_of_a_cell_are_those_of_its_file() -> None:
    text = notebook(INSTALLS, "no python here", "a = 1")
    code, lines, left_out = cells(text)
    assert code.splitlines() == ["pass", "", "", "pass", "", "import os", "", "a = 1"]
    shown = text.splitlines()
    assert "no python here" in shown[left_out[0] - 1]
    assert "a = 1" in shown[lines[7] - 1]


@pytest.mark.parametrize(
    "opens",
    [
        "with open(path) as file:\n        config = json.loads(file.read())",
        "config = json.loads(Path(path).read_text())",
        "with Path(path).open() as file:\n        config = json.load(file)",
    ],
)
def test_a_configuration_however_it_is_opened(opens: str) -> None:
    text = f"""\
import json
from pathlib import Path

def load(path="run.json"):
    {opens}
    return config

config = load()
model = AutoModelForCausalLM.from_pretrained(config["model"])
SFTTrainer(model=model, args=SFTConfig("out", per_device_train_batch_size=config["batch"],
                                       max_length=512, bf16=True)).train()
"""
    keys = '{"model": "Qwen/Qwen2.5-7B", "batch": 3}'
    answer = reading(text, files={"run.json": keys})
    assert answer.request["model"]["name"] == "qwen2.5-7b"
    assert answer.request["plan"]["micro_batch_size"] == 3


def test_the_only_configuration_stands_for_one_whose_name_is_not_known() -> None:
    text = BY_CONFIG.replace("main(config)", "main(path)").replace(
        "    train =", "    config = yaml.safe_load(open(path))\n    train =", 1
    )
    answer = reading(text, files={"run.yaml": "steps: 2\ntraining: {batch_size: 8}\n"})
    assert answer.request["plan"]["micro_batch_size"] == 8
    assert "run.yaml is taken to be the configuration that the program opens" in said(answer)


PARTS = """\
@dataclass
class Data:
    source_max_len: int = field(default=1024)
    target_max_len: int = field(default=256)

@dataclass
class Training(TrainingArguments):
    per_device_train_batch_size: int = field(default=2)
    bf16: bool = field(default=True)

data, args = HfArgumentParser((Data, Training)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
Trainer(model=model, args=args).train()
"""


def test_the_parts_of_a_sample_make_its_length_and_options_have_their_defaults() -> None:
    answer = reading(PARTS)
    assert answer.request["training"]["seq_length"] == 1024 + 256
    assert "the sequence length is source_max_len + target_max_len: 1280" in said(answer)
    assert "no call of train.py is among the files: its options have their defaults" in said(answer)
    assert "its options have their defaults" not in said(reading(PLAIN))


@pytest.mark.parametrize(
    ("trainer", "loss"), [("LLaVADPOTrainer", "dpo"), ("RewardTrainer", "reward")]
)
def test_the_loss_by_the_name_of_a_trainer_that_is_not_here(trainer: str, loss: str) -> None:
    text = PARTS.replace("\nTrainer(", f"\n{trainer}(").replace(
        "data, args", f"from llava.train.own import {trainer}\ndata, args", 1
    )
    answer = reading(text)
    assert answer.request["training"]["loss"] == loss
    assert answer.request["plan"]["micro_batch_size"] == 4


def test_a_trainer_of_another_loss_beside_the_usual_arguments_is_refused() -> None:
    text = PARTS.replace("\nTrainer(", "\nKTOTrainer(").replace(
        "data, args", "from trl import KTOTrainer\ndata, args", 1
    )
    assert "the loss of KTOConfig cannot be planned" in why(text)


def test_a_model_in_a_folder_of_windows() -> None:
    text = PLAIN.replace("meta-llama/Llama-3.1-8B", r"C:\\models\\Llama-3.1-8B")
    assert reading(text).request["model"]["name"] == "llama-3.1-8b"


BY_EITHER = """\
from unsloth import FastLanguageModel

def by_unsloth():
    model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-8B", max_seq_length=512)
    return FastLanguageModel.get_peft_model(model, r=8)

def plain():
    return AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")

parser = argparse.ArgumentParser()
parser.add_argument("--fast", action="store_true")
args = parser.parse_args()
model = by_unsloth() if args.fast else plain()
SFTTrainer(model=model, args=SFTConfig("out", max_length=1024, bf16=True)).train()
"""


@pytest.mark.parametrize(
    ("words", "framework", "model"),
    [("", "accelerate", "qwen2.5-7b"), ("--fast", "unsloth", "qwen3-8b")],
)
def test_which_library_loads_the_model_is_followed(words: str, framework: str, model: str) -> None:
    files = {"run.sh": f"python train.py {words}\n", "train.py": IMPORTS + BY_EITHER}
    for given in (files, {"train.py": files["train.py"]}):
        if "--fast" in words and len(given) == 1:
            continue
        answer = read(given, parse_cluster("1x8xh100-sxm"))
        assert (answer.framework, answer.request["model"]["name"]) == (framework, model)


BY_EXAMPLE = '''\
"""Fine-tunes.

    accelerate launch --config_file a.yaml \\\\
        train.py --config configs/run.yaml
"""
from pathlib import Path

def expanded(value):
    if isinstance(value, dict):
        return {key: expanded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [expanded(one) for one in value]
    return os.path.expandvars(value) if isinstance(value, str) else value

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
with open(Path(parser.parse_args().config)) as file:
    config = expanded(yaml.safe_load(file))
model = AutoModelForCausalLM.from_pretrained(config["model"]["name"])
SFTTrainer(model=model, args=SFTConfig(
    "out", per_device_train_batch_size=config["sizes"]["batch"], max_length=512, bf16=True,
    deepspeed=config.get("deepspeed"))).train()
'''


def test_the_example_of_its_call_that_a_script_has(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "configs").mkdir()
    keys = "model: {name: Qwen/Qwen2.5-7B}\nsizes: {batch: 3}\n"
    (tmp_path / "configs" / "run.yaml").write_text(keys)
    script = tmp_path / "train.py"
    script.write_text(BY_EXAMPLE.replace("from pathlib", f"{IMPORTS}from pathlib", 1))
    files, _ = launch_at([str(script)])
    assert list(files) == ["train.py", "run.yaml"]
    answer = read(files, parse_cluster("1x8xh100-sxm"))
    assert answer.request["model"]["name"] == "qwen2.5-7b"
    assert answer.request["plan"]["micro_batch_size"] == 3
    assert "those of the example in it: --config configs/run.yaml" in said(answer)
    # Without the file the example leads nowhere, and what was missing before is said.
    with pytest.raises(RequestError, match="add --model NAME"):
        read({"train.py": files["train.py"]}, parse_cluster("1x8xh100-sxm"))


def test_shards_that_only_running_decides_are_said() -> None:
    text = BY_CONFIG.replace("bf16=config", "deepspeed=config.get('zero'), bf16=config")
    assert "deepspeed of SFTConfig is config.get('zero'), known only at run time" in said(
        reading(text)
    )


def test_a_yaml_beside_a_script_of_unsloth_does_not_hide_it() -> None:
    keys = "per_device_train_batch_size: 2\nmodel_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 512\n"
    text = BY_EITHER.replace(
        "model = by_unsloth() if args.fast else plain()", "model = by_unsloth()"
    )
    files = {"train.py": IMPORTS + text, "run.yaml": keys}
    assert read(files, parse_cluster("1x8xh100-sxm")).framework == "unsloth"


IN_PARTS = """\
from peft import PeftModel

@dataclass
class Config:
    model: str = "Qwen/Qwen2.5-7B"
    batch: int = 4
    length: int = 512

def build(config: "Config", path: str):
    bits = BitsAndBytesConfig(load_in_4bit=BITS["on"], bnb_4bit_quant_type="nf4")
    base = AutoModelForCausalLM.from_pretrained(config.model, quantization_config=bits)
    reference = AutoModelForCausalLM.from_pretrained(config.model)
    for one in reference.parameters():
        one.requires_grad_(False)
    model = PeftModel.from_pretrained(base, path, is_trainable=True)
    args = SFTConfig("out", per_device_train_batch_size=config.batch, max_length=config.length,
                     bf16=True)
    SFTTrainer(model=model, args=args).train()
"""


def test_an_object_that_a_function_is_given_has_its_defaults() -> None:
    answer = reading(IN_PARTS)
    training = answer.request["training"]
    assert answer.request["model"]["name"] == "qwen2.5-7b"
    assert (training["seq_length"], answer.request["plan"]["micro_batch_size"]) == (512, 4)
    assert "an object of Config that a function is given is taken to have its def" in said(answer)
    # The weights of four bits are those of the model inside, and of the reference none.
    assert training["frozen_dtype"] == "nf4"
    assert "load_in_4bit, known only at run time, is taken as on beside its type" in said(answer)
    plain = IN_PARTS.replace('BITS["on"]', "False")
    assert "frozen_dtype" not in reading(plain).request["training"]


FILLED = """\
import json
from pathlib import Path

@dataclass
class Config:
    model: str = "gpt2"
    batch: int = 4

    @classmethod
    def of(cls, path):
        made = cls()
        with open(path) as file:
            for key, value in json.load(file).items():
                if hasattr(made, key):
                    setattr(made, key, value)
        return made

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path, default=Path("run.json"))
path = parser.parse_args().config
config = Config()
if path.exists():
    config = Config.of(path)
model = AutoModelForCausalLM.from_pretrained(config.model)
SFTTrainer(model=model, args=SFTConfig("out", per_device_train_batch_size=config.batch,
                                       max_length=64, bf16=True)).train()
"""


def test_an_object_that_is_filled_from_a_configuration_that_is_there() -> None:
    keys = '{"model": "Qwen/Qwen2.5-7B", "batch": 2, "other": 1}'
    answer = reading(FILLED, files={"run.json": keys})
    assert answer.request["model"]["name"] == "qwen2.5-7b"
    assert answer.request["plan"]["micro_batch_size"] == 2
    assert reading(FILLED).request["model"]["name"] == "gpt2"


def test_modules_of_constants_are_found(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "settings.py").write_text("from pathlib import Path\n\nNAME = 'Qwen/Qwen2.5-7B'\n")
    (tmp_path / "helpers.py").write_text("from os import path\n\ndef helps():\n    return 1\n")
    text = f"from settings import NAME\nfrom helpers import helps\n{IMPORTS}"
    (tmp_path / "train.py").write_text(text + "SFTTrainer(model=NAME, args=SFTConfig('x'))\n")
    files, _ = launch_at([str(tmp_path / "train.py")])
    assert list(files) == ["train.py", "settings.py"]
    assert read(files, parse_cluster("1x8xh100-sxm")).request["model"]["name"] == "qwen2.5-7b"


def test_a_script_that_was_saved_from_a_notebook() -> None:
    answer = reading("%env WANDB=off\n!pip install trl \\\n  peft\n" + PLAIN)
    assert answer.request["training"]["global_batch_size"] == 16
    assert "line 7: no Python: invalid syntax" in why("a b\n" + PLAIN)


def test_a_reference_that_a_script_freezes_is_not_what_it_trains() -> None:
    text = """\
from own import RiskTrainer
policy = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
ref_model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
for one in ref_model.parameters():
    one.requires_grad_(False)
args = DPOConfig("out", max_length=512, bf16=True)
RiskTrainer(policy, ref_model, config, args=args).train()
"""
    assert reading(text).request["training"]["loss"] == "dpo"
    assert "which weights a script freezes itself" in why(text.replace("ref_model", "policy"))


def test_what_a_trainer_of_its_own_hands_on() -> None:
    text = """\
class Risk(DPOTrainer):
    def __init__(self, *args, delta=1.0, **more):
        super().__init__(*args, **more)
        self.delta = delta

policy = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
ref_model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-3B")
for one in ref_model.parameters():
    one.requires_grad_(False)
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True)
Risk(model=policy, ref_model=ref_model, args=args, delta=0.1).train()
"""
    request = reading(text).request
    assert (request["model"]["name"], request["training"]["loss"]) == ("qwen2.5-7b", "dpo")
