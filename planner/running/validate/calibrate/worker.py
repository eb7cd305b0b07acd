"""The process that torchrun starts: `python -m planner.running.validate.calibrate.worker DIR`.

DIR holds train.py (as emitted) and job.json; the first rank writes measured.json.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from planner.running.validate import run_files
from planner.running.validate.calibrate import collectives, layers
from planner.running.validate.calibrate.job import RESULT, Collective, Job, Measured, Operation
from planner.running.validate.calibrate.kernels import DTYPES, Bench, Points
from planner.running.validate.calibrate.timing import Clock, point
from planner.running.validate.processes.rank_process import run_rank
from planner.running.validate.ranks.worker import ProgressReporter, load_script


class Worker:
    """One rank of a calibration."""

    def __init__(self, folder: Path, say: ProgressReporter) -> None:
        self.folder, self.say = folder, say
        self.job = Job.model_validate_json((folder / run_files.JOB).read_bytes())
        self.base = {**layers.ON, "precision": self.job.precision}
        ranks = int(os.environ["WORLD_SIZE"])
        self.world = {"dp_replicate": ranks, "global_batch_size": ranks}  # nothing is split
        torch.manual_seed(0)

    def script(self, **settings: Any) -> Any:
        """The training script, set up on this rank with these CONFIG entries replaced."""
        script = load_script(self.folder / run_files.SCRIPT)
        script.configure([f"{name}={value}" for name, value in {**self.base, **settings}.items()])
        script.setup(script.own_device())
        return script

    def run(self) -> Measured:
        """The measurements of the job: the same points on every rank, each with its own times."""
        start = time.perf_counter()
        plain = self.script(**self.world)
        clock = Clock(plain.DEVICE, start + self.job.budget_s)
        notes = []
        if dist.get_world_size() == 1:
            clock = clock.of(time.process_time)
            points = self.alone(clock)
            bench = Bench(plain, self.job.precision, clock, self.say)
            points |= bench.points(self.job.kernels)
            if bench.left_out:
                notes.append(f"{bench.left_out} kernels were left out: the time budget was used up")
        else:
            points = self.together(clock)
        return Measured(points=points, notes=tuple(notes), device=clock.device.type)

    def alone(self, clock: Clock) -> Points:
        """The layer measurements on one rank: modules, wrappers, optimizer step."""
        job, dtype = self.job, DTYPES[self.job.precision]
        points: Points = {"host": [], "wrapper": [], "optimizer": []}
        for settings in (job.small_words, job.large_words):
            self.say(f"layers {settings['hidden_size']} wide")
            plain = layers.Stage(self.script(**settings), False, dtype)
            if settings is job.small_words:
                points["host"] = self.host(plain, clock)
            for name, zero in (("replicate", 0), ("fully_shard", 3)):
                wrapped = layers.Stage(self.script(**settings, zero_stage=zero), True, dtype)
                points["wrapper"] += layers.wrapper(name, wrapped, plain, clock)
                if zero == 0:
                    points["optimizer"].append(layers.optimizer(wrapped, clock))
        return points

    def host(self, stage: layers.Stage, clock: Clock) -> list[dict[str, Any]]:
        """The host time of a layer: its time less that of its kernels.

        On a GPU nothing is subtracted, since small kernels hide under host time.
        """
        block_s = layers.blocks(stage, clock)
        kernels = {"forward": 0.0, "backward": 0.0}
        if clock.device.type == "cpu":
            endless = replace(clock, deadline=math.inf)
            bench = Bench(stage.script, self.job.precision, endless, self.say)
            for points in bench.points(self.job.small).values():
                for row in points:
                    side = row.get("direction", row.get("product"))
                    kernels["forward" if side == "forward" else "backward"] += row["seconds"]
        return [
            {"runtime": "layer", "direction": side, **point([s - kernels[side] for s in seconds])}
            for side, seconds in block_s.items()
        ]

    def together(self, clock: Clock) -> Points:
        """The measurements on several ranks: contention, collectives, tensor-parallel layers."""
        self.say("kernels on all ranks at once")
        points: Points = {
            "crowding": list(collectives.crowding(clock)),
            "contention": [
                collectives.contention(size, clock) for size in collectives.CONTENDING_BYTES
            ],
            "collectives": [],
        }
        if self.job.tensor_parallel:
            self.say("layers of DTensor")
            points["host"] = list(self.tensor_parallel(clock))
        for collective in self.job.collectives:
            self.say(f"{collective.op} of {collective.bytes:,} bytes")
            points["collectives"].append(collectives.collective(collective, clock))
        return points

    def tensor_parallel(self, clock: Clock) -> Iterator[dict[str, Any]]:
        """The overhead that DTensor adds to a small layer, without its collectives.

        On a CPU other threads run the collectives, so the layer's thread time excludes them.  On a
        GPU their time is subtracted: forward and backward each have two all-reduces, or two
        all-gathers and two reduce-scatters.
        """
        settings, dtype = self.job.small_words, DTYPES[self.job.precision]
        ranks, cpu = dist.get_world_size(), clock.of(time.thread_time)

        def blocks(**more: Any) -> dict[str, list[float]]:
            return layers.blocks(layers.Stage(self.script(**settings, **more), False, dtype), cpu)

        plain = blocks(**self.world)
        payload = dtype.itemsize * settings["seq_length"] * settings["hidden_size"]
        ops: dict[str, tuple[Operation, ...]] = {
            "tensor_parallel": ("all_reduce",),
            "sequence_parallel": ("all_gather", "reduce_scatter"),
        }
        for runtime, names in ops.items():
            times = blocks(tp=ranks, sequence_parallel=runtime == "sequence_parallel")
            sent = 0.0
            if cpu is clock:
                sums = (Collective(op=name, bytes=payload) for name in names)
                sent = sum(2 * collectives.collective(c, clock)["seconds"] for c in sums)
            for side, seconds in times.items():
                alone_s = point(plain[side])["seconds"] + sent
                yield {
                    "runtime": runtime, "direction": side, **point([s - alone_s for s in seconds]),
                }  # fmt: skip


def main(folder: Path) -> int:
    """Run the job of a folder; the exit code is that of `run_rank`."""

    def work(rank: int) -> None:
        measured = Worker(folder, ProgressReporter(folder, rank)).run()
        if rank == 0:
            run_files.write(folder / RESULT, measured)
        dist.barrier()
        dist.destroy_process_group()

    return run_rank(work)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
