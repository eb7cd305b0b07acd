"""Parses configurations of prime-rl as its `rl` command does.

    python tests/oracles/prime_rl_check.py CHECKOUT < CASES

CASES: a JSON list of the texts of TOML files.  Prints what each becomes, one JSON a line.  Runs in
an environment of its own, with what packages/prime-rl-configs of the checkout depends on
(prime-pydantic-config, renderers, verifiers): their versions are not those of ours.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path


def main(checkout: Path) -> None:
    """Parses all of them."""
    sys.path.insert(0, str(checkout / "packages" / "prime-rl-configs" / "src"))
    from prime_rl.configs.rl import RLConfig
    from pydantic_config import cli

    for text in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rl.toml"
            # The environment of the file is a package of its own; this one comes with verifiers.
            file.write_text(text.replace('id = "reverse-text"', 'id = "harbor"'))
            found = cli(RLConfig, args=["@", str(file), "--model.name", "Qwen/Qwen3-30B-A3B"])
        print(found.model_dump_json(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
