"""Arguments against the real parsers and validation of Megatron-LM and MindSpeed, without an NPU.

With the argument `flags` it writes the options of the parser, with kinds, types and choices: what
planner/frameworks/mindspeed/arguments.json holds.  Without one it reads a JSON list of
{"words": [...], "world": ranks, "environment": {...}} from standard input and writes a JSON list,
with "" for what is accepted and else the error of Megatron-LM or MindSpeed.

MEGATRON_0_12_PATH and MINDSPEED_PATH are checkouts: Megatron-LM core_v0.12.1 and MindSpeed 028de58.
Of an NPU and its libraries only what is imported is there; MindSpeed's patches are not applied.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import types
import typing
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

ABSENT = ("torch_npu", "apex", "transformer_engine", "torchair", "acl", "bitsandbytes")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that the parsers only import."""

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


def features() -> list[Any]:
    """MindSpeed's features, with both packages importable."""
    import torch

    device = types.SimpleNamespace(major=9, minor=0, total_memory=64 << 30)
    torch.cuda.get_device_properties = lambda *a, **k: device  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    sys.path[:0] = [os.environ["MINDSPEED_PATH"], os.environ["MEGATRON_0_12_PATH"]]
    # First Megatron-LM, which must find neither apex nor Transformer Engine.
    import megatron.core.utils
    import megatron.training.arguments
    from megatron.core.models.common.embeddings import rope_utils
    from packaging.version import Version

    megatron.core.utils._te_version = Version("2.8.0")
    rope_utils.fused_apply_rotary_pos_emb = lambda *a, **k: None
    sys.meta_path.insert(0, Absent())
    from mindspeed.features_manager import create_features_list

    return list(create_features_list())


def with_features(known: list[Any]) -> Any:
    def extra(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.conflict_handler = "resolve"  # as mindspeed.arguments does
        for feature in known:
            feature.register_args(parser)
        return parser

    return extra


def check(case: dict[str, Any], known: list[Any]) -> str:
    """What Megatron-LM and MindSpeed say of one launch."""
    from megatron.training import arguments

    for name in [name for name in os.environ if name.startswith(("CUDA_", "HCCL_"))]:
        del os.environ[name]
    os.environ.update({"WORLD_SIZE": str(case["world"]), "RANK": "0", **case["environment"]})
    sys.argv = ["pretrain_gpt.py", *case["words"]]
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            args = arguments.parse_args(with_features(known))
            for feature in known:
                feature.pre_validate_args(args)
            arguments.validate_args(args)
            for step in ("post_validate_args", "validate_args"):
                for feature in known:
                    getattr(feature, step)(args)
            arguments.core_transformer_config_from_args(args)
    except SystemExit:
        return noise.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def options(known: list[Any]) -> dict[str, dict[str, Any]]:
    """Option -> what it takes."""
    from megatron.training import arguments

    found: dict[str, dict[str, Any]] = {}
    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    with_features(known)(parser)
    for action in parser._actions:
        for name in action.option_strings:
            if not name.startswith("--") or name == "--help":
                continue
            row: dict[str, Any] = {"kind": "switch" if action.nargs == 0 else "store"}
            if action.nargs not in (0, None):
                row["nargs"] = action.nargs
            if action.nargs != 0:
                row["type"] = getattr(action.type, "__name__", "str")
            if action.choices is not None:
                row["choices"] = [str(getattr(one, "name", one)) for one in action.choices]
            found[name] = row
    return dict(sorted(found.items()))


if __name__ == "__main__":
    cases = [] if sys.argv[1:] else json.load(sys.stdin)
    everything = features()
    if sys.argv[1:] == ["flags"]:
        print("ANSWERS" + json.dumps(options(everything)))
    else:
        print("ANSWERS" + json.dumps([check(case, everything) for case in cases]))
