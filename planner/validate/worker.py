"""One rank of a run: `python -m planner.validate.worker DIR`, started by torchrun.

It loads the script that lies in DIR and runs its steps: some to warm up, some with nothing but a
clock, some under torch's profiler, and one under its memory tracker.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from planner.validate import contract
from planner.validate.agent import die_with_parent
from planner.validate.contract import Beat, Job, RankResult
from planner.validate.saved_rows import SavedRow, rows
from planner.validate.traced import Amounts

Say = Callable[[str], None]


class Voice:
    """Says where this rank is, in the file that the parent watches."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path, self.count = folder / contract.beat_file(rank), 0

    def __call__(self, words: str) -> None:
        """Say it, to whoever looks."""
        self.count += 1
        contract.write(self.path, Beat(words=words, count=self.count, pid=os.getpid()))


def load_script(path: Path) -> Any:
    """The emitted script as a module of its own; importing it does nothing yet."""
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder: Path, job: Job, rank: int, say: Say) -> RankResult:
    """Do a job as one of its ranks."""
    import torch
    import torch.distributed as dist

    from planner.validate import gradients, measure
    from planner.validate.memory import Memory

    if job.threads:
        torch.set_num_threads(job.threads)
    train = load_script(folder / contract.SCRIPT)
    train.configure(job.words)
    device = train.own_device()
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=timedelta(seconds=job.collective_timeout_s),
    )
    say("building the model")
    train.setup(device)
    measure.mark(train)
    models = train.build_models()
    for model in models:
        measure.mark_forward(model)
    parameters = [parameter for model in models for parameter in model.parameters()]
    pipeline, optimizer = train.build_pipeline(models), train.build_optimizer(parameters)
    torch.manual_seed(train.C.seed + rank)
    tokens, targets = train.batch()
    losses: list[float] = []

    def step() -> None:
        losses.append(train.train_step(models, pipeline, optimizer, tokens, targets))

    errors: dict[str, float] = {}
    if job.gradients:
        say("gradients of the first step")
        train.forward_backward(models, pipeline, tokens, targets)
        named = gradients.named(train, models)
        if job.gradients == "write":
            gradients.write(named, folder / contract.GRADIENTS)
        else:
            errors = gradients.compare(named, Path(job.reference))
        optimizer.zero_grad()

    def several(what: str, number: int) -> list[float]:
        seconds = []
        for one in range(1, number + 1):
            say(f"{what} step {one} of {number}")
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        return seconds

    several("warm-up", job.warmup_steps)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = several("timed", job.steps)
    allocated = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    timed_losses = tuple(losses)
    parts: dict[str, float] = {}
    profiled_s = 0.0
    if job.profiled_steps:
        with measure.profiler(device) as profile:
            profiled_s = sum(several("profiled", job.profiled_steps)) / job.profiled_steps
        whole = measure.parts(profile, device, profiled_s * job.profiled_steps)
        parts = {name: value / job.profiled_steps for name, value in whole.items()}
    amounts: Amounts | None = None
    saved: tuple[tuple[SavedRow, ...], ...] = ()
    if job.memory:
        with Memory(models, optimizer) as memory:
            several("memory", 1)
        amounts = memory.amounts
        saved = tuple(rows(memory.saved(number)) for number in range(len(models)))
    dist.barrier()
    dist.destroy_process_group()
    return RankResult(
        rank=rank,
        ranks=int(os.environ["WORLD_SIZE"]),
        host=platform.node(),
        stages=tuple(model.index for model in models),
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        versions={"python": platform.python_version(), "torch": torch.__version__},
        step_s=tuple(seconds),
        losses=timed_losses,
        profiled_step_s=profiled_s,
        parts_s=parts,
        amounts=amounts,
        allocator_peak_bytes=allocated,
        saved_tensors=saved,
        gradient_errors=errors,
    )


def main(folder: Path) -> int:
    """Do the job of a folder; where the disk is full, the exit code is its errno."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    rank = int(os.environ["RANK"])
    try:
        say = Voice(folder, rank)
        say("starting")
        job = Job.model_validate_json((folder / contract.JOB).read_bytes())
        contract.write(folder / contract.result_file(rank), run(folder, job, rank, say))
    except OSError as error:
        import traceback

        traceback.print_exc()
        return error.errno or 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
