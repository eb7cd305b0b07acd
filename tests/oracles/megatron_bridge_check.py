"""Recipes against the real configuration of Megatron-Bridge, without an accelerator.

With the argument `fields` it writes the attributes of every configuration class, with types and
choices: what tests/golden/frameworks/megatron_bridge_fields.json holds.  Without one it reads a
JSON list of {"recipe": source, "world": ranks, "environment": {...}} from standard input and
writes a JSON list, with "" for what is accepted and else the error of Bridge or Megatron-Core.

MEGATRON_BRIDGE_PATH and MEGATRON_LM_PATH are checkouts: Bridge 067f987, and the Megatron-LM of its
submodule, 2a75ac1.  torch, omegaconf and hydra-core must be installed.

Of a GPU, of Transformer Engine and of nvidia-resiliency-ext only what configuration asks is there.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
import typing
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import typing_extensions

ABSENT = ("megatron.bridge.peft", "nvidia_resiliency_ext", "modelopt", "megatron.energon")
ABSENT += ("qwen_vl_utils", "mlflow", "comet_ml", "diffusers", "timm", "open_clip", "fla")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that the configuration only imports."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == one or name.startswith(f"{one}.") for one in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        module.__file__, module.__version__ = "", "99"
        return typing.cast(ModuleType, module)

    def exec_module(self, module: ModuleType) -> None:
        pass


class FusedAdam:
    """The parameters that Megatron-Core looks for."""

    def __init__(
        self,
        master_weight_dtype: Any,
        exp_avg_dtype: Any,
        exp_avg_sq_dtype: Any,
        use_decoupled_grad: bool,
    ) -> None: ...


def prepare() -> None:
    """Bridge importable and a GPU pretended."""
    typing.override = typing_extensions.override  # type: ignore[attr-defined]
    sys.meta_path.insert(0, Absent())
    paths = (os.environ["MEGATRON_BRIDGE_PATH"] + "/src", os.environ["MEGATRON_LM_PATH"])
    sys.path[:0] = paths
    import torch

    device = types.SimpleNamespace(major=9, minor=0, name="NVIDIA H100", total_memory=80 << 30)
    torch.cuda.get_device_properties = lambda *a, **k: device  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    import megatron.core.utils
    from megatron.core.models.common.embeddings import rope_utils
    from packaging.version import Version

    megatron.core.utils._te_version = Version("2.12.0")
    rope_utils.fused_apply_rotary_pos_emb = lambda *a, **k: None
    import megatron.bridge.training.comm_overlap

    megatron.bridge.training.comm_overlap.HAVE_TE = True
    optimizers = ModuleType("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = FusedAdam  # type: ignore[attr-defined]
    sys.modules[optimizers.__name__] = optimizers


def check(case: dict[str, Any]) -> str:
    """What Bridge says of one recipe."""
    from megatron.bridge.training.config import runtime_config_update

    for name in [name for name in os.environ if name.startswith(("CUDA_", "NVTE_", "NCCL_"))]:
        del os.environ[name]
    os.environ.update({"WORLD_SIZE": str(case["world"]), "RANK": "0", **case["environment"]})
    try:
        space: dict[str, Any] = {"__name__": "recipe"}
        exec(compile(case["recipe"], "recipe.py", "exec"), space)
        config = space["config"]()
        runtime_config_update(config)
        batch = config.train.global_batch_size
        rest = batch % (config.train.micro_batch_size * config.data_parallel_size)
        return f"{batch} sequences leave {rest}" if rest else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def described(annotation: Any) -> dict[str, list[Any]]:
    """Names of the types and the values that an annotation admits."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return {"types": [], "choices": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        parts = [described(one) for one in arguments]
        return {key: [x for part in parts for x in part[key]] for key in ("types", "choices")}
    name = getattr(origin or annotation, "__name__", str(annotation))
    return {"types": [name.rpartition(".")[2]], "choices": []}


def attributes() -> dict[str, dict[str, dict[str, list[Any]]]]:
    """Class -> attribute -> what it admits."""
    from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.training import comm_overlap, config, mixed_precision

    kinds = [
        config.GPTModelProvider,
        HybridModelProvider,
        MLAModelProvider,
        comm_overlap.CommOverlapConfig,
        mixed_precision.MixedPrecisionConfig,
        *(
            getattr(config, name)
            for name in (
                "CheckpointConfig",
                "DistributedDataParallelConfig",
                "DistributedInitConfig",
                "LoggerConfig",
                "MockGPTDatasetConfig",
                "OptimizerConfig",
                "RNGConfig",
                "SchedulerConfig",
                "TokenizerConfig",
                "TrainingConfig",
                "ValidationConfig",
            )
        ),
    ]
    return {
        kind.__name__: {
            one.name: described(one.type)
            for one in sorted(dataclasses.fields(kind), key=lambda one: one.name)
            if not one.name.startswith("_")
        }
        for kind in kinds
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["fields"]:
        prepare()
        print("ANSWERS" + json.dumps(attributes()))
        sys.exit()
    cases = json.load(sys.stdin)
    prepare()
    print("ANSWERS" + json.dumps([check(case) for case in cases]))
