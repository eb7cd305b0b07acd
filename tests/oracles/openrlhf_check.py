"""OpenRLHF's own parser, and the checks after it, of the words of launches.

    python tests/oracles/openrlhf_check.py CHECKOUT < CASES

CASES: a JSON list of lists of words.  Prints what each becomes, by section.  The program is run as
it stands but for what trains; ray and torch, which only that needs, are not imported.
"""

from __future__ import annotations

import contextlib
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

PROGRAM, TRAINS = "openrlhf/cli/train_ppo_ray.py", "\n    train(args)\n"


def parsed(source: str, words: list[str]) -> Any:
    """The namespace that the program would train with."""
    sys.argv = [PROGRAM, *words]
    found: list[Any] = []
    exec(compile(source, PROGRAM, "exec"), {"__name__": "__main__", "found": found})
    return found[0]


def main(root: Path) -> None:
    """Prints a line of JSON for each case."""
    for name in (
        "ray", "ray.util", "ray.util.placement_group", "openrlhf.trainer", "openrlhf.trainer.ray",
        "openrlhf.trainer.ray.launcher", "openrlhf.trainer.ray.ppo_actor",
        "openrlhf.trainer.ray.ppo_critic",
    ):  # fmt: skip
        sys.modules[name] = MagicMock()
    for name in ("openrlhf", "openrlhf.utils"):  # without what their __init__ imports
        package = types.ModuleType(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        package.get_strategy = None  # type: ignore[attr-defined]
        sys.modules[name] = package
    source = (root / PROGRAM).read_text()
    assert source.count(TRAINS) == 1
    source = source.replace(TRAINS, "\n    found.append(args)\n")
    for words in json.load(sys.stdin):
        with contextlib.redirect_stdout(sys.stderr):
            args = parsed(source, words)
        print(json.dumps(args, default=vars))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
