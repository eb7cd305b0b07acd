"""Timing of torch functions: medians over repeats, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

LEAST_REPEATS, MOST_REPEATS = 3, 15
ENOUGH_S = 0.4  # time after which a point is no longer repeated
# Bytes of other operands used before the same operands again, so that caches are as in training.
FOOTPRINT_BYTES = 96 * 2**20
MAX_COPIES = 16


@dataclass
class Clock:
    """A timer, and the deadline after which further points are left out.

    timer: measurements on a CPU that wait for no other process use process or thread time, which
    excludes other load on the machine.
    """

    device: torch.device
    deadline: float
    timer: Callable[[], float] = time.perf_counter

    def now(self) -> float:
        """The time in seconds, after everything launched so far has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.timer()

    def of(self, timer: Callable[[], float]) -> Clock:
        """This clock with another timer if the device is a CPU."""
        return replace(self, timer=timer) if self.device.type == "cpu" else self

    @property
    def over(self) -> bool:
        return time.perf_counter() > self.deadline


def point(seconds: Sequence[float]) -> dict[str, float | int]:
    """The fields common to all points: median, 10th and 90th percentile, number of repeats."""
    low, middle, high = np.quantile(np.maximum(seconds, 0.0), [0.1, 0.5, 0.9]).tolist()
    return {"seconds": middle, "low_s": low, "high_s": high, "repeats": len(seconds)}


def repeated(run: Callable[[], dict[str, float]]) -> dict[str, list[float]]:
    """The seconds of each repeat that `run` returns, by name, after one warm-up."""
    run()
    by_name: dict[str, list[float]] = {}
    start, count = time.perf_counter(), 0
    while count < LEAST_REPEATS or (
        count < MOST_REPEATS and time.perf_counter() - start < ENOUGH_S
    ):
        for name, seconds in run().items():
            by_name.setdefault(name, []).append(seconds)
        count += 1
    return by_name


def copies(bytes_each: float) -> int:
    """The number of operand sets to cycle through so that caches do not hold them."""
    return int(np.clip(FOOTPRINT_BYTES / max(bytes_each, 1.0), 2, MAX_COPIES))


def passes(
    clock: Clock,
    function: Callable[..., torch.Tensor],
    inputs: Callable[[], tuple[torch.Tensor, ...]],
    weights: Sequence[torch.Tensor] = (),
) -> dict[str, list[float]]:
    """Seconds per call of a function and of its backward pass: all calls forward, then backward."""
    first = inputs()
    set_bytes = sum(tensor.nbytes for tensor in first) + function(*first).nbytes
    sets = [first, *(inputs() for _ in range(copies(set_bytes) - 1))]

    def run() -> dict[str, float]:
        start = clock.now()
        outputs = [function(*tensors) for tensors in sets]
        forward = clock.now() - start
        gradients = [torch.ones_like(output) for output in outputs]
        start = clock.now()
        torch.autograd.backward(outputs, gradients)
        backward = clock.now() - start
        for tensor in (*weights, *(tensor for tensors in sets for tensor in tensors)):
            tensor.grad = None
        return {"forward": forward / len(sets), "backward": backward / len(sets)}

    return repeated(run)


def calls(
    clock: Clock, function: Callable[..., Any], sets: Sequence[tuple[Any, ...]]
) -> list[float]:
    """Seconds per call, averaged over several sets of operands."""

    def run() -> dict[str, float]:
        start = clock.now()
        for arguments in sets:
            function(*arguments)
        return {"call": (clock.now() - start) / len(sets)}

    return repeated(run)["call"]
