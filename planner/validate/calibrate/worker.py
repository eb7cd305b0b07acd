"""The process that torchrun starts: `python -m planner.validate.calibrate.worker DIR`.

DIR holds train.py (as emitted) and job.json; the first rank writes points.json.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from planner.validate.calibrate import layers, together
from planner.validate.calibrate.job import Collective, Job, Operation
from planner.validate.calibrate.kernels import DTYPES, Bench, Points
from planner.validate.calibrate.timing import Clock, point

RESULT = "points.json"


def load(path: Path, words: dict[str, Any]) -> ModuleType:
    """The training script as a module, with entries of its CONFIG replaced."""
    sys.argv = [str(path), *(f"{name}={value}" for name, value in words.items())]
    spec = spec_from_file_location(f"train_{len(sys.modules)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Worker:
    """One rank of a calibration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = Job.model_validate_json((folder / "job.json").read_bytes())
        self.train = folder / "train.py"
        self.base = {**layers.ON, "precision": self.job.precision}
        ranks = int(os.environ["WORLD_SIZE"])
        self.world = {"dp_replicate": ranks, "global_batch_size": ranks}  # nothing is split
        torch.manual_seed(0)

    def script(self, **words: Any) -> ModuleType:
        return load(self.train, {**self.base, **words})

    def run(self) -> None:
        start = time.perf_counter()
        job = self.job
        plain = self.script(**self.world)
        clock = Clock(plain.DEVICE, start + job.budget_s)
        found: Points = {}
        notes: list[str] = []
        if dist.get_world_size() == 1:
            clock = clock.of(time.process_time)
            bench = Bench(plain, job.precision, clock)
            found |= self.alone(clock)
            found |= bench.points(job.kernels)
            if bench.left_out:
                notes.append(f"{bench.left_out} kernels were left out: the time was up")
        else:
            found |= self.together(clock)
        if dist.get_rank() == 0:
            document = {"points": found, "notes": notes, "device": clock.device.type}
            (self.folder / RESULT).write_text(json.dumps(document), encoding="utf-8")
        dist.barrier()
        dist.destroy_process_group()

    def alone(self, clock: Clock) -> Points:
        """What one rank measures of layers: modules, wrappers, the optimizer's step."""
        job, dtype = self.job, DTYPES[self.job.precision]
        found: Points = {"host": [], "wrapper": [], "optimizer": []}
        for words in (job.small_words, job.large_words):
            plain = layers.Stage(self.script(**words), False, dtype)
            if words is job.small_words:
                found["host"] = self.host(plain, clock)
            for name, zero in (("replicate", 0), ("fully_shard", 3)):
                wrapped = layers.Stage(self.script(**words, zero_stage=zero), True, dtype)
                found["wrapper"] += layers.wrapper(name, wrapped, plain, clock)
                if zero == 0:
                    found["optimizer"].append(layers.optimizer(wrapped, clock))
        return found

    def host(self, stage: layers.Stage, clock: Clock) -> list[dict[str, Any]]:
        """What a layer takes beside its kernels; on a GPU, where they hide under it, in all."""
        whole = layers.blocks(stage, clock)
        kernels = {"forward": 0.0, "backward": 0.0}
        if clock.device.type == "cpu":
            bench = Bench(stage.script, self.job.precision, replace(clock, deadline=math.inf))
            for points in bench.points(self.job.small).values():
                for one in points:
                    side = one.get("direction", one.get("product"))
                    kernels["forward" if side == "forward" else "backward"] += one["seconds"]
        return [
            {"runtime": "layer", "direction": side, **point([s - kernels[side] for s in seconds])}
            for side, seconds in whole.items()
        ]

    def together(self, clock: Clock) -> Points:
        """What several ranks measure."""
        found: Points = {
            "crowding": list(together.crowding(clock)),
            "contention": [together.contention(clock)],
            "collectives": [together.collective(c, clock) for c in self.job.collectives],
        }
        if self.job.tensor_parallel:
            found["host"] = list(self.tensor_parallel(clock))
        return found

    def tensor_parallel(self, clock: Clock) -> Iterator[dict[str, Any]]:
        """What DTensor adds to a small layer beside its collectives.

        On a CPU the seconds of the thread that runs the layer have no part of the collectives,
        which others run.  On a GPU these are taken off: forward and backward each have two
        all-reduces, or two gathers and two scatters.
        """
        words, dtype = self.job.small_words, DTYPES[self.job.precision]
        ranks, own = dist.get_world_size(), clock.of(time.thread_time)

        def blocks(**more: Any) -> dict[str, list[float]]:
            return layers.blocks(layers.Stage(self.script(**words, **more), False, dtype), own)

        plain = blocks(**self.world)
        payload = 4 * words["seq_length"] * words["hidden_size"]
        ops: dict[str, tuple[Operation, ...]] = {
            "tensor_parallel": ("all_reduce",),
            "sequence_parallel": ("all_gather", "reduce_scatter"),
        }
        for runtime, names in ops.items():
            found = blocks(tp=ranks, sequence_parallel=runtime == "sequence_parallel")
            sent = 0.0
            if own is clock:
                some = (Collective(op=name, bytes=payload) for name in names)
                sent = sum(2 * together.collective(one, clock)["seconds"] for one in some)
            for side, seconds in found.items():
                alone = point(plain[side])["seconds"] + sent
                yield {
                    "runtime": runtime, "direction": side, **point([s - alone for s in seconds]),
                }  # fmt: skip


def main() -> None:
    Worker(Path(sys.argv[1])).run()


if __name__ == "__main__":
    main()
