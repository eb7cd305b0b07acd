"""Composes verl's configurations with the overrides of a step, as Hydra does for its programs.

    python -m tests.oracles.rollouts_check CHECKOUT < CASES

CASES: a JSON list of [folder of the configuration, its name, overrides].  Prints what each becomes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def composed(checkout: Path, folder: str, name: str, overrides: list[str]) -> dict[str, Any]:
    """What verl reads of the rollouts.  Raises what Hydra does for a key that is not there."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(checkout / folder), version_base=None):
        config = compose(name, overrides)
    rollout = OmegaConf.to_container(config.actor_rollout_ref.rollout, resolve=False)
    return {"rollout": rollout, "trainer": {"nnodes": config.trainer.nnodes}}


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve()
    os.chdir(root)
    json.dump([composed(root, *case) for case in json.load(sys.stdin)], sys.stdout)
