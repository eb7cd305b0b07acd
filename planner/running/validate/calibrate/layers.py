"""Benchmarks of overheads around kernels: modules, DTensor, data-parallel wrapper, optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from planner.running.validate.calibrate.timing import Clock, point, repeated

ON = {"tp": 1, "cp": 1, "pp": 1, "ep": 1, "num_experts": 0, "dp_replicate": 1,
      "dp_shard": 1, "sequence_parallel": False,
      "recompute": "none", "compile": False, "hidden_dropout": 0.0, "attention_dropout": 0.0,
      "schedule": "1F1B", "zero_stage": 0, "global_batch_size": 1,
      "micro_batch_size": 1}  # fmt: skip


def bare(stage: Any) -> None:
    """Replaces the script's data_parallel, and wraps nothing."""


class Stage:
    """The script's only stage, built from its CONFIG."""

    def __init__(self, script: Any, wrapped: bool, dtype: torch.dtype) -> None:
        if not wrapped:
            script.data_parallel = bare
        self.script, self.model = script, script.build_stage(0)
        if not wrapped:
            self.model.to(dtype)
        self.blocks = len(self.model.blocks)
        (self.tokens,), _ = script.batch()

    def passes(self, clock: Clock, sync: bool | None = None) -> dict[str, float]:
        """Seconds of a forward and a backward pass; sync: reduce gradients (if wrapped)."""
        if sync is not None:
            self.model.set_requires_gradient_sync(sync)
            self.model.set_reshard_after_backward(True)
        start = clock.now()
        logits = self.model(self.tokens)
        middle = clock.now()
        # A sum replaces the loss, since the vocabulary is tiny.
        logits.sum().backward()
        return {"forward": middle - start, "backward": clock.now() - middle}

    def clear(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None


def blocks(stage: Stage, clock: Clock) -> dict[str, list[float]]:
    """Forward and backward seconds per block, of an unwrapped stage's blocks alone."""
    hidden, tokens = stage.script.C.hidden_size, stage.tokens.shape[1]
    split = stage.script.C.tp if stage.script.C.sequence_parallel else 1
    dtype = next(stage.model.parameters()).dtype
    size = (1, tokens // split, hidden)
    x = torch.randn(*size, device=clock.device, dtype=dtype).requires_grad_()

    def run() -> dict[str, float]:
        start = clock.now()
        y = x
        for block in stage.model.blocks:
            y = block(y)
        middle = clock.now()
        y.sum().backward()  # type: ignore[no-untyped-call]
        end = clock.now()
        stage.clear()
        return {
            "forward": (middle - start) / stage.blocks,
            "backward": (end - middle) / stage.blocks,
        }

    return repeated(run)


def wrapper(name: str, wrapped: Stage, plain: Stage, clock: Clock) -> Iterator[dict[str, Any]]:
    """The overhead of replicate or fully_shard per block on one rank; the ends count as a block."""

    def run() -> dict[str, float]:
        wrapped.passes(clock, sync=False)
        later = wrapped.passes(clock, sync=False)
        last = wrapped.passes(clock, sync=True)
        plain.passes(clock)
        plain.clear()
        unwrapped = plain.passes(clock)
        wrapped.clear()
        plain.clear()
        return {
            "forward": later["forward"] - unwrapped["forward"],
            "backward": later["backward"] - unwrapped["backward"],
            "reduce": last["backward"] - later["backward"],
        }

    units = wrapped.blocks + 1
    parameters = sum(p.numel() for p in plain.model.parameters()) / units
    for direction, seconds in repeated(run).items():
        each = point([max(s, 0.0) / units for s in seconds])
        yield {"wrapper": name, "direction": direction, "parameters": parameters, **each}


def optimizer(stage: Stage, clock: Clock) -> dict[str, Any]:
    """The time of clipping, update and zero_grad at the end of the script's step."""
    parameters = list(stage.model.parameters())
    adam = torch.optim.AdamW(parameters, lr=0.0, fused=True)

    def run() -> dict[str, float]:
        stage.passes(clock, sync=True)
        start = clock.now()
        stage.script.clip(parameters)
        adam.step()
        adam.zero_grad()
        return {"step": clock.now() - start}

    count = sum(p.numel() for p in parameters)
    return {"parameters": count, "tensors": len(parameters), **point(repeated(run)["step"])}
