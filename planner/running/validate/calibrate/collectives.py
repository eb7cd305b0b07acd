"""Benchmarks on several ranks: collectives, messages, and how much they slow kernels down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from planner.running.validate.calibrate.job import Collective
from planner.running.validate.calibrate.timing import Clock, point

GEMM = 512
ELEMENTS = 2**22  # operand size of a memory-bound kernel, too large for caches
CONTENDING_BYTES = (2**21, 2**23, 2**25)  # about the size of a layer's weights


def timed_on_all_ranks(run: Callable[[], dict[str, float]], repeats: int) -> dict[str, list[float]]:
    """The seconds of each repeat that `run` returns on this rank, by name, after one warm-up.

    A barrier before every repeat makes all ranks start at the same time.
    """
    by_name: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        dist.barrier()
        answer = run()
        if repeat:
            for name, seconds in answer.items():
                by_name.setdefault(name, []).append(seconds)
    return by_name


def collective(c: Collective, clock: Clock) -> dict[str, Any]:
    """The time of a collective over all ranks, or of a message between ranks 0 and 1."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    count = max(c.bytes // 4 // ranks, 1)
    full, part = (torch.ones(n, device=clock.device) for n in (count * ranks, count))
    other = torch.empty_like(full)
    often = 10 if c.bytes <= 2**20 else 2

    def message() -> None:
        """A round trip, with batched sends as in the pipeline runtime."""
        if rank > 1:
            return
        for sender in (0, 1):
            op = dist.isend if rank == sender else dist.irecv
            for work in dist.batch_isend_irecv([dist.P2POp(op, full, 1 - rank)]):
                work.wait()

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(full),
        "all_gather": lambda: dist.all_gather_into_tensor(full, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full),
        "all_to_all": lambda: dist.all_to_all_single(other, full),
        "send_recv": message,
    }
    call, halves = calls[c.op], 2 if c.op == "send_recv" else 1

    def run() -> dict[str, float]:
        start = clock.now()
        for _ in range(often):
            call()
        return {"call": (clock.now() - start) / often / halves}

    seconds = timed_on_all_ranks(run, 7)["call"]
    return {"op": c.op, "ranks": ranks, "bytes": full.nbytes, **point(seconds)}


def crowding(clock: Clock) -> Iterator[dict[str, Any]]:
    """The times of kernels on rank 0 alone, and on all ranks at once."""
    clock = clock.of(time.process_time)
    a = torch.randn(GEMM, GEMM, device=clock.device)
    x = [torch.randn(ELEMENTS, device=clock.device) for _ in range(2)]
    kernels: dict[str, tuple[Callable[[], Any], int]] = {
        "gemm": (lambda: a @ a, 20),
        "memory": (lambda: torch.add(*x), 20),
    }
    for name, (kernel, often) in kernels.items():

        def run(kernel: Callable[[], Any] = kernel, often: int = often) -> dict[str, float]:
            times = {}
            for key, everyone in (("alone", False), ("together", True)):
                dist.barrier()
                start = clock.now()
                if everyone or dist.get_rank() == 0:
                    for _ in range(often):
                        kernel()
                times[key] = (clock.now() - start) / often
            return times

        times = timed_on_all_ranks(run, 7)
        alone_s = sorted(times["alone"])[len(times["alone"]) // 2]
        yield {
            "kernel": name, "ranks": dist.get_world_size(), "alone_s": alone_s,
            **point(times["together"]),
        }  # fmt: skip


def contention(size: int, clock: Clock) -> dict[str, Any]:
    """The time that GEMMs lose while an all-reduce of about half their length overlaps them."""
    a = torch.randn(GEMM, GEMM, device=clock.device)
    full = torch.ones(size // 4, device=clock.device)

    def gemms(count: int) -> None:
        for _ in range(count):
            a @ a

    def seconds(work: Callable[[], Any]) -> float:
        dist.barrier()
        start = clock.now()
        work()
        return clock.now() - start

    def run() -> dict[str, float]:
        alone_s = seconds(lambda: dist.all_reduce(full))
        one_s = seconds(lambda: gemms(8)) / 8
        count = max(int(2 * alone_s / one_s), 1)
        kernels_s = seconds(lambda: gemms(count))

        def both() -> None:
            work = dist.all_reduce(full, async_op=True)
            gemms(count)
            work.wait()

        return {"collective": alone_s, "lost": max(seconds(both) - kernels_s, 0.0)}

    times = timed_on_all_ranks(run, 9)
    collective_s = sorted(times["collective"])[len(times["collective"]) // 2]
    return {
        "ranks": dist.get_world_size(), "collective_s": collective_s, **point(times["lost"]),
    }  # fmt: skip
