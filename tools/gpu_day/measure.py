"""Trains each prepared run for a few steps on this GPU and writes what it took.

python measure.py FOLDER OUT [--only NAME,NAME] [--seconds 500]

Stands alone: needs torch, transformers, TRL and PEFT, and for some runs bitsandbytes or Liger.
Weights are random: only sizes and types matter to time and memory.  Each run has a process of its
own and fails alone; OUT/measured.json has all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

WARM, TIMED, TRACED = 3, 4, 2
MOST_KERNELS = 16
# Of kernels by their names, the first that matches.
CLASSES = (
    ("attention", r"flash|fmha|sdpa|attention"),
    ("dequantize", r"[dD]equantize"),
    ("optimizer", r"multi_tensor|[aA]dam|kOptimizer|kPreconditionOptimizer"),
    ("liger", r"^_?liger|_cross_entropy|_rms_norm|_swiglu|_rope|_layer_norm"),
    ("matmul", r"gemm|nvjet|cutlass|xmma|splitK|cublas"),
    ("softmax", r"[sS]oft[mM]ax|nll_loss"),
    ("copy", r"Memcpy|Memset|[cC]at|copy_kernel|direct_copy"),
    ("reduce", r"reduce|norm"),
    ("elementwise", r"elementwise|vectorized|unrolled"),
)


def kind_of(kernel: str) -> str:
    """The class of a kernel."""
    return next((kind for kind, pattern in CLASSES if re.search(pattern, kernel)), "other")


class Meter:
    """Time and memory of each step of a trainer, and the kernels of the last ones."""

    def __init__(self, torch: Any, cuda: bool) -> None:
        self.torch, self.cuda = torch, cuda
        self.steps: list[dict[str, float]] = []
        self.kernels: list[dict[str, Any]] = []
        self.now: dict[str, float] = {}
        self.profile: Any = None

    def mark(self, phase: str) -> None:
        """Memory at the end of a phase, its peak during it, and when it ended."""
        if self.cuda:
            self.torch.cuda.synchronize()
            self.now[f"{phase}_bytes"] = self.torch.cuda.memory_allocated()
            self.now[f"{phase}_peak_bytes"] = self.torch.cuda.max_memory_allocated()
            self.now["reserved_bytes"] = self.torch.cuda.max_memory_reserved()
            self.torch.cuda.reset_peak_memory_stats()
        self.now[f"{phase}_at_s"] = time.perf_counter()

    def begin(self) -> None:
        self.now = {}
        if len(self.steps) == WARM + TIMED:
            activities = [self.torch.profiler.ProfilerActivity.CPU]
            if self.cuda:
                activities = [self.torch.profiler.ProfilerActivity.CUDA]
            self.profile = self.torch.profiler.profile(activities=activities)
            self.profile.__enter__()
        self.mark("begin")

    def end(self) -> None:
        self.mark("end")
        self.steps.append(self.now)
        if self.profile is not None and len(self.steps) == WARM + TIMED + TRACED:
            self.profile.__exit__(None, None, None)
            self.kernels = self._kernels()

    def _kernels(self) -> list[dict[str, Any]]:
        found = [
            {
                "name": one.key[:160],
                "kind": kind_of(one.key),
                "per_step": one.count / TRACED,
                "seconds": getattr(one, "self_device_time_total", 0) / TRACED / 1e6,
            }
            for one in self.profile.key_averages()
        ]
        return sorted((one for one in found if one["seconds"] > 0), key=lambda one: -one["seconds"])


def prepared_model(
    run: dict[str, Any], of_model: Any, folder: Path, checkpoints: Path, cuda: bool
) -> tuple[Any, dict[str, Any]]:
    """The model with random weights, and what its loading took.

    What is quantized has to be loaded, as people do, from a checkpoint: written here once.
    """
    torch, transformers, trl = (import_module(name) for name in ("torch", "transformers", "trl"))
    path = folder / f"{run['request']['model']}.json"
    config = transformers.AutoConfig.for_model(**json.loads(path.read_text()))
    config.use_cache = False
    wanted = {
        "dtype": getattr(torch, of_model.dtype),
        "attn_implementation": of_model.attn_implementation,
    }

    def fresh() -> Any:
        with torch.device("cuda" if cuda else "cpu"):
            return transformers.AutoModelForCausalLM.from_config(config, **wanted)

    quantized, facts = trl.get_quantization_config(of_model), {}
    if quantized is None:
        model = fresh()
    else:
        where = checkpoints / run["request"]["model"]
        if not where.exists():
            fresh().save_pretrained(where)
            if cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        model = transformers.AutoModelForCausalLM.from_pretrained(
            where, quantization_config=quantized, device_map={"": 0} if cuda else None, **wanted
        )
        facts["load_s"] = time.perf_counter() - began
    if cuda:
        facts["loaded_bytes"] = torch.cuda.memory_allocated()
        facts["loading_peak_bytes"] = torch.cuda.max_memory_allocated()
    return model, facts


def metered(trainer: Any, meter: Meter) -> tuple[type, Any]:
    """A kind of the trainer that marks the end of its forward pass, and a callback for the rest."""
    transformers = import_module("transformers")

    def compute_loss(self: Any, *given: Any, **named: Any) -> Any:
        loss = trainer.compute_loss(self, *given, **named)
        meter.mark("forward")
        return loss

    moments = {
        "on_step_begin": meter.begin,
        "on_pre_optimizer_step": lambda: meter.mark("backward"),
        "on_optimizer_step": lambda: meter.mark("optimizer"),
        "on_step_end": meter.end,
    }
    calls = {name: (lambda *_, do=do, **__: do()) for name, do in moments.items()}
    probe = type("Probe", (transformers.TrainerCallback,), calls)()
    return type("Metered", (trainer,), {"compute_loss": compute_loss}), probe


def adapted(model: Any, adapters: Any, quantized: bool, recomputes: bool) -> Any:
    """The model with PEFT's adapters, as its own examples prepare it."""
    if adapters is None:
        return model
    peft = import_module("peft")
    if quantized:
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=recomputes)
    model = peft.get_peft_model(model, adapters)
    if recomputes:
        model.enable_input_require_grads()
    return model


def trained(run: dict[str, Any], folder: Path, checkpoints: Path, meter: Meter) -> dict[str, Any]:
    """Runs the steps; the meter has what they took.  Answers what the model is made of."""
    names = ("torch", "transformers", "trl", "datasets", "tokenizers")
    torch, transformers, trl, datasets, tokenizers = (import_module(name) for name in names)
    keys, steps = dict(run["trainer"]), WARM + TIMED + TRACED
    own = set(trl.ModelConfig.__dataclass_fields__) - set(trl.SFTConfig.__dataclass_fields__)
    of_model = trl.ModelConfig(**{name: keys.pop(name) for name in own if name in keys})
    model, facts = prepared_model(run, of_model, folder, checkpoints, meter.cuda)
    adapters = trl.get_peft_config(of_model)
    rows = steps * keys["per_device_train_batch_size"], run["request"]["seq_length"]
    tokens = torch.randint(2, model.config.vocab_size, rows).tolist()
    keys |= {
        "output_dir": "/tmp/gpu-day-output", "max_steps": steps, "report_to": "none",
        "save_strategy": "no", "logging_steps": steps, "use_cpu": not meter.cuda,
        "disable_tqdm": True,
    }  # fmt: skip
    if run["program"] == "trl":
        words = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>")
        )
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
        )
        make, probe = metered(trl.SFTTrainer, meter)
        data = datasets.Dataset.from_dict({"input_ids": tokens})
        trainer = make(
            model=model, args=trl.SFTConfig(**keys), processing_class=tokenizer,
            train_dataset=data, peft_config=adapters, callbacks=[probe],
        )  # fmt: skip
    else:
        quantized = trl.get_quantization_config(of_model) is not None
        model = adapted(model, adapters, quantized, keys["gradient_checkpointing"])
        make, probe = metered(transformers.Trainer, meter)
        data = datasets.Dataset.from_dict({"input_ids": tokens, "labels": tokens})
        trainer = make(
            model=model, args=transformers.TrainingArguments(**keys), train_dataset=data,
            callbacks=[probe],
        )  # fmt: skip
    if meter.cuda:
        facts["prepared_bytes"] = torch.cuda.memory_allocated()
    trainer.train()
    kinds: dict[str, dict[str, float]] = defaultdict(lambda: {"parameters": 0, "bytes": 0})
    for one in trainer.model.parameters():
        kind = f"{'trained' if one.requires_grad else 'frozen'} {one.dtype}".replace("torch.", "")
        kinds[kind]["parameters"] += one.numel()
        kinds[kind]["bytes"] += one.numel() * one.element_size()
    return {**facts, "parameters": dict(kinds)}


def summary(meter: Meter) -> dict[str, Any]:
    """Medians of the timed steps; peaks of all but the first; kernels of a step by class."""
    timed = meter.steps[WARM : WARM + TIMED]

    def seconds(after: str, before: str) -> float:
        spans = sorted(one[f"{after}_at_s"] - one[f"{before}_at_s"] for one in timed)
        return spans[len(spans) // 2]

    measured: dict[str, Any] = {
        "step_s": seconds("end", "begin"),
        "forward_s": seconds("forward", "begin"),
        "backward_s": seconds("backward", "forward"),
        "optimizer_s": seconds("optimizer", "backward"),
        "steps_s": [one["end_at_s"] - one["begin_at_s"] for one in meter.steps],
    }
    if meter.cuda:
        names = [name for name in timed[-1] if name.endswith("_bytes")]
        measured["memory"] = {name: max(one[name] for one in timed) for name in names}
        measured["allocated_bytes"] = max(
            value for name, value in measured["memory"].items() if name.endswith("_peak_bytes")
        )
    by_kind: dict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0, "launches": 0})
    for one in meter.kernels:
        by_kind[one["kind"]]["seconds"] += one["seconds"]
        by_kind[one["kind"]]["launches"] += one["per_step"]
    return {**measured, "kernels_by_kind": dict(by_kind), "kernels": meter.kernels[:MOST_KERNELS]}


def one_run(run: dict[str, Any], folder: Path, out: Path, checkpoints: Path) -> int:
    """Trains one run in this process and writes OUT/NAME.json; 1, and the error there, if it fails.

    Whatever a library raises is that run's result: the others go on.
    """
    began = time.perf_counter()
    result: dict[str, Any] = {"name": run["name"], "trainer": run["trainer"]}
    try:
        import torch

        meter = Meter(torch, torch.cuda.is_available())
        result |= trained(run, folder, checkpoints, meter)
        result |= summary(meter)
    except Exception:
        traceback.print_exc()
        result["error"] = traceback.format_exc()[-3000:]
    result["wall_s"] = time.perf_counter() - began
    (out / f"{run['name']}.json").write_text(json.dumps(result, indent=1))
    if "error" in result:
        return 1
    gib = result.get("allocated_bytes", 0) / 2**30
    took = f"{result['step_s']:.4f} s, {gib:.2f} GiB  ({result['wall_s']:.0f} s)"
    print(f"{run['name']:20} {took}", flush=True)
    return 0


def environment() -> dict[str, Any]:
    """What was measured on and with; asked in a process of its own."""
    import importlib.metadata as installed

    import torch

    names = ("torch", "transformers", "trl", "peft", "bitsandbytes", "liger_kernel", "accelerate")
    found = {}
    for name in names:
        try:
            found[name] = installed.version(name)
        except installed.PackageNotFoundError:
            continue
    cuda = torch.cuda.is_available()
    properties = torch.cuda.get_device_properties(0) if cuda else None
    return {
        "device": properties.name if properties else "cpu",
        "device_bytes": properties.total_memory if properties else None,
        "used_bytes_before": torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
        if cuda
        else None,
        "measured_on": time.strftime("%Y-%m-%d"),
        "versions": found,
    }


def apart(arguments: list[str], seconds: float) -> str:
    """Starts this file again with the arguments; answers what went wrong, if anything did."""
    command = [sys.executable, __file__, *arguments]
    try:
        code = subprocess.run(command, timeout=max(seconds, 1), check=False).returncode
    except subprocess.TimeoutExpired:
        return "ended: out of time"
    return f"ended with exit code {code}" if code else ""


def main() -> int:
    """Runs what is asked for, in order, until the time is over; 1 if a run has no result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--one", help="train this run in this process")
    parser.add_argument("--environment", action="store_true", help="write what this machine is")
    parser.add_argument("--seconds", type=float, default=500)
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    runs = {
        one["name"]: one for one in json.loads((given.folder / "runs.json").read_text())["runs"]
    }
    only = [given.one] if given.one else given.only.split(",") if given.only else list(runs)
    if unknown := [name for name in only if name not in runs]:
        parser.error(f"no run {', '.join(unknown)}; there are {', '.join(runs)}")
    checkpoints = Path("/dev/shm/gpu-day")
    if given.one:
        return one_run(runs[given.one], given.folder, given.out, checkpoints)
    if given.environment:
        (given.out / "environment.json").write_text(json.dumps(environment(), indent=1))
        return 0
    places = [str(given.folder), str(given.out)]
    failed = [apart([*places, "--environment"], 60)]
    for name in only:
        left = until - time.monotonic()
        failed.append(apart([*places, "--one", name], left) if left > 0 else "left out: no time")
        if failed[-1]:
            print(f"{name:20} {failed[-1]}", flush=True)
    shutil.rmtree(checkpoints, ignore_errors=True)
    found = {path.stem: json.loads(path.read_text()) for path in given.out.glob("*.json")}
    found.pop("measured", None)
    together = {"environment": found.pop("environment", {}), "runs": found}
    (given.out / "measured.json").write_text(json.dumps(together, indent=1))
    return int(any(failed))


if __name__ == "__main__":
    sys.exit(main())
