"""Defaults of the checkout or of the program that a launch starts, not those of today's release."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.read_results import Reading
from planner.frameworks.sources import framework_of, launch_at, launch_files, reading_of
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.trainer_scripts import BATCH, MODEL

MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --vocab-size 32000 --bf16"
)
PARSER = """\
def _add_network_size_args(parser):
    group.add_argument('--num-attention-heads', type=int, default=None)
    group.add_argument('--tensor-model-parallel-size', type=int, default=1)
"""
OPTION = """\
    group.add_argument('--transformer-impl', default='{}',
                       choices=['local', 'transformer_engine'])
"""
UNFUSED = "--transformer-impl local has unfused attention"
FACTORY = "model_name_or_path: meta-llama/Llama-2-7b-hf\nstage: sft\nfinetuning_type: full\n"
DATA_ARGUMENTS = """\
@dataclass
class DataArguments:
    cutoff_len: int = field(
        default={},
        metadata={{"help": "The cutoff length of the tokenized inputs in the dataset."}},
    )
"""
LENGTHS = f"{MODEL} {BATCH} --bf16 True"


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """So deep that no folder above it, in which names are looked for too, is someone else's."""
    folder = tmp_path / "in" / "these" / "folders"
    folder.mkdir(parents=True)
    return folder


def at(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The files of the first one's launch, with those that are found near it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return launch_at([str(folder / next(iter(files)))])[0]


def reading(files: dict[str, str]) -> Reading:
    known = launch_files(files)
    return reading_of(framework_of(known, None), known, 8)


def answer(files: dict[str, str]) -> ReadAnswer:
    return read(files, parse_cluster("1x8xh100-sxm"))


@pytest.mark.parametrize("path", ["megatron/arguments.py", "megatron/training/arguments.py"])
@pytest.mark.parametrize(
    ("parser", "kernel"),
    [
        (PARSER, "unfused"),  # from before Transformer Engine
        (PARSER + OPTION.format("local"), "unfused"),
        (PARSER + OPTION.format("transformer_engine"), "flash"),
        ("def _add_other_args(parser):\n    pass\n", "flash"),  # not Megatron's
    ],
)
def test_attention_is_that_of_the_checkout(
    path: str, parser: str, kernel: str, tmp_path: Path
) -> None:
    files = at(tmp_path, {"run.sh": MEGATRON, path: parser})
    assert list(files) == ["run.sh", "arguments.py"]
    found = reading(files)
    assert found.plan.attention_kernel == kernel
    assert (UNFUSED in found.assumed) is (kernel == "unfused")
    assert reading({"run.sh": MEGATRON}).plan.attention_kernel == "flash"


@pytest.mark.parametrize("option", ["--use-flash-attn", "--transformer-impl transformer_engine"])
def test_an_option_of_the_launch_counts_more(option: str, tmp_path: Path) -> None:
    files = at(tmp_path, {"run.sh": f"{MEGATRON} {option}\n", "megatron/arguments.py": PARSER})
    assert "arguments.py" in files
    assert reading(files).plan.attention_kernel == "flash"


def test_a_checkout_is_that_of_the_program(tmp_path: Path) -> None:
    """Beside the script or the folders above it, or where the program lies; no other."""
    parser = {"megatron/arguments.py": PARSER}
    assert "arguments.py" in at(tmp_path / "a", {"examples/run.sh": MEGATRON, **parser})
    inside = MEGATRON.replace("pretrain_gpt.py", "core/pretrain_gpt.py")
    found = at(tmp_path / "b", {"run.sh": inside, "core/megatron/arguments.py": PARSER})
    assert "arguments.py" in found
    assert list(at(tmp_path / "c", {"run.sh": MEGATRON, "own/arguments.py": PARSER})) == ["run.sh"]
    other = "torchrun --nproc_per_node 8 train.py\n"
    assert list(at(tmp_path / "d", {"run.sh": other, **parser})) == ["run.sh"]


@pytest.mark.parametrize("package", ["llamafactory", "llmtuner"])
@pytest.mark.parametrize(
    ("default", "length", "whose"),
    [("1024", 1024, "the checkout"), ("4096", 4096, "the checkout"), ("None", 2048, "LLaMA-")],
)
def test_cutoff_len_is_that_of_the_checkout(
    package: str, default: str, length: int, whose: str, tmp_path: Path
) -> None:
    checkout = {f"src/{package}/hparams/data_args.py": DATA_ARGUMENTS.format(default)}
    found = answer(at(tmp_path, {"examples/train.yaml": FACTORY, **checkout}))
    assert found.request["training"]["seq_length"] == length
    assert f"cutoff_len: not set, {length} as in {whose}" in str(found.assumed)


def test_cutoff_len_of_a_call_and_a_stated_one(tmp_path: Path) -> None:
    checkout = {"src/llamafactory/hparams/data_args.py": DATA_ARGUMENTS.format(777)}
    stated = answer(at(tmp_path / "a", {"train.yaml": f"{FACTORY}cutoff_len: 333\n", **checkout}))
    assert stated.request["training"]["seq_length"] == 333
    call = f"llamafactory-cli train --stage sft --finetuning_type full {LENGTHS}\n"
    called = answer(at(tmp_path / "b", {"examples/run.sh": call, **checkout}))
    assert called.request["training"]["seq_length"] == 777


@pytest.mark.parametrize(
    "program",
    ["trl/scripts/sft.py", "trl/examples/scripts/dpo.py", "/a/trl/trl/scripts/reward_modeling.py"],
)
def test_scripts_of_trl_have_its_length(program: str) -> None:
    found = answer({"run.sh": f"torchrun --nproc_per_node 8 {program} {LENGTHS}\n"})
    assert found.request["training"]["seq_length"] == 1024
    assert "model_max_length 1024: not set, as in TRL" in found.assumed


@pytest.mark.parametrize("program", ["scripts/sft.py", "mytrl/scripts/sft.py", "trl/scripts/x.py"])
def test_scripts_of_others_are_asked_for_it(program: str) -> None:
    with pytest.raises(RequestError, match="leaves out the sequence length"):
        answer({"run.sh": f"torchrun --nproc_per_node 8 {program} {LENGTHS}\n"})


def of_program(constants: str, options: str = "") -> ReadAnswer:
    program = f"from transformers import Trainer\n{constants}\n"
    script = f"torchrun --nproc_per_node 8 own/train.py {LENGTHS} {options}\n"
    return answer({"run.sh": script, "train.py": program})


@pytest.mark.parametrize(
    ("constants", "length"),
    [
        ("MAX_LENGTH = 768", 768),
        ("MAX_SEQ_LEN: int = 640", 640),
        ("CUTOFF_LEN = 512  # tokens", 512),
        ("def main():\n    max_seq_length = 300", 300),
        ("MAX_LENGTH = 768\nMAX_LENGTH = 768", 768),
        ("# MAX_LENGTH = 512\nMAX_LENGTH = 768", 768),
    ],
)
def test_a_constant_of_the_program_is_its_length(constants: str, length: int) -> None:
    found = of_program(constants)
    assert found.request["training"]["seq_length"] == length
    assert "of train.py, its only length" in str(found.assumed)
    stated = of_program(constants, "--model_max_length 256")
    assert stated.request["training"]["seq_length"] == 256
    assert "its only length" not in str(stated.assumed)


@pytest.mark.parametrize(
    "constants",
    [
        "MAX_LENGTH = 768\nMAX_LENGTH = 512",
        "MAX_LENGTH = 768\nCUTOFF_LEN = 512",
        "# MAX_LENGTH = 768",
        "MAX_LENGTH = 7",
        "MAX_LENGTH = 10_000_000",
        "MAX_LENGTH = LONG",
        "MY_MAX_LENGTH = 768",
        "MAX_LENGTH == 768",
    ],
)
def test_several_lengths_or_none_give_none(constants: str) -> None:
    with pytest.raises(RequestError, match="leaves out the sequence length"):
        of_program(constants)


@pytest.mark.parametrize("stated", ["768 * 2", "768.5", "768,", "768 if small else 512"])
def test_a_number_of_an_expression_is_no_length(stated: str) -> None:
    with pytest.raises(RequestError, match="leaves out the sequence length"):
        of_program(f"MAX_LENGTH = {stated}")
