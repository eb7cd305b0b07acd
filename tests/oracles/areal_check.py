"""Loads configurations of AReaL as its programs do, and parses the backends of their engines.

    python tests/oracles/areal_check.py CHECKOUT < CASES

CASES: a JSON list of the texts of YAML files.  Prints what each becomes, one JSON a line.  Modules
that only training imports are left out; areal/api/cli_args.py and alloc_mode.py run as they stand.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

ENGINES = ("rollout", "actor", "critic", "ref")


def main(root: Path) -> None:
    """Prints a line of JSON for each case."""
    for name in ("numba", "uvloop", "areal.utils.logging", "areal.utils.name_resolve"):
        sys.modules[name] = MagicMock()
    for name in ("areal", "areal.api", "areal.engine", "areal.engine.fsdp_utils", "areal.utils"):
        package = types.ModuleType(name)  # without what their __init__ imports
        package.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = package
    from areal.api.alloc_mode import ModelAllocation
    from areal.api.cli_args import GRPOConfig, parse_cli_args, to_structured_cfg
    from omegaconf import OmegaConf

    for text in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "grpo.yaml"
            file.write_text(text)
            loaded, _ = parse_cli_args(["--config", str(file)])
        config: Any = OmegaConf.to_object(to_structured_cfg(loaded, config_cls=GRPOConfig))
        found = dataclasses.asdict(config)
        for engine in ENGINES:
            if found[engine] is not None:
                allocated = ModelAllocation.from_str(found[engine]["backend"])
                found[engine]["parallel"] = dataclasses.asdict(allocated.parallel)
                found[engine]["world_size"] = allocated.world_size
        print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
