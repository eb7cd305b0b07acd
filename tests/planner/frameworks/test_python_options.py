"""Where a Python script takes its settings from: command lines, configurations, other modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.answers.lint.lint import read
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.sources import launch_at
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.python_scripts import IMPORTS, SFT, reading, said, why

OPTIONS = """\
def parse():
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("model")
    group.add_argument("--model-name", "-m", default="Qwen/Qwen3-8B")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--no-bf16", dest="bf16", action="store_false")
    parser.add_argument("--targets", nargs="+", default=["q_proj"])
    return parser.parse_args()

args = parse()
config = SFTConfig("out", per_device_train_batch_size=args.batch_size, bf16=args.bf16,
                   max_length=args.length)
trainer = SFTTrainer(args.model_name, args=config,
                     peft_config=LoraConfig(target_modules=args.targets))
"""


def test_options_of_argparse_by_their_defaults_and_by_what_is_given() -> None:
    asked = why(OPTIONS)
    assert "--set model_max_length=..." in asked
    given = GivenValues(arguments=("--length=4096", "-m", "Qwen/Qwen3-4B", "--targets", "q_proj",
                                   "o_proj", "--no-bf16"))  # fmt: skip
    answer = reading(OPTIONS, given=given)
    training = answer.request["training"]
    assert (training["seq_length"], training["lora_targets"]) == (4096, ["q_proj", "o_proj"])
    assert answer.request["model"]["num_layers"] == 36
    assert "neither bf16 nor fp16 is on" in said(answer)
    by_set = GivenValues({"model_max_length": "1024", "per_device_train_batch_size": "3"})
    answer = reading(OPTIONS, given=by_set)
    assert answer.request["training"]["seq_length"] == 1024
    assert answer.request["plan"]["micro_batch_size"] == 3


def test_options_of_argparse_may_be_cut_short() -> None:
    given = GivenValues(arguments=("--len", "4096", "--batch=6", "--model", "Qwen/Qwen3-4B"))
    request = reading(OPTIONS, given=given).request
    assert request["training"]["seq_length"] == 4096
    assert (request["plan"]["micro_batch_size"], request["model"]["num_layers"]) == (6, 36)
    whole = OPTIONS.replace("ArgumentParser()", "ArgumentParser(allow_abbrev=False)")
    assert "--set model_max_length=..." in why(whole, given=given)
    twice = OPTIONS.replace('"--length"', '"--length-of-prompt", type=int, default=1)\n'
                            '    parser.add_argument("--length"')  # fmt: skip
    assert "--set model_max_length=..." in why(twice, given=given)


def test_a_script_is_read_with_the_options_of_the_call_that_starts_it() -> None:
    script = "torchrun --nproc_per_node 4 src/train.py --length 2048 --batch-size 16\n"
    files = {"run.sh": script, "train.py": IMPORTS + OPTIONS}
    request = read(files, parse_cluster("1x8xh100-sxm")).request
    assert (request["plan"]["dp"], request["plan"]["micro_batch_size"]) == (4, 16)
    assert request["training"]["seq_length"] == 2048
    module = {**files, "run.sh": script.replace("src/train.py", "-m src.train")}
    assert read(module, parse_cluster("1x8xh100-sxm")).request == request


DATACLASSES = """\
@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="facebook/opt-1.3b")
    lora: bool = False
    targets: list = field(default_factory=lambda: ["q_proj", "k_proj"])

@dataclass
class Arguments(TrainingArguments):
    model_max_length: int = field(default=768)
    optim: str = "adamw_torch"

def train():
    parser = HfArgumentParser((ModelArguments, Arguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    if model_args.lora:
        model = get_peft_model(model, LoraConfig(r=8, target_modules=model_args.targets))
    Trainer(model=model, args=training_args).train()

train()
"""


def test_dataclasses_with_transformers_own_arguments() -> None:
    answer = reading(DATACLASSES)
    assert answer.request["training"]["seq_length"] == 768
    assert answer.request["plan"]["micro_batch_size"] == 8
    assert "lora_rank" not in answer.request["training"]
    call = "deepspeed --num_gpus 2 train.py --lora true --per_device_train_batch_size 3 --bf16\n"
    files = {"run.sh": call, "train.py": IMPORTS + DATACLASSES}
    request = read(files, parse_cluster("1x8xh100-sxm")).request
    assert (request["plan"]["dp"], request["plan"]["micro_batch_size"]) == (2, 3)
    assert request["training"]["lora_targets"] == ["q_proj", "k_proj"]


def test_a_configuration_that_the_script_opens() -> None:
    text = """\
def load(path="configs/sft.yaml"):
    with open(path) as file:
        return yaml.safe_load(file)

cfg = load()
t = cfg["training"]
model = AutoModelForCausalLM.from_pretrained(cfg["model"].get("name", "gpt2"))
trainer = SFTTrainer(model=model, args=SFTConfig(
    "out", per_device_train_batch_size=t["batch"], max_length=t["length"], bf16=True,
    gradient_checkpointing=t.get("checkpoints", False)))
"""
    config = "model:\n  name: Qwen/Qwen2.5-0.5B\ntraining:\n  batch: 5\n  length: 300\n"
    request = reading(text, files={"sft.yaml": config}).request
    assert (request["training"]["seq_length"], request["plan"]["micro_batch_size"]) == (300, 5)
    assert request["plan"].get("recompute", "none") == "none"
    alone = why(text.replace('.get("name", "gpt2")', '["name"]'))
    assert "add --model NAME" in alone
    assert "what configs/sft.yaml, which is not among the files, says" in alone


def test_modules_and_configurations_beside_a_script_are_found(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "settings.py").write_text(
        'import transformers\nNAME = "Qwen/Qwen2.5-7B"\nclass Sizes:\n    batch = 6\n'
    )
    script = tmp_path / "train.py"
    script.write_text(
        IMPORTS + "from src.settings import NAME, Sizes\n"
        "SFTTrainer(model=NAME, args=SFTConfig('out', max_length=1024, bf16=True,\n"
        "           per_device_train_batch_size=Sizes.batch))\n"
    )
    files, where = launch_at([str(script)])
    assert set(files) == {"train.py", "settings.py"}
    assert [Path(one).name for one in where] == ["train.py", "settings.py"]
    request = read(files, parse_cluster("1x1xh100-sxm")).request
    assert request["plan"]["micro_batch_size"] == 6
    shell = tmp_path / "run.sh"
    shell.write_text("accelerate launch --num_processes 2 train.py\n")
    assert set(launch_at([str(shell)])[0]) == {"run.sh", "train.py", "settings.py"}


def test_a_module_that_only_opens_a_configuration_is_found(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(
        "import yaml\nwith open('own.yml') as file:\n    SAID = yaml.safe_load(file)\n"
    )
    (tmp_path / "own.yml").write_text("model: {name: Qwen/Qwen2.5-0.5B}\n")
    text = f"{IMPORTS}from settings import SAID\n{SFT}"
    text = text.replace('"Qwen/Qwen2.5-7B-Instruct"', 'SAID["model"]["name"]')
    (tmp_path / "train.py").write_text(text)
    files, _ = launch_at([str(tmp_path / "train.py")])
    answer = read(files, parse_cluster("1x8xh100-sxm"))
    assert answer.request["model"]["num_layers"] == 24


HYDRA = """\
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    tokenizer = AutoTokenizer.from_pretrained(cfg.model.name)
    model = AutoModelForCausalLM.from_pretrained(cfg.model.name)
    data = load().map(lambda x: tokenizer(x, truncation=True, max_length=cfg.max_len))
    Trainer(model=model, args=TrainingArguments(**cfg.train), train_dataset=data)

if __name__ == "__main__":
    main()
"""
CONF = {
    "config.yaml": "defaults:\n  - model: small\n  - train: default\n  - _self_\nmax_len: 1024\n"
    "train:\n  gradient_accumulation_steps: 4\n  output_dir: out/${model.name}\n",
    "model/small.yaml": "name: Qwen/Qwen2.5-0.5B\n",
    "model/default.yaml": "name: Qwen/Qwen2.5-7B\n",
    "train/default.yaml": "per_device_train_batch_size: ${batch}\nbf16: true\n",
}


@pytest.mark.parametrize(
    ("words", "layers", "length", "batch", "recompute"),
    [
        ("batch=2", 24, 1024, 2 * 4 * 8, "none"),
        ("model=default +batch=1 max_len=2048", 28, 2048, 4 * 8, "none"),
        (
            "train.per_device_train_batch_size=3 +train.gradient_checkpointing=true",
            24, 1024, 3 * 4 * 8, "full",
        ),
        ("--config-name other batch=2 max_len=512", 28, 512, 2 * 8, "none"),
    ],
)  # fmt: skip
def test_what_hydra_composes_is_followed(
    tmp_path: Path, words: str, layers: int, length: int, batch: int, recompute: str
) -> None:
    other = {"other.yaml": "defaults:\n  - model: default\n  - train: default\n"}
    for name, text in {**CONF, **other}.items():
        path = tmp_path / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "train.py").write_text(IMPORTS + HYDRA)
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node 8 train.py {words}\n")
    answer = read(launch_at([str(script)])[0], parse_cluster("1x8xh100-sxm"))
    training, plan = answer.request["training"], answer.request["plan"]
    assert answer.request["model"]["num_layers"] == layers
    assert (training["seq_length"], training["global_batch_size"]) == (length, batch)
    assert plan.get("recompute", "none") == recompute


CLICK = """\
import click, typer
app = typer.Typer()
{head}
def main(name{one}, batch_size{two}, length: int = 1024):
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name)
    data = load().map(lambda x: tokenizer(x, truncation=True, max_length=length))
    args = TrainingArguments("out", per_device_train_batch_size=batch_size)
    Trainer(model=model, args=args, train_dataset=data)

if __name__ == "__main__":
    {start}
"""
OF_CLICK = """\
@click.command()
@click.option("--name", default="Qwen/Qwen2.5-0.5B")
@click.option("-b", "--batch-size", type=int, default=2)
@click.option("--length", default=512)"""
OF_TYPER = ': str = typer.Option("Qwen/Qwen2.5-0.5B")', ": int = typer.Option(2)"


@pytest.mark.parametrize(
    ("head", "one", "two", "start", "usual"),
    [
        (OF_CLICK, "", "", "main()", 512),
        ("@app.command()", *OF_TYPER, "app()", 1024),
        ("", *OF_TYPER, "typer.run(main)", 1024),
    ],
)
def test_command_lines_of_click_and_typer_are_followed(
    head: str, one: str, two: str, start: str, usual: int
) -> None:
    text = CLICK.format(head=head, one=one, two=two, start=start)
    for words, batch, length in (("", 2, usual), ("--batch-size 4 --length 2048", 4, 2048)):
        run = f"torchrun --nproc_per_node 8 train.py {words}\n"
        answer = read({"run.sh": run, "train.py": IMPORTS + text}, parse_cluster("1x8xh100-sxm"))
        training = answer.request["training"]
        assert (training["global_batch_size"], training["seq_length"]) == (batch * 8, length)
        assert answer.request["model"]["num_layers"] == 24
