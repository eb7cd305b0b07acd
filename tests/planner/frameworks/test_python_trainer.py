"""Python scripts and notebooks that call transformers' Trainer or TRL's themselves."""

from __future__ import annotations

import json

import pytest

from planner import frameworks
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.launch_files import GivenValues
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.python_scripts import IMPORTS, PLAIN, SFT, reading, said, why


def test_arguments_of_calls_are_read_as_options() -> None:
    answer = reading(SFT)
    plan, training = answer.request["plan"], answer.request["training"]
    assert answer.framework == "accelerate"
    assert (training["seq_length"], training["global_batch_size"]) == (2048, 64)
    assert (training["lora_rank"], training["lora_targets"]) == (16, ["q_proj", "v_proj"])
    assert training["lora_dropout"] == 0.05
    assert (plan["dp"], plan["micro_batch_size"], plan["recompute"]) == (8, 4, "full")
    assert plan["cross_entropy"] == "chunked"
    assert answer.request["model"]["num_layers"] == 28
    assert "gradient_checkpointing: not set, True as in TRL's SFTConfig" in said(answer)
    assert "no launcher among the files: 8 ranks" in said(answer)


@pytest.mark.parametrize(
    ("loads", "left", "replicas", "spreads"),
    [
        ("", "0", 1, False),
        ("", "0, 1", 2, False),
        ("", "", 8, False),  # none: of the cluster
        (', device_map="auto"', "2", 1, False),
        (', device_map="auto"', "0,1", 1, True),
        (', device_map="auto"', "", 8, True),
        (', device_map={"": 0}', "0,1", 2, False),
    ],
)
def test_accelerators_that_a_script_leaves_itself(
    loads: str, left: str, replicas: int, spreads: bool
) -> None:
    text = f'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "{left}"\n{PLAIN}'
    answer = reading(text.replace(', torch_dtype="bfloat16"', loads))
    assert answer.request["plan"].get("dp", 1) == replicas
    assert ("device_map auto spreads one model over all" in said(answer)) is spreads
    assert ("no launcher among the files" in said(answer)) is (replicas == 8)


def test_objects_with_methods() -> None:
    text = """\
class Tuner:
    base = "Qwen/Qwen2.5-3B"

    def __init__(self, batch, length=512):
        self.batch, self.length = batch, length
        self.model = None

    @property
    def rank(self):
        return self.batch * 2

    def load(self):
        self.model = AutoModelForCausalLM.from_pretrained(self.base)
        self.model = get_peft_model(self.model, LoraConfig(r=self.rank))

    def train(self):
        args = SFTConfig("out", per_device_train_batch_size=self.batch, max_length=self.length)
        SFTTrainer(model=self.model, args=args).train()

tuner = Tuner(4)
tuner.load()
tuner.train()
"""
    request = reading(text).request
    assert (request["plan"]["micro_batch_size"], request["training"]["lora_rank"]) == (4, 8)
    assert request["training"]["seq_length"] == 512


def test_dpo_and_rewards_take_two_sequences_a_sample() -> None:
    text = """\
args = DPOConfig("out", per_device_train_batch_size=2, bf16=True)
DPOTrainer(AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B"), args=args)
"""
    request = reading(text).request
    assert (request["training"]["loss"], request["plan"]["micro_batch_size"]) == ("dpo", 4)
    assert request["training"]["seq_length"] == 1024
    older = text.replace("DPOConfig", "TrainingArguments")
    assert reading(older).request["training"]["loss"] == "dpo"


def test_of_grpo_the_training_is_read() -> None:
    text = """\
args = GRPOConfig("out", per_device_train_batch_size=4, max_completion_length=1024, bf16=True,
                  num_generations=4, beta=0.0)
GRPOTrainer(model="Qwen/Qwen2.5-7B", args=args, reward_funcs=[len])
"""
    answer = reading(text)
    assert answer.request["training"]["seq_length"] == 512 + 1024
    assert "only the training of GRPO is read" in said(answer)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("from trl import PPOConfig\nPPOConfig()\nSFTConfig\n", "also generates samples"),
        ("from trl import KTOConfig\nKTOConfig()\nSFTConfig\n", "the loss of KTOConfig"),
        ("from transformers import AutoModelForSequenceClassification as A\n"
         "Trainer(model=A.from_pretrained('gpt2'), args=TrainingArguments('x'))\n",
         "AutoModelForSequenceClassification is no decoder"),
        ("from peft import PromptTuningConfig\nPromptTuningConfig()\n"
         "SFTTrainer(model='gpt2', args=SFTConfig('x'))\n", "adds parts to the model"),
        ("SFTTrainer(AutoModelForCausalLM.from_pretrained(f()), args=SFTConfig('x'))\n",
         "add --model NAME"),
        ("SFTTrainer(model='gpt2', args=SFTConfig('x', per_device_train_batch_size=f()))\n",
         "--set per_device_train_batch_size="),
        ("SFTTrainer(model='gpt2', args=SFTConfig('x', max_length=f()))\n",
         "--set model_max_length="),
        ("from other import load\nm, t = load('gpt2')\n"
         "SFTTrainer(model=m, args=SFTConfig('x', max_length=64))\n", "what makes m, all of"),
        ("def helper(): pass\nSFTConfig\n", "it makes no arguments of a Trainer"),
        ("from mine import SFTConfig\nSFTConfig(max_length=1)\n",
         "it makes no arguments of a Trainer"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(text: str, reason: str) -> None:
    assert reason in why(text)


def test_a_function_that_nothing_calls_is_taken_to_be_the_start() -> None:
    answer = reading(SFT.replace('if __name__ == "__main__":\n    main()\n', ""))
    assert "main of train.py is taken to be what is called" in said(answer)
    assert answer.request["training"]["global_batch_size"] == 64


def test_a_length_that_a_function_has_by_default_is_that_of_the_samples() -> None:
    text = PLAIN.replace("def tokenize(sample):", "def tokenize(sample, max_seq_length=384):")
    text = text.replace("max_length=512", "max_length=max_seq_length")
    assert reading(text).request["training"]["seq_length"] == 384


def test_a_field_may_have_the_name_of_a_constant() -> None:
    text = SFT.replace(
        "RANK = 8 * 2",
        "RANK = 8 * 2\nbatch = 6\n@dataclass\nclass Sizes:\n    batch: int = batch\n",
    )
    text = text.replace(
        "per_device_train_batch_size=4", "per_device_train_batch_size=Sizes().batch"
    )
    assert reading(text).request["plan"]["micro_batch_size"] == 6


def test_a_step_of_its_own_is_said() -> None:
    own = "class Ranked(Trainer):\n    def compute_loss(self, model, inputs): ...\n"
    found = said(reading(own + PLAIN.replace("trainer = Trainer(", "trainer = Ranked(")))
    assert "compute_loss of Ranked is its own" in found
    other = "from grit.trainer import GritTrainer\n"
    found = said(reading(other + PLAIN.replace("trainer = Trainer(", "trainer = GritTrainer(")))
    assert "GritTrainer is not among the files" in found
    assert "costed as" not in said(reading(PLAIN))


def test_a_configuration_of_accelerate_may_say_no_without_quotes() -> None:
    files = {
        "run.sh": "accelerate launch --config_file one.yaml train.py\n",
        "train.py": IMPORTS + SFT,
        "one.yaml": "distributed_type: NO\nnum_machines: 1\nnum_processes: 2\n",
    }
    plan = read(files, parse_cluster("1x8xh100-sxm")).request["plan"]
    assert (plan["dp"], plan["zero_stage"]) == (2, 0)


def test_a_test_is_taken_as_true_where_all_else_ends_the_script() -> None:
    check = (
        "if tokenizer.pad_token_id is not None:\n    width = 3\n"
        "else:\n    raise ValueError('no padding')\n"
    )
    text = PLAIN.replace("trainer =", f"{check}trainer =")
    text = text.replace("batch_size=2", "batch_size=width")
    assert reading(text).request["plan"]["micro_batch_size"] == 3
    chosen = (
        "task = os.environ['TASK']\nif task == 'a':\n    width = 3\nelif task == 'b':\n"
        "    width = 5\nelse:\n    raise ValueError(task)\n"
    )
    assert "it makes no arguments" in why(text.replace(check, chosen))


def test_of_several_trainers_the_last_is_read() -> None:
    first = 'SFTTrainer(model="gpt2", args=SFTConfig("a", max_length=64))\n'
    answer = reading(first + SFT)
    assert answer.request["training"]["seq_length"] == 2048
    assert "of 2 trainers in train.py the last one is read" in said(answer)


def test_a_notebook_is_its_cells() -> None:
    head, _, rest = (IMPORTS + SFT).partition("def main")
    cells = [
        {"cell_type": "markdown", "source": ["# Tuning"]},
        {"cell_type": "code", "source": ["%pip install trl\n", "!nvidia-smi\n", head]},
        {"cell_type": "code", "source": "%%bash\nls\n"},
        {"cell_type": "code", "source": f"def main{rest}", "outputs": ["x" * 20_000]},
    ]
    text = json.dumps({"cells": cells}, indent=1)
    request = read({"tune.ipynb": text}, parse_cluster("1x8xh100-sxm")).request
    assert request == {**reading(SFT).request, "guessed": request["guessed"]}
    framework = frameworks.get("accelerate")
    assert framework.read is not None
    found = framework.read({"tune.ipynb": text}, 8).find("--per_device_train_batch_size")
    assert found is not None
    assert "per_device_train_batch_size=4" in text.splitlines()[found.line - 1]
    with pytest.raises(RequestError, match="no notebook"):
        read({"tune.ipynb": "SFTConfig"}, parse_cluster("1x8xh100-sxm"))


def test_settings_keep_the_lines_of_their_arguments() -> None:
    framework = frameworks.get("accelerate")
    assert framework.read is not None
    text = IMPORTS + SFT
    found = framework.read({"train.py": text}, 8)
    for name, stands in (
        ("--lora_r", "r=RANK"),
        ("--gradient_accumulation_steps", "gradient_accumulation_steps=2"),
        ("--model_name_or_path", "from_pretrained"),
    ):
        one = found.find(name)
        assert one is not None
        assert stands in text.splitlines()[one.line - 1]


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return f()\nf()\n",
        "def f(x): return f(x) + f(x)\nf(1)\n",
        "x = 'a' * 99999\nfor i in range(16):\n    x = x + x\n",
        "x = [0] * 99999\nfor i in range(16):\n    x = x + x\n",
        "x = 'a' * 90000\ny = x.join([x] * 90000)\n",
        "class A(A): pass\nA()\n",
        "def f(g): return g(g)\nf(f)\n",
        "x = {}\nx['x'] = x\nx.update(x)\n",
        "while True: pass\n",
        "[[1 for a in range(99999)] for b in range(99999)]\n",
        "f = lambda g: g(g)\nf(f)\n",
        "class B:\n    def __init__(self): B()\nB()\n",
        "from train import *\nimport train\n",
        "def d(n=10**9): return [n] * n\nd()\n",
    ],
)
def test_hostile_scripts_end(text: str) -> None:
    with pytest.raises(RequestError):
        reading(text + "SFTConfig\n")


def test_arguments_of_a_document_or_of_a_class_that_is_not_here_are_followed() -> None:
    document = """\
import other

@dataclass
class Own(other.TrainingArguments):
    per_device_train_batch_size: int = 2

parser = HfArgumentParser((Own,))
(args,) = parser.parse_dict(yaml.safe_load(open("own.yaml")))
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")
Trainer(model=model, args=args)
"""
    answer = reading(document, files={"own.yaml": "gradient_accumulation_steps: 4\n"},
                     given=GivenValues({"model_max_length": "1024"}))  # fmt: skip
    assert answer.request["training"]["global_batch_size"] == 2 * 4 * 8


def test_a_loop_over_calls_says_which_is_read() -> None:
    run = "for N in 1 2; do python train.py --batch $N; done\n"
    parser = "parser = argparse.ArgumentParser()\nparser.add_argument('--batch', type=int)\n"
    text = SFT.replace("batch_size=4", "batch_size=parser.parse_args().batch")
    text = text.replace("def main():", f"{parser}\ndef main():")
    answer = read({"run.sh": run, "train.py": IMPORTS + text}, parse_cluster("1x8xh100-sxm"))
    assert answer.request["plan"]["micro_batch_size"] == 2
    assert "of 2 calls of train.py in run.sh the last one is read" in answer.assumed


OWN_LENGTH = """\
@dataclass
class Arguments(TrainingArguments):
    lora_target: str = "q_proj"
    cutoff_len: int = 512

(args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
model = get_peft_model(AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-3B"), LoraConfig(r=8))
tokens = tokenizer(text, max_length=args.cutoff_len, truncation=True)
trainer = Trainer(model=model, args=args, train_dataset=tokens)
"""


def test_a_length_is_read_beside_the_names_of_llama_factory() -> None:
    words = "--per_device_train_batch_size 2 --cutoff_len 8192 --lora_target q_proj"
    files = {"run.sh": f"python train.py {words} --output_dir o\n"}
    answer = read({**files, "train.py": IMPORTS + OWN_LENGTH}, parse_cluster("1x8xh100-sxm"))
    assert answer.request["training"]["seq_length"] == 8192


@pytest.mark.parametrize(
    "launcher", ["torchrun --nproc_per_node 2", "accelerate launch --num_processes 2"]
)
def test_a_script_shares_its_batch_among_the_processes_of_its_launcher(launcher: str) -> None:
    shares = "16 // int(os.environ.get('WORLD_SIZE', 1))"
    text = PLAIN.replace('"out",', f'"out", gradient_accumulation_steps={shares},')
    files = {"run.sh": f"{launcher} train.py\n", "train.py": f"import os\n{text}"}
    plan = read(files, parse_cluster("8x8xh100-sxm")).request
    assert plan["training"]["global_batch_size"] == 2 * 8 * plan["plan"]["micro_batch_size"]


def test_what_a_filter_may_let_through_is_not_left_out() -> None:
    text = (
        "known = inspect.signature(SFTConfig.__init__).parameters\n"
        "said = dict(per_device_train_batch_size=2, gradient_accumulation_steps=4, warmup=None)\n"
        "said = {k: v for k, v in said.items() if k in known}\n"
        "said = {k: v for k, v in said.items() if v}\n"
        "SFTTrainer(model='gpt2', args=SFTConfig('x', max_length=64, **said))\n"
    )
    request = reading(IMPORTS + text).request
    assert request["training"]["global_batch_size"] == 64
    assert request["plan"]["micro_batch_size"] == 2


def test_what_a_library_is_asked_to_know_is_set() -> None:
    text = (
        "said = dict(per_device_train_batch_size=2)\n"
        "if 'max_length' in inspect.signature(SFTConfig).parameters:\n"
        "    said['max_length'] = 77\n"
        "def known(name):\n"
        "    if name in {one.value for one in OptimizerNames}:\n"
        "        return name\n"
        "    return 'adamw_torch'\n"
        "SFTTrainer(model='gpt2', args=SFTConfig('x', optim=known('paged_adamw_8bit'), **said))\n"
    )
    request = reading(IMPORTS + text).request
    assert request["training"]["seq_length"] == 77
    assert request["training"]["optimizer"] == "paged_adam_8bit"


def test_pairs_of_what_is_not_known_are_not_known() -> None:
    text = (
        "said = {k: v for k, v in load(args).items()}\n"
        "SFTTrainer(model='gpt2', args=SFTConfig('x', max_length=64, **said))\n"
    )
    assert "** of SFTConfig is said: known only at run time" in said(reading(IMPORTS + text))


def test_arguments_that_set_nothing_beside_no_trainer_train_nothing() -> None:
    text = "args = SFTConfig(output_dir='x', hub_model_id='a/b')\nrun(args, 'Qwen/Qwen2.5-7B')\n"
    assert "it makes no arguments of a Trainer" in why(IMPORTS + text)


def test_fields_that_are_set_by_unknown_names_are_said() -> None:
    text = (
        "class Config:\n    batch: int = 4\n\n"
        "def load(path):\n    cfg = Config()\n    for key, value in fetch(path).items():\n"
        "        if hasattr(cfg, key):\n            setattr(cfg, key, value)\n    return cfg\n\n"
        "cfg = load('a')\nSFTTrainer(model='gpt2', args=SFTConfig('x', max_length=64,"
        " per_device_train_batch_size=cfg.batch))\n"
    )
    assert "fields of Config have their defaults" in said(reading(IMPORTS + text))


def test_a_configuration_that_a_function_not_here_loads_is_read() -> None:
    text = (
        "from utils import load_config\nconfig = load_config('configs/train.yaml')\n"
        "SFTTrainer(model='gpt2', args=SFTConfig('x', max_length=64, **config['training']))\n"
    )
    files = {"train.yaml": "training:\n  per_device_train_batch_size: 4\n  save_steps: 5\n"}
    assert reading(IMPORTS + text, files=files).request["training"]["global_batch_size"] == 32


@pytest.mark.parametrize(("length", "read_as"), [("512", 512), ("131072", 131072), ("100_000", 0)])
def test_a_length_without_an_end_is_none(length: str, read_as: int) -> None:
    text = (
        f"tokenizer = AutoTokenizer.from_pretrained('gpt2')\ntokenizer.model_max_length = {length}"
        "\nTrainer(model=AutoModelForCausalLM.from_pretrained('gpt2'),"
        " args=TrainingArguments('x', per_device_train_batch_size=2))\n"
    )
    if read_as:
        assert reading(IMPORTS + text).request["training"]["seq_length"] == read_as
    else:
        assert "leaves out the sequence length" in why(IMPORTS + text)
