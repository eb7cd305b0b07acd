"""torchtitan's own verdict on registry modules, on a machine without an accelerator.

Read as JSON from standard input: a list of {"module": text, "world": ranks, "arguments": words,
"stages": how many pipeline ranks to look at}.  Every module goes through torchtitan's
ConfigManager and into the constructor of its Trainer, which builds the model, the meshes, tensor
parallelism, FSDP, the pipeline's stages and schedule, the optimizer, the tokenizer and the data
loader.  What stands in for a cluster: torch's fake process group, and the meta device for memory.
What stands in for packages that only accelerators have (torchao, DeepEP): converters that leave
the model as it is, and an empty module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

BEGIN = "ANSWERS"


def ask(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdict on each case: {"error": text}, or what was built."""
    result = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        timeout=3000,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(BEGIN)]
    answers: list[dict[str, Any]] = json.loads(line.removeprefix(BEGIN))
    return answers


def _prepare() -> None:
    """The stand-ins."""
    import torch
    import torchtitan.components.metrics as metrics
    import torchtitan.components.quantization as quantization
    import torchtitan.distributed.fsdp as fsdp
    import torchtitan.distributed.parallel_dims as parallel_dims
    from torch.distributed.fsdp import CPUOffloadPolicy
    from torchtitan.tools import utils

    logging.disable(logging.CRITICAL)
    utils.device_type, utils.device_module = "meta", torch.cpu
    utils.get_local_device = lambda: torch.device("cpu")
    parallel_dims.device_type = "cpu"
    monitor = types.SimpleNamespace(
        device_name="none",
        get_peak_stats=lambda: types.SimpleNamespace(max_reserved_gib=0.0, max_reserved_pct=0.0),
    )
    processor = types.SimpleNamespace(device_memory_monitor=monitor, color=utils.NoColor())
    metrics.MetricsProcessor.Config.build = lambda self, **kwargs: processor
    # Pinned memory needs an accelerator.
    fsdp.CPUOffloadPolicy = lambda: CPUOffloadPolicy(pin_memory=False)
    if importlib.util.find_spec("torchao") is None:
        same = types.SimpleNamespace(convert=lambda config: config)
        for name in dir(quantization):
            if name.endswith("Converter") and name != "QuantizationConverter":
                getattr(quantization, name).Config.build = lambda self: same
    if importlib.util.find_spec("deep_ep") is None:
        name = "torchtitan.distributed.deepep.deepep"
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].get_buffer = lambda *args, **kwargs: None
        importlib.import_module("torchtitan.distributed.deepep").deepep = sys.modules[name]


def _verdict(case: dict[str, Any], name: str) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.trainer import Trainer

    config_words = ["--module", name, "--config", case.get("config", "config")]
    world, stages, answer = case["world"], [], {}
    for place in range(case.get("stages", 1)):
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        config = ConfigManager().parse_args([*config_words, *case.get("arguments", [])])
        config.dump_folder = tempfile.gettempdir()
        pp = config.parallelism.pipeline_parallel_degree
        if place >= pp:
            break
        rank = min(place * (world // pp), world - 1)
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:

            def mesh(self: Trainer) -> ParallelDims:
                return ParallelDims.from_config(self.config.parallelism, dist.get_world_size())

            Trainer.init_distributed = mesh
            trainer = Trainer(config)
            inputs, labels = next(iter(trainer.dataloader))
            schedule = getattr(trainer, "pp_schedule", None)
            held = [schedule._stage] if hasattr(schedule, "_stage") else []
            held = held or list(getattr(schedule, "_stages", []))
            for index, part in enumerate(trainer.model_parts):
                weights = list(part.parameters())
                stages.append(
                    {
                        "rank": place,
                        "stage": held[index].stage_index if held else 0,
                        "layers": [int(i) for i in part.layers],
                        "parameters": sum(w.numel() for w in weights),
                        "local": sum(w.to_local().numel() for w in weights),
                    }
                )
            dims = trainer.parallel_dims
            answer = {
                "tokens": [list(inputs["input"].shape), list(labels.shape)],
                "accumulation": trainer.gradient_accumulation_steps,
                "micro_batches": trainer.num_pipeline_parallel_microbatches,
                "schedule": type(schedule).__name__ if schedule is not None else "",
                "mesh": {
                    axis: getattr(dims, axis)
                    for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
                },
                "optimizer": type(trainer.optimizers.optimizers[0]).__name__,
            }
        finally:
            dist.destroy_process_group()
            trainer = schedule = part = weights = held = None
            gc.collect()  # the trainer turns automatic collection off
    return {**answer, "stages": stages}


def main() -> None:
    cases = json.load(sys.stdin)
    answers = []
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        _prepare()
        sys.path.insert(0, folder)
        for number, case in enumerate(cases):
            name = f"plan_config_{number}"
            (Path(folder) / f"{name}.py").write_text(case["module"])
            try:
                answers.append(_verdict(case, name))
            except (Exception, SystemExit) as error:
                text = " ".join(str(error).split())[:400]
                answers.append({"error": f"{type(error).__name__}: {text}"})
    print(BEGIN + json.dumps(answers))


if __name__ == "__main__":
    main()
