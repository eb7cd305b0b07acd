"""Training scripts against the real plugins and policies of ColossalAI, without an accelerator.

With the argument `fields` it writes the arguments of the plugins, with types: what
tests/golden/frameworks/colossalai_fields.json holds.  Without one it reads a JSON list of
{"train": source, "config": {...}, "world": ranks} from standard input and writes a JSON list, with
"" for what is accepted and else the error: the plugin is built, and the model is split by its
policy for the first and the last rank, on torch's process group that sends nothing.

COLOSSALAI_PATH is a checkout (4f9953b); transformers 4.51.3, peft, galore_torch, bitsandbytes,
contexttimer and rpyc must be importable.  Of flash attention and of apex only the names are there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
import typing
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

ABSENT = ("flash_attn", "apex", "ray", "rpyc", "diffusers")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that are only imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        module.__file__, module.__version__ = "", "2.7.0"
        return typing.cast(ModuleType, module)

    def exec_module(self, module: ModuleType) -> None:
        pass


def prepare() -> None:
    """ColossalAI importable, on a CPU."""
    sys.meta_path.insert(0, Absent())
    sys.path.insert(0, os.environ["COLOSSALAI_PATH"])
    import torch
    from colossalai.accelerator.cpu_accelerator import CpuAccelerator

    # One hands its argument on to a function that takes none, the other is not there.
    CpuAccelerator.get_rng_state = lambda self, device=None: torch.get_rng_state()
    CpuAccelerator.manual_seed = lambda self, seed: torch.manual_seed(seed)
    from colossalai.device.device_mesh import DeviceMesh

    DeviceMesh._DIST_BACKEND[None] = "gloo"  # a group that sends nothing has no device


def on_rank(rank: int, case: dict[str, Any]) -> None:
    """Build the plugin and split the model as one rank would."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=case["world"], store=FakeStore())
    try:
        space: dict[str, Any] = {"__name__": "train"}
        exec(compile(case["train"], "train.py", "exec"), space)
        plugin = space["plugin"]()
        from colossalai.lazy import LazyInitContext
        from colossalai.shardformer import ShardFormer
        from transformers import AutoConfig, AutoModelForCausalLM

        config = dict(case["config"])
        kind = config.pop("model_type")
        with LazyInitContext(default_device="cpu"):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(kind, **config),
                torch_dtype=space["DTYPE"],
                attn_implementation="eager",
            )
        model, _ = ShardFormer(plugin.shard_config).optimize(model)
        batch = space["MICRO_BATCH_SIZE"] * space["ACCUMULATION"] * plugin_dp(plugin, space)
        if batch != case["batch"]:
            raise ValueError(f"a step has {batch} sequences, not {case['batch']}")
    finally:
        dist.destroy_process_group()


def plugin_dp(plugin: Any, space: dict[str, Any]) -> int:
    """Ranks that get different sequences: the plugin's sampler says so."""
    loader = plugin.prepare_dataloader(space["MockData"](64, 64), 1)
    return int(loader.sampler.num_replicas)


def check(case: dict[str, Any]) -> str:
    """What ColossalAI says of one training script."""
    for rank in sorted({0, case["world"] - 1}):
        try:
            on_rank(rank, case)
        except Exception as error:
            import traceback

            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            return f"{type(error).__name__}: {error} [{place}]"
    return ""


def attributes() -> dict[str, dict[str, str]]:
    """Plugin -> argument -> its type as text."""
    from colossalai.booster import plugin

    return {
        name: {
            one.name: inspect.formatannotation(one.annotation)
            for one in inspect.signature(getattr(plugin, name).__init__).parameters.values()
            if one.name != "self"
        }
        for name in ("GeminiPlugin", "HybridParallelPlugin", "MoeHybridParallelPlugin")
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["fields"]:
        prepare()
        print("ANSWERS" + json.dumps(attributes()))
    else:
        cases = json.load(sys.stdin)
        prepare()
        print("ANSWERS" + json.dumps([check(case) for case in cases]))
