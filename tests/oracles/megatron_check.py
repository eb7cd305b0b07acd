"""What Megatron-LM itself says to lists of arguments, on a machine without accelerators.

    MEGATRON_LM_PATH=<a checkout> python tests/oracles/megatron_check.py < questions > answers

One question per line, a JSON object: `argv` (arguments of its training program), `world_size`,
`environment` (variables of the launch), `generation` (major compute capability, 9: Hopper) and
`last` (the last stage wanted).  One answer per line, a JSON object: `failed` (a stage, null where
all pass) with `error`, and what the stages that passed found out:

    parse     its argument parser
    validate  validate_args
    config    core_transformer_config_from_args, so TransformerConfig's own checks
    optimizer OptimizerConfig and DistributedDataParallelConfig, as its training loop makes them
    batch     its micro-batch calculator and the interleaved schedule's rule: `micro_batches`
    groups    initialize_model_parallel on torch's fake process group: `groups`, by axis
    model     GPTModel or HybridModel for every stage and chunk, on the meta device: `layers` and
              `parameters` of the first tensor-parallel rank, [stage][chunk]

Importing takes seconds, a question a fraction of one: every question is judged in a fork of the
process that has imported everything, so that nothing Megatron keeps globally reaches the next.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import sys
import types
import typing
from typing import Any

import transformer_engine_shapes

STAGES = ("parse", "validate", "config", "optimizer", "batch", "groups", "model")


class Idle:
    """A stream or event of a device that is not there."""

    def __init__(self, *settings: Any, **options: Any) -> None:
        pass


def unpinned(function: Any) -> Any:
    """Without pinned memory, which only machines with a device have."""

    def made(*values: Any, pin_memory: bool = False, **options: Any) -> Any:
        return function(*values, **options)

    return made


def stand_in(generation: int) -> None:
    """What Megatron asks of a device and of a newer Python."""
    import torch
    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    device = types.SimpleNamespace(
        major=generation, minor=0, name="accelerator", total_memory=80 << 30
    )
    torch.cuda.get_device_properties = lambda *a, **k: device
    torch.cuda.get_device_capability = lambda *a, **k: (generation, 0)
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.Stream = torch.cuda.Event = Idle  # type: ignore[assignment,misc]
    torch.set_num_threads(1)
    torch.tensor = unpinned(torch.tensor)  # type: ignore[assignment]
    torch.Tensor.cuda = lambda self, *a, **k: self  # type: ignore[method-assign,assignment]


def known(function: Any, **values: Any) -> dict[str, Any]:
    """The arguments that this version of a function has."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in names}


class Judge:
    """One question on its way through the stages."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.question = question
        self.world: int = question["world_size"]
        self.found: dict[str, Any] = {}

    def answer(self) -> dict[str, Any]:
        stand_in(self.question.get("generation", 9))
        for name in list(os.environ):
            if name.startswith(("CUDA_", "NVTE_", "NCCL_")):
                del os.environ[name]
        os.environ.update(self.question.get("environment", {}))
        os.environ.update(WORLD_SIZE=str(self.world), RANK="0", LOCAL_RANK="0")
        last = STAGES.index(self.question.get("last", "model"))
        for stage in STAGES[: last + 1]:
            try:
                getattr(self, stage)()
            except SystemExit as refused:
                return {**self.found, "failed": stage, "error": f"exit {refused.code}"}
            except Exception as refused:
                text = f"{type(refused).__name__}: {refused or where(refused)}"
                return {**self.found, "failed": stage, "error": text}
        return {**self.found, "failed": None}

    def parse(self) -> None:
        from megatron.training import arguments

        def complain(parser: Any, message: str) -> None:
            raise ValueError(message)

        sys.argv = ["pretrain_gpt.py", *self.question["argv"]]
        arguments.argparse.ArgumentParser.error = complain
        self.args = arguments.parse_args()

    def validate(self) -> None:
        from megatron.training import arguments

        arguments.validate_args(self.args, {})

    def config(self) -> None:
        from megatron.training import arguments

        self.built = arguments.core_transformer_config_from_args(self.args)

    def optimizer(self) -> None:
        from megatron.training import training

        training.get_megatron_optimizer_config(self.args)
        training.get_megatron_ddp_config(self.args)

    def batch(self) -> None:
        from megatron.core import num_microbatches_calculator as calculator

        args = self.args
        calculator.init_num_microbatches_calculator(
            **known(
                calculator.init_num_microbatches_calculator,
                rank=0,
                rampup_batch_size=getattr(args, "rampup_batch_size", None),
                global_batch_size=args.global_batch_size,
                micro_batch_size=args.micro_batch_size,
                data_parallel_size=args.data_parallel_size,
                decrease_batch_size_if_needed=args.decrease_batch_size_if_needed,
            )
        )
        count = self.found["micro_batches"] = calculator.get_num_microbatches()
        if args.virtual_pipeline_model_parallel_size:
            # forward_backward_pipelining_with_interleaving asks for a CUDA tensor before it checks
            # this, so its two conditions stand here.
            pp = args.pipeline_model_parallel_size
            group = self.built.microbatch_group_size_per_vp_stage
            if not pp <= group <= count:
                raise ValueError(f"group of {group} micro-batches not within {pp} and {count}")
            if 0 < count % group < pp:
                raise RuntimeError(f"{count} micro-batches in groups of {group}: remainder < {pp}")

    def groups(self) -> None:
        from megatron.core import parallel_state as state

        self.as_rank(0)
        args = self.args
        pp, etp = args.pipeline_model_parallel_size, args.expert_tensor_parallel_size
        tp, cp, ep = (
            args.tensor_model_parallel_size,
            args.context_parallel_size,
            args.expert_model_parallel_size,
        )
        sizes = {"pp": pp, "order": self.order()}
        dense = state.RankGenerator(tp=tp, cp=cp, ep=1, dp=self.world // (tp * cp * pp), **sizes)
        experts = state.RankGenerator(
            tp=etp, cp=1, ep=ep, dp=self.world // (etp * ep * pp), **sizes
        )
        self.found["groups"] = {axis: dense.get_ranks(axis) for axis in ("tp", "cp", "dp", "pp")}
        self.found["groups"] |= {f"expert-{a}": experts.get_ranks(a) for a in ("tp", "ep", "dp")}

    def order(self) -> str:
        return "tp-cp-ep-pp-dp" if self.args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp"

    def as_rank(self, rank: int) -> None:
        """Take the place of one rank of the world."""
        import torch.distributed as dist
        from megatron.core import parallel_state as state
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if dist.is_initialized():
            state.destroy_model_parallel()
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=self.world, store=FakeStore())
        args = self.args
        state.initialize_model_parallel(
            **known(
                state.initialize_model_parallel,
                tensor_model_parallel_size=args.tensor_model_parallel_size,
                pipeline_model_parallel_size=args.pipeline_model_parallel_size,
                virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
                context_parallel_size=args.context_parallel_size,
                hierarchical_context_parallel_sizes=args.hierarchical_context_parallel_sizes,
                expert_model_parallel_size=args.expert_model_parallel_size,
                expert_tensor_parallel_size=args.expert_tensor_parallel_size,
                num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
                order=self.order(),
                create_gloo_process_groups=False,
            )
        )

    def model(self) -> None:
        import torch
        from gpt_builders import gpt_builder
        from hybrid_builders import hybrid_builder
        from megatron.core.tensor_parallel import random

        args, config = self.args, self.built
        config.perform_initialization = False
        tracker = random.get_cuda_rng_tracker()
        tracker.is_initialized = lambda: True
        tracker.fork = lambda *names: contextlib.nullcontext()
        build = hybrid_builder if args.hybrid_layer_pattern else gpt_builder
        chunks = args.virtual_pipeline_model_parallel_size
        layers, parameters = [], []
        for stage, rank in enumerate(self.found["groups"]["pp"][0]):
            self.as_rank(rank)
            row = []
            for chunk in range(chunks or 1):
                first = stage == chunk == 0
                last = (stage, chunk) == (args.pipeline_model_parallel_size - 1, (chunks or 1) - 1)
                with torch.device("meta"):
                    row.append(build(args, first, last, chunk if chunks else None, config=config))
            layers.append([len(part.decoder.layers) for part in row])
            parameters.append([sum(p.numel() for p in part.parameters()) for part in row])
        self.found |= {"layers": layers, "parameters": parameters}
        if sum(map(sum, layers)) != args.num_layers:
            raise RuntimeError(f"stages hold {layers}, --num-layers {args.num_layers}")


def where(error: BaseException) -> str:
    """The line of an assertion without a text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    with open(trace.tb_frame.f_code.co_filename) as source:
        return source.read().splitlines()[trace.tb_lineno - 1].strip()


def import_all() -> None:
    """Everything that a stage needs, before the first fork."""
    stand_in(9)
    transformer_engine_shapes.install()
    sys.path.insert(0, os.environ["MEGATRON_LM_PATH"])
    import gpt_builders  # noqa: F401
    import torch._dynamo  # noqa: F401
    from megatron.core.tensor_parallel import layers
    from megatron.core.transformer.moe import token_dispatcher
    from megatron.training import arguments, training  # noqa: F401
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    # Building its parser takes longer than all that follows.
    parser = arguments.add_megatron_arguments(
        argparse.ArgumentParser(description="Megatron-LM", allow_abbrev=False)
    )
    arguments.add_megatron_arguments = lambda _: parser
    # A cluster has Apex, DeepEP and HybridEP.
    layers._grad_accum_fusion_available = True
    for name in ("fused_dispatch", "set_deepep_num_sms"):
        setattr(token_dispatcher, name, getattr(token_dispatcher, name) or Idle)
    token_dispatcher._HybridEPManager = Idle  # it allocates on a device


def in_a_fork(question: dict[str, Any]) -> str:
    """The answer as a line, from a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            with os.fdopen(writing, "w") as pipe:
                pipe.write(json.dumps(Judge(question).answer()))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else json.dumps({"failed": "fork", "error": f"status {status}"})


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    quiet = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(quiet.fileno(), 1)
    os.dup2(quiet.fileno(), 2)
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        import_all()
        for line in sys.stdin:
            answers.write(in_a_fork(json.loads(line)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
