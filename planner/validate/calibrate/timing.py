"""Timing of torch functions: medians over repeats, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

LEAST_REPEATS, MOST_REPEATS = 3, 15
ENOUGH_S = 0.4  # of repeats of one point
# Operands of one kernel are used again only after so many bytes of others, as in a training step.
FOOTPRINT_BYTES = 96 * 2**20
MOST_COPIES = 16


@dataclass
class Clock:
    """Time until which points are measured; afterwards they are left out.

    timer: on a CPU that of a process or thread, where it waits for no other, counts only its own
    seconds: what the machine does besides is no part of them.
    """

    device: torch.device
    deadline: float
    timer: Callable[[], float] = time.perf_counter

    def now(self) -> float:
        """Seconds, when everything launched so far is done."""
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
    """The fields that every point has."""
    low, middle, high = np.quantile(np.maximum(seconds, 0.0), [0.1, 0.5, 0.9]).tolist()
    return {"seconds": middle, "low_s": low, "high_s": high, "repeats": len(seconds)}


def repeated(run: Callable[[], dict[str, float]]) -> dict[str, list[float]]:
    """Seconds of each repeat by name, as `run` returns them; the first run is a warm-up."""
    run()
    found: dict[str, list[float]] = {}
    start, count = time.perf_counter(), 0
    while count < LEAST_REPEATS or (
        count < MOST_REPEATS and time.perf_counter() - start < ENOUGH_S
    ):
        for name, seconds in run().items():
            found.setdefault(name, []).append(seconds)
        count += 1
    return found


def copies(bytes_each: float) -> int:
    """How many sets of operands leave the caches between two uses of one."""
    return int(np.clip(FOOTPRINT_BYTES / max(bytes_each, 1.0), 2, MOST_COPIES))


def passes(
    clock: Clock,
    function: Callable[..., torch.Tensor],
    inputs: Callable[[], tuple[torch.Tensor, ...]],
    weights: Sequence[torch.Tensor] = (),
) -> dict[str, list[float]]:
    """Seconds of one call and of its backward pass, as in a step: all forward, then all back."""
    first = inputs()
    held = sum(tensor.nbytes for tensor in first) + function(*first).nbytes
    sets = [first, *(inputs() for _ in range(copies(held) - 1))]

    def run() -> dict[str, float]:
        start = clock.now()
        outputs = [function(*one) for one in sets]
        forward = clock.now() - start
        gradients = [torch.ones_like(output) for output in outputs]
        start = clock.now()
        torch.autograd.backward(outputs, gradients)
        backward = clock.now() - start
        for tensor in (*weights, *(tensor for one in sets for tensor in one)):
            tensor.grad = None
        return {"forward": forward / len(sets), "backward": backward / len(sets)}

    return repeated(run)


def calls(
    clock: Clock, function: Callable[..., Any], sets: Sequence[tuple[Any, ...]]
) -> list[float]:
    """Seconds of one call, over several sets of operands."""

    def run() -> dict[str, float]:
        start = clock.now()
        for one in sets:
            function(*one)
        return {"call": (clock.now() - start) / len(sets)}

    return repeated(run)["call"]
