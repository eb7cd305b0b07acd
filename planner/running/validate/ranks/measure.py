"""Splits the time of a rank's step into parts, with torch's profiler.

Profiler marks around functions of the script and of torch's pipeline are installed once and cost
microseconds; the profiler itself, which costs more, runs only for profiled steps.  On a CPU each
moment counts as what the process blocks on, or else computes.  On a GPU it counts as what its
kernels compute; if only NCCL kernels run it is communication, and if none run the GPU is idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._autograd import DeviceType
from torch.distributed.pipelining import schedules, stage
from torch.profiler import ProfilerActivity, profile, record_function

from planner.running.validate.run_files import PARTS

_MARK = "planner:"
_WAIT_OPERATOR = "_c10d_functional::wait_tensor"  # blocks for functional collectives, as DTensor's
_OPTIMIZER = "Optimizer."  # prefix of torch's own marks around the optimizer


def mark(train: Any) -> None:
    """Mark forward, backward, optimizer and waits; call it before anything is built."""
    for name, owner, attribute in (
        ("forward", train, "loss_of"),
        ("backward", torch.Tensor, "backward"),
        ("backward", stage._PipelineStageBase, "backward_one_chunk"),
        ("backward", stage._PipelineStageBase, "backward_weight_one_chunk"),
        ("optimizer", train, "clip"),
        ("end", train, "mean_loss"),
        ("message", schedules, "_wait_batch_p2p"),
        ("wait", dist.Work, "wait"),
    ):
        setattr(owner, attribute, _marked(name, getattr(owner, attribute)))


def mark_forward(model: nn.Module) -> None:
    """Mark a stage's forward pass, including FSDP's hooks."""
    open_marks: list[Any] = []

    def begin(*_: Any) -> None:
        open_marks.append(record_function(_MARK + "forward"))
        open_marks[-1].__enter__()

    def end(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(begin, prepend=True)
    model.register_forward_hook(end)


def _marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with record_function(_MARK + name):
            return function(*args, **kwargs)

    return run


def profiler(device: torch.device) -> profile:
    """The profiler for a device."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities)


def parts(of: profile, device: torch.device, total_s: float) -> dict[str, float]:
    """Seconds of each of PARTS in profiled steps that took total_s together."""
    # Raw events, since torch takes ten times as long as the step to make its list of events.
    assert of.profiler is not None
    assert of.profiler.kineto_results is not None
    cuda = device.type == "cuda"
    kind = DeviceType.CUDA if cuda else DeviceType.CPU
    spans = (
        (event.start_ns(), event.start_ns() + event.duration_ns(), label)
        for event in of.profiler.kineto_results.events()
        if event.device_type() == kind
        and (label := _label(event.name(), event.is_user_annotation(), cuda))
    )
    seconds = dict.fromkeys(PARTS, 0.0)
    for name, value in _sweep(spans, _on_gpu if cuda else _on_cpu).items():
        seconds[name] += value / 1e9
    seconds["idle" if cuda else "other"] += max(0.0, total_s - sum(seconds.values()))
    return seconds


def _label(name: str, is_mark: bool, cuda: bool) -> str:
    """The label of a span; "" if it is irrelevant, such as a mark by other code."""
    if name.startswith(_MARK):
        return name.removeprefix(_MARK)
    if name.startswith(_OPTIMIZER):
        return "optimizer"
    if is_mark:
        return ""
    if cuda:
        return "nccl" if "nccl" in name.lower() else "kernel"
    return "wait" if name == _WAIT_OPERATOR else ""


def _on_cpu(active: Counter[str]) -> str:
    if active["message"]:
        return "idle"
    if active["wait"] or active["end"]:
        return "idle" if active["optimizer"] or active["end"] else "communication"
    return _phase(active)


def _on_gpu(active: Counter[str]) -> str:
    if active["kernel"]:
        return _phase(active)
    return "communication" if active["nccl"] else "idle"


def _phase(active: Counter[str]) -> str:
    return next((name for name in ("backward", "forward", "optimizer") if active[name]), "other")


def _sweep(
    spans: Iterable[tuple[int, int, str]], part_of: Callable[[Counter[str]], str]
) -> Counter[str]:
    """The total duration of each part, from overlapping spans; gaps between them do not count."""
    edges = sorted(
        edge for start, end, label in spans for edge in ((start, 1, label), (end, -1, label))
    )
    active: Counter[str] = Counter()
    lasted: Counter[str] = Counter()
    previous = 0
    for at, change, label in edges:
        if active.total():
            lasted[part_of(active)] += at - previous
        active[label] += change
        previous = at
    return lasted
