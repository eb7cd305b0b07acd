"""What GPT-NeoX itself says to configs, on a machine without accelerators.

    GPT_NEOX_PATH=<a checkout> python tests/oracles/gpt_neox_check.py < questions > answers

One question per line, a JSON object: `config` (the YAML) and `world_size`.  One answer per line, a
JSON object: `error` (empty where NeoXArgs takes the config), and what it derives: its degrees,
batches, precision, and the configuration that it hands to DeepSpeed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import tempfile
import types
from typing import Any
from unittest.mock import MagicMock

import packaging.version

# What only training imports.
ABSENT = ("wandb", "boto3", "hf_transfer", "megatron.logging", "megatron.tokenizer", "megatron.mpu")


def prepare() -> Any:
    """NeoXArgs, without the packages that only training needs."""
    sys.path.insert(0, os.environ["GPT_NEOX_PATH"])
    # Its package imports the whole model; the arguments need none of it.
    package = types.ModuleType("megatron")
    package.__path__ = [os.environ["GPT_NEOX_PATH"] + "/megatron"]
    package.print_rank_0 = lambda *words: None  # type: ignore[attr-defined]
    sys.modules["megatron"] = package
    resources = types.ModuleType("pkg_resources")
    resources.packaging = packaging  # type: ignore[attr-defined]
    sys.modules["pkg_resources"] = resources
    for name in ABSENT:
        sys.modules.setdefault(name, MagicMock(name=name))
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "2.8.3" if name == "flash-attn" else version(name)
    from megatron.neox_arguments import NeoXArgs, arguments

    arguments.version = importlib.metadata.version
    return NeoXArgs


def answer(neox: Any, question: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (
            ("config.yml", question["config"]),
            ("world.yml", f"global_num_gpus: {question['world_size']}\n"),
        ):
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)
        try:
            made = neox.from_ymls([f"{folder}/config.yml", f"{folder}/world.yml"])
        except (Exception, SystemExit) as refused:
            return {"error": f"{type(refused).__name__}: {refused}"}
        if not made.validate_types() or not made.validate_values():
            return {"error": "its own validation fails"}
    return {
        "error": "",
        "model_parallel_size": made.model_parallel_size,
        "pipe_parallel_size": made.pipe_parallel_size,
        "train_batch_size": made.train_batch_size,
        "gradient_accumulation_steps": made.gradient_accumulation_steps,
        "precision": made.precision,
        "attention_config": sorted(set(made.attention_config)),
        "engine": made.deepspeed_config,
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    quiet = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(quiet.fileno(), 1)
    os.dup2(quiet.fileno(), 2)
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        neox = prepare()
        for line in sys.stdin:
            answers.write(json.dumps(answer(neox, json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
