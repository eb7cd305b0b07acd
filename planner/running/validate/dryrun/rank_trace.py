"""Traces one rank of a plan at full scale; the dry run starts this process for each rank.

    python -m planner.running.validate.dryrun.rank_trace RANK

Standard input has a line with the length in bytes of the plan's training script, then the script;
the process ends when the input is closed.  A fake process group replaces all other ranks and fake
tensors all data, so nothing is sent, computed or allocated; the bytes that torch would hold, save
and send in one step are counted.  A Trace is written to standard output, and a line for each
micro-batch to standard error.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.running.validate.dryrun.gpu_operators import gpu_operators
from planner.running.validate.dryrun.trace_result import Collective, Trace
from planner.running.validate.processes.priority import lower_session_priority
from planner.running.validate.ranks.memory import Memory
from planner.running.validate.ranks.saved_rows import rows

_HALF = {"bf16": torch.bfloat16, "fp32": torch.float32}
# The namespaces of torch's collectives, the names of their input argument, and readable names.
_OPERATORS = ("c10d", "_c10d_functional")
_INPUTS = ("input_tensor", "input", "tensors", "inputs")
_NAMES = {
    "allreduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "alltoall_base_": "all_to_all",
    "recv_": "receive",
}


def main(text: str, rank: int) -> Trace:
    """The trace of one step of a training script on one rank."""
    began = time.perf_counter()
    script: Any = ModuleType("train")
    exec(compile(text, "train.py", "exec"), script.__dict__)
    c = script.C
    world = c.pp * c.dp_replicate * c.dp_shard * c.cp * c.tp
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    script.setup(torch.device("cpu"), torch.device("meta"))
    # On a CPU the script replaces kernels that a CPU lacks, which is not wanted here.
    script.ATTENTION["unfused"] = script.ATTENTION[c.attention_kernel]
    script.PipelineStage = _StaticStage(script)
    if c.num_experts:
        script.expert_counts = partial(_even_counts, script)
    models = script.build_models()
    with FakeTensorMode(allow_non_fake_inputs=True), gpu_operators():
        for model in models:
            model.to_empty(device="cpu")
        pipeline, optimizer = script.build_pipeline(models), _optimizer_with_states(script, models)
        if pipeline is not None:
            pipeline._warmup_p2p = _use_static_shapes
        shape = c.global_batch_size // script.DP, script.TOKENS
        inputs = torch.zeros(shape, dtype=torch.int64), *_images(script, shape[0])
        targets = torch.zeros(shape, dtype=torch.int64)
        sent = _CommunicationCounter()
        with _progress(models, script.MICRO_BATCHES), sent:
            with Memory(models, optimizer) as memory:
                script.forward_backward(models, pipeline, inputs, targets)
            # Not counted, since in a fake run these allocate temporaries that real kernels do not.
            script.clip([parameter for model in models for parameter in model.parameters()])
            optimizer.step()
    return Trace(
        rank=rank,
        stages=tuple(model.index for model in models),
        micro_batches=script.MICRO_BATCHES,
        amounts=memory.amounts,
        saved_tensors=tuple(rows(memory.saved(i)) for i in range(len(models))),
        collectives=sent.collectives(script),
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time(),
        rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _optimizer_with_states(script: Any, models: Sequence[nn.Module]) -> torch.optim.Optimizer:
    """The optimizer after a first step, which creates its states."""
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer: torch.optim.Optimizer = script.build_optimizer(models)
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _images(script: Any, samples: int) -> tuple[torch.Tensor, ...]:
    """The input images of the encoders for this many samples."""
    sizes = script.image_sizes() if hasattr(script, "image_sizes") else []
    return tuple(torch.zeros(samples, *size, dtype=torch.uint8) for size in sizes)


def _even_counts(script: Any, chosen: torch.Tensor) -> tuple[list[int], list[int]]:
    """Tokens to and from each expert, spread evenly, since fake router scores have no values."""
    c = script.C
    each, more = divmod(chosen.numel(), c.num_experts + c.zero_experts)
    sent = [each + (expert < more) for expert in range(c.num_experts)]
    local_experts = c.num_experts // c.ep
    first = script.EXPERT_MESH.get_local_rank("ep") * local_experts
    return sent, sent[first : first + local_experts] * c.ep


class _StaticStage:
    """Makes pipeline stages with given message shapes, which real stages ask their peers for."""

    def __init__(self, script: Any) -> None:
        self.script = script

    def __call__(
        self, model: Any, index: int, count: int, device: torch.device, group: dist.ProcessGroup
    ) -> PipelineStage:
        c, tokens = self.script.C, self.script.TOKENS
        width = c.hidden_size * getattr(c, "residual_streams", 1)
        shape = (c.micro_batch_size, tokens // (c.tp if c.sequence_parallel else 1), width)
        half = _HALF[c.precision]
        message = torch.empty(shape, dtype=half, requires_grad=True)
        tokens_in = torch.zeros(c.micro_batch_size, tokens, dtype=torch.int64)
        images = _images(self.script, c.micro_batch_size)
        logits = torch.empty(c.micro_batch_size, tokens, c.vocab_size // c.tp, dtype=half)
        return PipelineStage(
            model, index, count, device, group=group,
            input_args=(tokens_in, *images) if model.is_first else message,
            output_args=logits if model.is_last else message,
        )  # fmt: skip


def _use_static_shapes(stages: Sequence[Any], *_: Any) -> None:
    """Replaces the ranks' negotiation of shapes, which needs real peers."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


class _CommunicationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts a rank's collectives and messages, with their input bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _OPERATORS and any(a.name in _INPUTS for a in _arguments(func)):
            self._count(func, args, kwargs or {})
        return func(*args, **kwargs or {})

    def _count(self, func: Any, args: Any, kwargs: Any) -> None:
        names = (a.name for a in _arguments(func))
        values = dict(zip(names, args, strict=False)) | kwargs
        tensors = next(values[name] for name in _INPUTS if name in values)
        group = values.get("group_name")
        if group is None:
            group = dist.ProcessGroup.unbox(values["process_group"]).group_name
        name = func.name().partition("::")[2].partition(".")[0]
        size = sum(tensor.nbytes for tensor in tree_leaves(tensors))
        self._counts[_NAMES.get(name, name), group, size] += 1

    def collectives(self, script: Any) -> tuple[Collective, ...]:
        """The counted collectives, with the names of the mesh's groups."""
        names: dict[str, tuple[str, int]] = {
            dist.distributed_c10d._get_default_group().group_name: ("world", dist.get_world_size())
        }
        meshes = [("data", script.DATA_MESH), ("fsdp", script.FSDP_MESH)]
        meshes += [(axis, script.MESH[axis]) for axis in script.MESH.mesh_dim_names]
        if script.C.num_experts:
            experts = script.EXPERT_MESH
            meshes += [(f"expert {axis}", experts[axis]) for axis in experts.mesh_dim_names]
        for axis, mesh in meshes:
            group = mesh.get_group()
            names[group.group_name] = (axis, group.size())
        return tuple(
            Collective(op=op, group=names[group][0], ranks=names[group][1], count=n, bytes=size)
            for (op, group, size), n in sorted(self._counts.items())
        )


def _arguments(func: Any) -> Any:
    return func._schema.arguments


@contextmanager
def _progress(models: Sequence[nn.Module], micro_batches: int) -> Iterator[None]:
    """A context that prints "done/total" to standard error after each micro-batch of a model."""
    total = len(models) * micro_batches
    done = 0

    def taken(*_: Any) -> None:
        nonlocal done
        done += 1
        print(f"{done}/{total}", file=sys.stderr, flush=True)

    hooks = [model.register_forward_hook(taken) for model in models]
    yield
    for hook in hooks:
        hook.remove()


def _end_with_parent() -> None:
    """End this process when its parent closes standard input."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    given = sys.stdin.buffer.read(int(sys.stdin.buffer.readline())).decode()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    lower_session_priority()
    print(main(given, int(sys.argv[1])).model_dump_json())
