"""registry.json of planner.frameworks.torchtitan, made from the installed torchtitan.

`python -m tests.oracles.torchtitan_registry` writes it anew; a test holds it against this.
"""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planner.frameworks.python.static_evaluation import Program
from planner.frameworks.python.static_values import Call, Unknown
from planner.frameworks.torchtitan.packages import PACKAGES
from planner.frameworks.torchtitan.read_model import Tree
from planner.frameworks.torchtitan.registry import hidden_dim

STORED = Path(__file__).parents[2] / "planner" / "frameworks" / "torchtitan" / "registry.json"
SECTIONS = ("training", "parallelism", "compile")


def package_path() -> Path:
    spec = find_spec("torchtitan")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def library(call: Call) -> Any:
    return hidden_dim(call) if call.short == "compute_ffn_hidden_dim" else call


def flavors(package: str) -> dict[str, Any]:
    """The sizes of a package's flavors, and the backends that model_registry takes unsaid."""
    path = package_path() / "models" / package / "__init__.py"
    program = Program(path.read_text(), package, library)
    table = next(v for name, v in program.globals.items() if name.endswith("_configs"))
    words = program.functions["model_registry"].args
    last = len(words.args) - len(words.defaults)
    given = {
        one.arg: program.value(default, {})
        for one, default in zip(words.args[last:], words.defaults, strict=True)
    }
    sizes = {}
    for flavor, function in table.items():
        made = program.functions[function.source]
        names = {one.arg for one in (*made.args.args, *made.args.kwonlyargs)}
        built = program.invoke(made, [], {k: v for k, v in given.items() if k in names})
        sizes[flavor] = Tree(package).architecture(built).model
    backends = {k: v for k, v in given.items() if k in ("attn_backend", "moe_comm_backend")}
    return {"flavors": sizes, **backends}


def known(words: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in words.items() if not isinstance(v, Unknown | Call)}


def configs(package: str) -> dict[str, Any]:
    """What the config functions of a package set of what a plan can hold."""
    path = package_path() / "models" / package / "config_registry.py"
    program = Program(path.read_text(), package, library)
    found = {}
    for name in program.functions:
        made = program.call(name) if not program.functions[name].args.args else None
        if not isinstance(made, Call) or made.short != "Trainer.Config":
            continue
        model = dict(made.kwargs["model_spec"].kwargs)
        converters = model.pop("converters", None)
        model = known(model)
        if converters:
            model["converters"] = [[one.short, known(one.kwargs)] for one in converters]
        checkpoint = made.kwargs.get("activation_checkpoint", Call("SelectiveAC.Config", 0))
        settings = {
            section: known(made.kwargs[section].kwargs)
            for section in SECTIONS
            if isinstance(made.kwargs.get(section), Call)
        }
        found[name] = {
            "flavor": made.kwargs["model_spec"].args[0],
            "model": model,
            "activation_checkpoint": None if checkpoint is None else checkpoint.short,
            "loss": made.kwargs["loss"].short,
            "settings": {section: words for section, words in settings.items() if words},
        }
    return found


def fields() -> dict[str, Any]:
    """The fields of the closed sections with their defaults."""
    from torchtitan.config import configs as owners

    classes = (owners.TrainingConfig, owners.ParallelismConfig, owners.CompileConfig)
    made = {}
    for section, owner in zip(SECTIONS, classes, strict=True):
        made[section] = dataclasses.asdict(owner())
    return made


def document() -> dict[str, Any]:
    return {
        "version": version("torchtitan"),
        "fields": fields(),
        "models": {package: flavors(package) for package in PACKAGES},
        "configs": {package: configs(package) for package in PACKAGES},
    }


if __name__ == "__main__":
    STORED.write_text(json.dumps(document(), indent=1) + "\n")
