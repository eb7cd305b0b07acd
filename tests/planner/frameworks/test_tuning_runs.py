"""Launch files of the trainers run as they are, on a CPU, with tiny weights: three steps each."""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cost_models.spec import ModelSpec
from planner import frameworks
from planner.answers.reinforcement.emission import files
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.constraints import Context
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.accelerate.settings import config_json
from planner.inputs.logs.rl_steps import read_steps
from tests.fixtures import tuning
from tests.fixtures.frameworks.accelerate import COPIES, QWEN3
from tests.fixtures.frameworks.torchtune import KEPT, MISTRAL, runs
from tests.fixtures.launches import MODELS, launch, written
from tests.tools.checkouts import checkout

pytestmark = pytest.mark.exhaustive

NARROW: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_query_groups": 2, "head_dim": 16, "ffn_hidden_size": 96,
}  # fmt: skip
MODELS_HERE = {
    name: ModelSpec(**{**model.model_dump(), **NARROW})
    for name, model in (("llama", MODELS["llama"]), ("qwen3", QWEN3), ("mistral", MISTRAL))
}
# As many tokens as the special ones of its tokenizer need.
MODELS_HERE["qwen3"] = MODELS_HERE["qwen3"].model_copy(update={"vocab_size": 151936})
SMALL: dict[str, Any] = {"seq_length": 512, "global_batch_size": 4}
TRAININGS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora_rank": 4, "lora_targets": NAMES},
    "dpo": {"lora_rank": 4, "lora_targets": NAMES, "loss": "dpo"},
    "full-dpo": {"loss": "dpo"},
}
STEPS = 3
ORACLES = Path(__file__).parents[2] / "oracles"


def started(folder: Path, main: Path, words: list[str], **variables: str) -> str:
    """What bash prints of the launch script with these further words."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    usual = {"PATH": path, "MODEL": str(folder / "model"), "HF_HUB_OFFLINE": "1",
             "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "home")}  # fmt: skip
    result = subprocess.run(
        ["bash", main, *words],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=folder,
        env={**os.environ, **usual, **variables},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout + result.stderr


def three_finite(losses: list[str]) -> None:
    assert len(losses) == STEPS, losses
    assert all(math.isfinite(float(loss)) for loss in losses)


def free_port() -> int:
    """A port that nothing listens on: all ranks of torchtune are told the same one."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port: int = one.getsockname()[1]
        return port


def beside(*checkouts: Path) -> str:
    """PYTHONPATH with these in front of what it has, which is what a checkout imports."""
    return ":".join([*map(str, checkouts), os.environ.get("PYTHONPATH", "")])


def made(folder: Path, model: ModelSpec) -> None:
    case = launch(model, (1, 1), training=SMALL, **COPIES)
    config, _ = config_json(Context(case[0].model, case[0].cluster, case[0].training))
    tuning.weights(folder / "model", config)
    tuning.samples(folder)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("model", MODELS_HERE)
def test_trl_takes_three_steps(model: str, training: str, tmp_path: Path) -> None:
    made(tmp_path, MODELS_HERE[model])
    pairs = "dpo" in training
    case = launch(
        MODELS_HERE[model],
        (1, 1),
        training={**SMALL, **TRAININGS[training]},
        **{**COPIES, "cross_entropy": "unfused" if pairs else "chunked"},
        micro_batch_size=2,
    )
    main = written(tmp_path, frameworks.get("trl").write(*case))
    trained_by_trl(tmp_path, main, dataset_name=tmp_path / ("pairs" if pairs else "talks"))


def trained_by_trl(folder: Path, main: Path, **said: object) -> str:
    """What TRL prints of three steps on a CPU, with these keys in place of the file's."""
    own = checkout("huggingface/trl")
    # It names its own version in what it saves, as an installed package has it.
    version = (own / "VERSION").read_text().strip()
    package = folder / f"trl-{version}.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    usual = {"max_steps": STEPS, "logging_steps": 1, "use_cpu": True, "report_to": "none"}
    words = [word for key, value in {**said, **usual}.items() for word in (f"--{key}", str(value))]
    told = started(folder, main, words, PYTHONPATH=beside(own, folder))
    three_finite(re.findall(r"'loss': '?(-?[\d.e+-]+|nan|inf)", told))
    return told


@pytest.mark.parametrize(("batch", "generated"), [(16, 3), (8, 2)])
def test_trl_generates_responses_and_takes_three_steps(
    batch: int, generated: int, tmp_path: Path
) -> None:
    """Three optimizer steps of GRPO on 16 responses each time, by transformers' own generation."""
    reference = batch == 16
    made(tmp_path, MODELS_HERE["llama"])
    (tmp_path / "rewards.py").write_text(
        "def length(completions, **columns):\n"
        "    return [float(len(said[0]['content'])) for said in completions]\n"
    )
    step = {
        "trainer": "trl", "prompts": 4, "samples": 4, "prompt_tokens": 16, "response_tokens": 12,
        "max_response_tokens": 24, "reference": reference,
    }  # fmt: skip
    asked = {
        "model": MODELS_HERE["llama"].model_dump(),
        "cluster": "1x1xh100-sxm",
        "training": {"global_batch_size": batch},
        "search": {"micro_batch_size": 2, "compile": False},
        "reinforcement": step,
    }
    main = written(tmp_path, files(parse_reinforcement(asked)))
    # Neither vLLM nor Liger's kernels run on a CPU.
    told = trained_by_trl(
        tmp_path, main, dataset_name=tmp_path / "prompts", reward_funcs="rewards.length",
        use_vllm=False, use_liger_kernel=False,
    )  # fmt: skip
    assert len(re.findall(r"'completions/mean_length'", told)) == generated
    assert ("'kl'" in told) is reference
    measured = read_steps(told.splitlines(), "trl.log")
    assert measured.trainer == "TRL"
    assert measured.step_time_s
    assert 0 < (measured.response_tokens or 0) <= 24


CASES = [
    *((model, training, (1, 1)) for model in MODELS_HERE for training in ("full", "lora")),
    ("llama", "full", (1, 2)),
    ("llama", "lora", (1, 2)),
]


@pytest.mark.parametrize(("model", "training", "shape"), CASES)
def test_torchtune_takes_three_steps(
    model: str, training: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    made(tmp_path, MODELS_HERE[model])
    own = checkout("pytorch/torchtune")
    said = {**SMALL, **KEPT, **TRAININGS[training]}
    main = written(
        tmp_path,
        frameworks.get("torchtune").write(*runs(MODELS_HERE[model], shape, training=said)),
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tune").write_text(
        f'#!/bin/bash\nexec {sys.executable} -m torchtune._cli.tune "$@"\n'
    )
    (tmp_path / "bin" / "tune").chmod(0o755)
    words = [
        "device=cpu", f"max_steps_per_epoch={STEPS}", f"output_dir={tmp_path / 'output'}",
        "dataset.source=json", f"dataset.data_files={tmp_path / 'alpaca' / 'train.jsonl'}",
    ]  # fmt: skip
    # Every process finds the checkout and what stands in for torchvision.  Its barriers name the
    # index of a device, and it asks for the memory in use: a CPU has neither.
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(ORACLES)!r})\n"
        f"import torchtune_check\ntorchtune_check.found({str(own)!r})\n"
        "from torch import distributed\nwait = distributed.barrier\n"
        "distributed.barrier = lambda *words, **more: wait()\n"
        "from torchtune import training\n"
        "training.get_memory_stats = lambda *words, **more: {}\n"
        "training.log_memory_stats = lambda *words, **more: None\n"
        "training.cleanup_before_training = lambda: None\n"
    )
    started(tmp_path, main, words, PYTHONPATH=beside(tmp_path), MASTER_PORT=str(free_port()))
    (log,) = (tmp_path / "output" / "logs").glob("log_*.txt")
    three_finite(re.findall(r"loss:([\d.e+-]+|nan|inf)", log.read_text()))
