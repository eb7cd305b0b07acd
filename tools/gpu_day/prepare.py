"""Writes, before anything is measured, what is predicted of each run and the files that it needs.

python -m tools.gpu_day.prepare FOLDER [--cluster 1x1xh200]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

import planner
from cost_models.catalog.models import model as named_model
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.accelerate.settings import ATTENTION
from planner.frameworks.accelerate.trainer_keys import kept_in
from planner.frameworks.accelerate.trainers import runtime_of
from planner.huggingface.export.exporter import config_of

RUNS = Path(__file__).with_name("runs.yaml")
TRAINING = ("seq_length", "lora_rank", "frozen_dtype", "optimizer", "master_weights_dtype")
PLAN = ("recompute", "attention_kernel")
DROPOUT = 0.05  # of TRL's ModelConfig unless told otherwise


def runs() -> list[dict[str, Any]]:
    """The runs of runs.yaml, each with its program and the keys of its trainer."""
    found: list[dict[str, Any]] = yaml.safe_load(RUNS.read_text())
    for run in found:
        run.setdefault("program", "transformers")
        run["trainer"] = trainer(run)
    return found


def document(run: dict[str, Any], cluster: str) -> dict[str, Any]:
    """The planner's request for one run; all of a step is one micro-batch."""
    request = run["request"]
    training = {name: request[name] for name in TRAINING if name in request}
    training["global_batch_size"] = request["batch"]
    if "lora_rank" in request:
        training |= {"lora_targets": NAMES, "lora_dropout": DROPOUT}
    own = "chunked" if run["program"] == "trl" else "unfused"
    plan = {name: request[name] for name in PLAN if name in request} | {
        "micro_batch_size": request["batch"],
        "runtime": runtime_of(run["trainer"]["optim"]),
        "zero_stage": 0,
        "cross_entropy": "liger" if run["trainer"].get("use_liger_kernel") else own,
    }
    if run["program"] == "trl" and "frozen_dtype" in request:
        training |= kept_in("bf16")
    elif "frozen_dtype" in request:  # measure.py prepares the model as PEFT does
        training["frozen_dtype"] = "nf4 and fp32"
    if request["recompute"] == "full":
        plan["recompute_num_layers"] = named_model(request["model"]).num_layers
    return {"model": request["model"], "cluster": cluster, "training": training, "plan": plan}


def trainer(run: dict[str, Any]) -> dict[str, Any]:
    """Keys of SFTConfig and ModelConfig, as TRL's launch files have them."""
    request = run["request"]
    rank = request.get("lora_rank", 0)
    keys: dict[str, Any] = {
        "dtype": "bfloat16" if rank else "float32",
        "attn_implementation": ATTENTION[request.get("attention_kernel", "flash")],
        "gradient_checkpointing": request["recompute"] == "full",
        "per_device_train_batch_size": request["batch"],
        "bf16": True,
        "optim": "adamw_torch",
    }
    if rank:
        keys |= {"use_peft": True, "lora_r": rank, "lora_target_modules": "all-linear"}
    if request.get("frozen_dtype") == "nf4":
        keys |= {"load_in_4bit": True, "use_bnb_nested_quant": True}
    if run["program"] == "trl":
        keys["max_length"] = request["seq_length"]
    keys |= run.get("trainer", {})
    return keys


def predicted(asked: dict[str, Any]) -> dict[str, Any]:
    """The numbers of an estimate that a run can be compared with."""
    one = planner.estimate(asked).estimate
    stage = one.memory.stages[0]
    return {
        "step_s": one.iteration_time_s,
        "step_s_80_percent": [one.error_band.low_s, one.error_band.high_s],
        "time_parts_s": {k: v for k, v in dict(one.time_parts_s).items() if v},
        "allocated_bytes": one.memory.allocated_bytes,
        "memory_parts_bytes": {k: v for k, v in dict(stage.parts).items() if v},
    }


def main() -> None:
    """Writes FOLDER/runs.json and a config.json for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", default="1x1xh200")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    prepared = runs()
    for run in prepared:
        run["predicted"] = predicted(document(run, given.cluster))
        model = run["request"]["model"]
        config = config_of(named_model(model))
        (given.folder / f"{model}.json").write_text(json.dumps(config, indent=1))
    text = json.dumps({"cluster": given.cluster, "version": planner.__version__, "runs": prepared})
    (given.folder / "runs.json").write_text(text)
    print(f"{len(prepared)} runs in {given.folder}")


if __name__ == "__main__":
    main()
