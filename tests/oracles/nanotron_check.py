"""What nanotron's own code makes of a config, on CPU, in a process of its own.

    NANOTRON_PATH=CHECKOUT PYTHONPATH=FOLDER_WITH_DACITE python nanotron_check.py fields|check

fields: prints the dataclasses of its config with the types and which fields must be given.
check: reads a JSON list of {config, world, local} and prints for each what was understood, or the
error: its config classes (dacite, strict), the ParallelContext of rank 0, and build_model, which
deals layers out to stages.  flash_attn and grouped_gemm, which need a GPU, are pretended, and so
is the process group.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import tempfile
import types
import typing
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

PRETENDED = ("flash_attn", "grouped_gemm")


class Pretended(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module of the pretended packages."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] in PRETENDED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = MagicMock()
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        module.__version__ = "2.6.0"
        return module

    def exec_module(self, module: Any) -> None:
        pass


sys.meta_path.insert(0, Pretended())
sys.path.insert(0, str(Path(os.environ["NANOTRON_PATH"]) / "src"))

import nanotron.distributed as dist  # noqa: E402
import nanotron.models.base as base  # noqa: E402
import torch  # noqa: E402
from nanotron.config import config as configs  # noqa: E402
from nanotron.config import lighteval_config, models_config, parallelism_config  # noqa: E402
from nanotron.models.qwen import Loss, Qwen2DecoderLayer, Qwen2Model  # noqa: E402
from nanotron.parallel.context import ParallelContext  # noqa: E402
from nanotron.parallel.pipeline_parallel.block import PipelineBlock  # noqa: E402
from nanotron.parallel.tensor_parallel.nn import TensorParallelColumnLinear  # noqa: E402


def plain(kind: Any) -> str:
    """A type by the names of its classes alone."""
    return re.sub(r"<class '([^']*)'>", r"\1", re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(kind)))


def fields() -> dict[str, Any]:
    """Every dataclass of the config: field -> [type, whether it must be given]."""
    found = {}
    for module in (configs, models_config, parallelism_config, lighteval_config):
        for name, kind in vars(module).items():
            if dataclasses.is_dataclass(kind) and isinstance(kind, type):
                hints = typing.get_type_hints(kind)
                found[name] = {
                    field.name: [
                        plain(hints[field.name]),
                        field.default is dataclasses.MISSING
                        and field.default_factory is dataclasses.MISSING,
                    ]
                    for field in dataclasses.fields(kind)
                }
    return dict(sorted(found.items()))


class Block(PipelineBlock):
    """A block that only notes its stage."""

    def __init__(self, builder: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module_builder = builder

    def build_and_set_rank(self, pp_rank: int) -> None:
        self.rank = pp_rank


class Group(tuple):
    """The ranks of a group."""

    def size(self) -> int:
        return len(self)


def pretend_processes() -> None:
    """A process group of any size, seen from rank 0."""
    dist.new_group = lambda ranks, backend=None: Group(int(rank) for rank in ranks)
    dist.barrier = lambda *args, **kwargs: None
    dist.get_backend = lambda: "nccl"
    dist.is_initialized = lambda: True
    dist.get_rank = lambda group=None: 0
    ParallelContext.set_device = lambda self: None
    base.log_rank = lambda *args, **kwargs: None


def stages(config: Any, context: Any) -> list[int]:
    """Layers of each stage by build_model, over the blocks of Qwen2ForTraining."""
    model = config.model.model_config
    tp = config.parallelism.tp
    multiple = config.model.make_vocab_size_divisible_by * tp
    model.vocab_size = -(-model.vocab_size // multiple) * multiple
    layers = [Block(Qwen2DecoderLayer) for _ in range(model.num_hidden_layers)]
    blocks = [Block(None), *layers, Block(None), Block(TensorParallelColumnLinear), Block(Loss)]
    stub = types.SimpleNamespace(
        named_modules=lambda: [(str(i), block) for i, block in enumerate(blocks)],
        get_block_compute_costs=lambda: Qwen2Model.get_block_compute_costs(
            types.SimpleNamespace(config=model)
        ),
        log_modules=lambda **kwargs: None,
    )
    base.build_model(lambda: stub, context, torch.bfloat16, device=torch.device("cpu"))
    return [sum(layer.rank == stage for layer in layers) for stage in range(context.pp_pg.size())]


def check(case: dict[str, Any]) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(case["config"])
        file.flush()
        config = configs.get_config_from_file(file.name)
    os.environ.update(
        WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(case["local"])
    )
    parallelism, model = config.parallelism, config.model.model_config
    context = ParallelContext(
        tensor_parallel_size=parallelism.tp,
        pipeline_parallel_size=parallelism.pp,
        data_parallel_size=parallelism.dp,
        context_parallel_size=parallelism.context_parallel_size,
        expert_parallel_size=parallelism.expert_parallel_size,
    )
    moe = model.moe_config
    return {
        "model": type(model).__name__,
        "layers": model.num_hidden_layers,
        "vocab_size": model.vocab_size,
        "experts": moe and [moe.num_experts, moe.top_k, moe.layers, moe.enable_shared_expert],
        "engine": str(parallelism.pp_engine),
        "tp_mode": parallelism.tp_mode.name,
        "async": parallelism.tp_linear_async_communication,
        "recompute": parallelism.recompute_layer,
        "dtype": str(config.model.dtype),
        "optimizer": config.optimizer.optimizer_factory.name,
        "zero_stage": config.optimizer.zero_stage,
        "fp32": config.optimizer.accumulate_grad_in_fp32,
        "global_batch_size": config.global_batch_size,
        "sequence_length": config.data_stages[0].sequence_length,
        "data": config.data_stages[0].data.dataset,
        "groups": {name: getattr(context, f"{name}_pg") for name in ("tp", "dp", "pp")},
        "stages": stages(config, context),
    }


def main() -> None:
    if sys.argv[1] == "fields":
        print(json.dumps(fields(), indent=1))
        return
    pretend_processes()
    answers = []
    for case in json.load(sys.stdin):
        try:
            answers.append(check(case))
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
    print("ANSWERS" + json.dumps(answers))


if __name__ == "__main__":
    main()
