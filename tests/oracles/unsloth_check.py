"""Holds train.py of Unsloth against the signatures of a checkout, and TRL's own configuration.

`python tests/oracles/unsloth_check.py UNSLOTH TRL FILE...` prints a line (WRONG ...) for each
argument that a call does not take. Unsloth itself starts on a GPU only, so its functions are read
from their syntax trees; TRL's SFTConfig is made of what the script gives it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Function -> file and class that define it.
PLACES = {
    "from_pretrained": ("unsloth/models/loader.py", "FastLanguageModel"),
    "get_peft_model": ("unsloth/models/llama.py", "FastLlamaModel"),
}


def parameters(checkout: Path, function: str) -> set[str]:
    """The names that a function takes."""
    file, owner = PLACES[function]
    (found,) = (
        line
        for node in ast.parse((checkout / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == owner
        for line in node.body
        if isinstance(line, ast.FunctionDef) and line.name == function
    )
    return {one.arg for one in (*found.args.args, *found.args.kwonlyargs)}


def arguments(script: Path) -> dict[str, dict[str, ast.expr]]:
    """The arguments of each call of a script, by the last part of its name."""
    calls = (one for one in ast.walk(ast.parse(script.read_text())) if isinstance(one, ast.Call))
    return {
        ast.unparse(one.func).rpartition(".")[2]: {w.arg: w.value for w in one.keywords if w.arg}
        for one in calls
    }


def wrong(script: Path, known: dict[str, set[str]], config: Any) -> Iterator[str]:
    """What of a script is not taken."""
    said = arguments(script)
    for function, names in known.items():
        yield from (f"{function} has no {name}" for name in said.get(function, {}).keys() - names)
    asked = {name: ast.literal_eval(value) for name, value in said["SFTConfig"].items()}
    try:
        made = config(**asked, use_cpu=True)
    except (TypeError, ValueError) as error:
        yield f"SFTConfig: {error}"
        return
    for name, value in asked.items():
        if getattr(made, name) != value:
            yield f"SFTConfig.{name}: {getattr(made, name)!r}, not {value!r}"


def main(unsloth: str, trl: str, *scripts: str) -> None:
    sys.path.insert(0, trl)
    from trl import SFTConfig

    known = {name: parameters(Path(unsloth), name) for name in PLACES}
    for script in scripts:
        for line in wrong(Path(script), known, SFTConfig):
            print(f"WRONG {script}: {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
