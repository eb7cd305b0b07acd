"""One rank of a run: `python -m planner.running.validate.ranks.worker DIR`, started by torchrun.

It loads the script in DIR and runs its steps: warm-up steps, timed steps, some under torch's
profiler, and one under its memory tracker.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from planner.running.validate import run_files
from planner.running.validate.dryrun.trace_result import Amounts
from planner.running.validate.processes.rank_process import run_rank
from planner.running.validate.ranks.saved_rows import SavedRow, rows
from planner.running.validate.run_files import Heartbeat, Job, RankResult

Say = Callable[[str], None]


class ProgressReporter:
    """Reports this rank's progress in the file that the parent watches."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path, self.count = folder / run_files.heartbeat_file(rank), 0

    def __call__(self, text: str) -> None:
        """Write the next heartbeat."""
        self.count += 1
        run_files.write(self.path, Heartbeat(words=text, count=self.count, pid=os.getpid()))


def load_script(path: Path) -> Any:
    """The emitted script as a module; importing it runs nothing yet."""
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Training:
    """The script's training as this rank sees it: built once, then run step by step."""

    def __init__(self, train: Any, device: Any, rank: int, say: Say) -> None:
        import torch

        from planner.running.validate.ranks import measure

        self.train, self.device, self.say = train, device, say
        train.setup(device)
        measure.mark(train)
        self.models = train.build_models()
        for model in self.models:
            measure.mark_forward(model)
        self.pipeline = train.build_pipeline(self.models)
        self.optimizer = train.build_optimizer(self.models)
        torch.manual_seed(train.C.seed + rank)  # for dropout
        self.batch = train.batch()
        self.losses: list[float] = []

    def steps(self, label: str, number: int) -> list[float]:
        """The seconds of each of `number` steps."""
        seconds = []
        for step in range(1, number + 1):
            self.say(f"{label} step {step} of {number}")
            start = time.perf_counter()
            loss = self.train.train_step(self.models, self.pipeline, self.optimizer, *self.batch)
            seconds.append(time.perf_counter() - start)
            self.losses.append(loss)
        return seconds

    def gradients(self, job: Job, folder: Path) -> dict[str, float]:
        """Write the gradients of a step, or return their errors; the weights do not change."""
        from planner.running.validate.ranks import gradients

        if not job.gradients:
            return {}
        self.say("gradients of the first step")
        self.train.forward_backward(self.models, self.pipeline, *self.batch)
        named = gradients.named_parameters(self.train, self.models)
        errors = {}
        if job.gradients == "write":
            gradients.write(named, folder / run_files.GRADIENTS)
        else:
            errors = gradients.compare(named, Path(job.reference))
        self.optimizer.zero_grad()
        return errors

    def profiled(self, number: int) -> tuple[float, dict[str, float]]:
        """The mean seconds of a step under the profiler, and of its parts."""
        from planner.running.validate.ranks import measure

        if not number:
            return 0.0, {}
        with measure.profiler(self.device) as profile:
            total = sum(self.steps("profiled", number))
        parts = measure.parts(profile, self.device, total)
        return total / number, {name: value / number for name, value in parts.items()}

    def memory(self) -> tuple[Amounts, tuple[tuple[SavedRow, ...], ...]]:
        """Bytes of tensors in one more step, and the tensors each stage saves per micro-batch."""
        from planner.running.validate.ranks.memory import Memory

        with Memory(self.models, self.optimizer) as memory:
            self.steps("memory", 1)
        return memory.amounts, tuple(rows(memory.saved(i)) for i in range(len(self.models)))


def run(folder: Path, job: Job, rank: int, say: Say) -> RankResult:
    """Run a job as one of its ranks."""
    import torch
    import torch.distributed as dist

    if job.threads:
        torch.set_num_threads(job.threads)
    train = load_script(folder / run_files.SCRIPT)
    train.configure(job.words)
    device = train.own_device()
    cuda = device.type == "cuda"
    dist.init_process_group(
        "nccl" if cuda else "gloo", timeout=timedelta(seconds=job.collective_timeout_s)
    )
    say("building the model")
    training = Training(train, device, rank, say)
    errors = training.gradients(job, folder)
    training.steps("warm-up", job.warmup_steps)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = training.steps("timed", job.steps)
    allocated = torch.cuda.max_memory_allocated() if cuda else 0
    losses = tuple(training.losses)
    profiled_s, parts = training.profiled(job.profiled_steps)
    amounts, saved = training.memory() if job.memory else (None, ())
    dist.barrier()
    dist.destroy_process_group()
    return RankResult(
        rank=rank,
        ranks=int(os.environ["WORLD_SIZE"]),
        host=platform.node(),
        stages=tuple(model.index for model in training.models),
        device=torch.cuda.get_device_name() if cuda else "cpu",
        threads=torch.get_num_threads(),
        versions={"python": platform.python_version(), "torch": torch.__version__},
        step_s=tuple(seconds),
        losses=losses,
        profiled_step_s=profiled_s,
        parts_s=parts,
        amounts=amounts,
        allocator_peak_bytes=allocated,
        saved_tensors=saved,
        gradient_errors=errors,
    )


def main(folder: Path) -> int:
    """Run the job of a folder; the exit code is that of `run_rank`."""

    def work(rank: int) -> None:
        say = ProgressReporter(folder, rank)
        say("starting")
        job = Job.model_validate_json((folder / run_files.JOB).read_bytes())
        run_files.write(folder / run_files.result_file(rank), run(folder, job, rank, say))

    return run_rank(work)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
