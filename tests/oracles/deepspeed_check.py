"""What DeepSpeed and Megatron-DeepSpeed themselves say, on a machine without accelerators.

    [MEGATRON_DEEPSPEED_PATH=<a checkout>] python tests/oracles/deepspeed_check.py < questions

One question per line, a JSON object: `config` (that of DeepSpeed), `argv` (arguments of
pretrain_gpt.py), `world_size`, `tp`, `pp` and `dp`, `environment`, `hostfile`.  One answer per
line, a JSON object: `failed` (a stage, null where all pass) with `error`, and what was found out:

    config    DeepSpeedConfig: `micro_batches`; a key that it never reads is refused
    engine    whether the engine has a wrapper for the optimizer under this precision
    pipeline  the pipeline engine's own condition, repeated: it asks for a device before
    topology  `groups` of its pipeline, data and model axes
    hostfile  the launcher's parser: `slots`
    parse     Megatron-DeepSpeed's argument parser      (these four only with a checkout)
    validate  its validate_args
    groups    its initialize_model_parallel on torch's fake process group: `data_parallel`
    model     GPTModelPipe, or GPTModel without a pipeline, for every stage on the meta device:
              `layers` and `parameters` of the first tensor-parallel rank, by stage

Every question is judged in a fork of the process that has imported everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
CHECKOUT = os.environ.get("MEGATRON_DEEPSPEED_PATH", "")
STAGES = ("config", "engine", "pipeline", "topology", "hostfile")
MEGATRON_STAGES = ("parse", "validate", "groups", "model")
# Read outside DeepSpeedConfig: by the engine.
ELSEWHERE = {"data_types", "steps_per_print"}


class Recorded(dict[str, Any]):
    """A document that knows which of its keys were asked for."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


@contextlib.contextmanager
def ranks(world: int) -> Iterator[None]:
    """Of what it asks its process group, which is not there, only this: without, one rank."""
    from deepspeed import comm

    asked = comm.get_rank, comm.get_world_size
    comm.get_rank, comm.get_world_size = lambda *a, **k: 0, lambda *a, **k: world
    try:
        yield
    finally:
        comm.get_rank, comm.get_world_size = asked


class Judge:
    """One question on its way through the stages."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.question = question
        self.world: int = question["world_size"]
        self.found: dict[str, Any] = {}

    def answer(self) -> dict[str, Any]:
        os.environ.update(self.question.get("environment", {}))
        os.environ.update(WORLD_SIZE=str(self.world), RANK="0", LOCAL_RANK="0")
        for stage in (*STAGES, *(MEGATRON_STAGES if CHECKOUT else ())):
            try:
                getattr(self, stage)()
            except (Exception, SystemExit) as refused:
                text = f"{type(refused).__name__}: {refused}"
                return {**self.found, "failed": stage, "error": text}
        return {**self.found, "failed": None}

    def config(self) -> None:
        import deepspeed.runtime.config as runtime

        question = self.question
        grid = types.SimpleNamespace(
            get_data_parallel_world_size=lambda: question["dp"],
            get_data_parallel_rank=lambda: 0,
            get_model_parallel_world_size=lambda: question["tp"],
            get_model_parallel_rank=lambda: 0,
        )
        document = Recorded(question["config"])
        with ranks(self.world):
            self.read = runtime.DeepSpeedConfig(document, grid)
        unread = set(document) - document.asked - ELSEWHERE
        if unread:
            raise ValueError(f"it never reads {sorted(unread)}")
        self.found["micro_batches"] = self.read.gradient_accumulation_steps
        self.found["zero_stage"] = self.read.zero_optimization_stage

    def engine(self) -> None:
        import torch
        from deepspeed.runtime.engine import DeepSpeedEngine

        argv = self.question["argv"]
        kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        optimizer = kind[argv[argv.index("--optimizer") + 1]]([torch.nn.Parameter(torch.ones(1))])
        engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
        torch.nn.Module.__init__(engine)
        engine._config, engine.global_rank = self.read, 0
        engine.pipeline_parallelism = self.question["pp"] > 1
        with ranks(self.world):
            engine._do_optimizer_sanity_check(optimizer)

    def pipeline(self) -> None:
        if self.question["pp"] > 1 and self.read.zero_optimization_stage >= 2:
            raise ValueError("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism")

    def topology(self) -> None:
        from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

        pp, tp = self.question["pp"], self.question["tp"]
        grid = PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=self.world // (pp * tp))
        self.found["groups"] = {
            axis: grid.get_axis_comm_lists(axis) for axis in ("pipe", "data", "model")
        }
        self.stages = [grid.get_rank(pipe=stage, data=0, model=0) for stage in range(pp)]

    def hostfile(self) -> None:
        from deepspeed.launcher.runner import _parse_hostfile

        lines = self.question["hostfile"].splitlines()
        self.found["slots"] = sum(_parse_hostfile(lines).values())

    def parse(self) -> None:
        from megatron import arguments

        def complain(parser: Any, message: str) -> None:
            raise ValueError(message)

        arguments.argparse.ArgumentParser.error = complain
        sys.argv = ["pretrain_gpt.py", *self.question["argv"]]
        self.args = arguments.parse_args()
        self.args.deepspeed = True
        self.args.deepspeed_config_dict = self.question["config"]

    def validate(self) -> None:
        import deepspeed
        from megatron import arguments

        # It looks for CUDA_DEVICE_MAX_CONNECTIONS only where the device is CUDA's.
        here, cuda = deepspeed.accelerator, types.SimpleNamespace(device_name=lambda: "cuda")
        deepspeed.accelerator = types.SimpleNamespace(get_accelerator=lambda: cuda)
        try:
            arguments.validate_args(self.args, {})
        finally:
            deepspeed.accelerator = here
        if self.args.ds_sequence_parallel_size > 1 and self.args.sequence_parallel:
            # _initialize_distributed asks for devices before it says so.
            raise RuntimeError("sequence parallelism of DeepSpeed and of Megatron together")

    def as_rank(self, rank: int) -> None:
        """Take the place of one rank of the world."""
        import deepspeed
        import torch.distributed as dist
        from megatron.core import mpu
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if dist.is_initialized():
            mpu.destroy_model_parallel()
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=self.world, store=FakeStore())
        deepspeed.comm.comm.cdb = None
        deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
        mpu.initialize_model_parallel(
            self.args.tensor_model_parallel_size,
            self.args.pipeline_model_parallel_size,
            self.args.ds_sequence_parallel_size,
        )

    def groups(self) -> None:
        from megatron.core import mpu

        self.as_rank(0)
        self.found["data_parallel"] = mpu.get_data_parallel_world_size()

    def model(self) -> None:
        import torch
        from megatron import arguments, global_vars
        from megatron.core.enums import ModelType
        from megatron.model import GPTModel, GPTModelPipe
        from megatron.model.transformer import ParallelTransformerLayer
        from megatron.tokenizer import build_tokenizer

        args = self.args
        build_tokenizer(args)
        global_vars.set_args(args)
        # What is moved to a device stays without data.
        torch.nn.Module.to = lambda self, *a, **k: self  # type: ignore[method-assign]
        moved = torch.Tensor.to
        torch.Tensor.to = lambda self, *a, **k: (  # type: ignore[method-assign]
            self if self.is_meta else moved(self, *a, **k)
        )
        numbers = torch.Tensor.item
        torch.Tensor.item = lambda self: (  # type: ignore[method-assign]
            0.0 if self.is_meta else numbers(self)  # rates of dropped paths
        )
        args.model_type = ModelType.encoder_or_decoder
        args.use_cpu_initialization, args.perform_initialization = True, False
        # Only CUDA builds have these; no weight hangs on them.
        args.masked_softmax_fusion = args.gradient_accumulation_fusion = False
        args.use_flash_attn = args.use_flash_attn_v2 = False
        config = arguments.core_transformer_config_from_args(args)
        layers, parameters = [], []
        for rank in self.stages:
            self.as_rank(rank)
            with torch.device("meta"):
                if args.no_pipeline_parallel:
                    built = GPTModel(config=config, num_tokentypes=0, parallel_output=True)
                else:
                    built = GPTModelPipe(config=config, num_tokentypes=0, parallel_output=True)
            layers.append(
                sum(isinstance(module, ParallelTransformerLayer) for module in built.modules())
            )
            parameters.append(sum(p.numel() for p in built.parameters()))
        self.found |= {"layers": layers, "parameters": parameters}


def import_all() -> None:
    """Everything that a stage needs, before the first fork; some of it only deep inside."""
    import torch

    for name in (
        "deepspeed.launcher.runner", "deepspeed.runtime.config", "deepspeed.runtime.engine",
        "deepspeed.runtime.pipe.topology", "deepspeed.runtime.zero.muon.muon_optimizer",
        "torch._dynamo", "torch.testing._internal.distributed.fake_pg",
    ):  # fmt: skip
        import_module(name)

    torch.set_num_threads(1)
    if CHECKOUT:
        sys.path.insert(0, CHECKOUT)
        import megatron.arguments
        import megatron.model
        import megatron.tokenizer  # noqa: F401


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
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    import_all()
    for line in sys.stdin:
        answers.write(in_a_fork(json.loads(line)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
