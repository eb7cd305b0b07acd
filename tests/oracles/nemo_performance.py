"""What NeMo 2's performance scripts make of their recipes, from a checkout.

    python -m tests.oracles.nemo_performance CHECKOUT COMMIT

With `answers` for the commit it reads launches and says what the scripts resolve (the test beside).
The scripts of scripts/performance/llm run as they are, with their own helpers and recipes and stubs
for the rest (tests/oracles/nemo_recipes.py).  The table has the recommended configurations
and, by script, the recipe, what is set of it before and after the helpers' common part, and which
options reach that part.  The common part itself is in planner/frameworks/megatron_bridge.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import inspect
import itertools
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from planner.frameworks.megatron_bridge import nemo2
from tests.oracles import nemo_recipes
from tests.oracles.recipe_stubs import FILLERS, Kept, write_table

TABLE = Path("planner/frameworks/megatron_bridge/nemo2_performance.json")
FOLDER = "scripts/performance"
GPUS = ("h100", "b200", "gb200")
# What a script itself may look at: the values that are tried, the usual one first.
TRIED = {
    "gpu": GPUS,
    "finetuning": ("lora", "sft"),
    "compute_dtype": ("bf16", "fp8"),
    "use_mcore_fsdp": ("false", "true"),
    "cuda_graphs": ("false", "true"),
    "tensor_parallel_size": ("1", "2", "4", "8"),
    "pipeline_parallel_size": ("1", "2", "4", "8", "16"),
    "virtual_pipeline_parallel_size": ("1", "2", "4"),
    "num_gpus": tuple(str(64 * count) for count in range(1, 17)),
    "recompute_modules": ("", "moe_act"),
}
# Those on which the effect of others depends.
FIRST = ("gpu", "finetuning", "compute_dtype", "use_mcore_fsdp")
# An option that matters -> another that may matter where that one has another value.
TOGETHER = {
    "pipeline_parallel_size": "virtual_pipeline_parallel_size",
    "tensor_parallel_size": "compute_dtype",
}
# Option -> the common part's name for it, the configuration's, and a value that is not the usual.
HANDED = {
    "expert_tensor_parallel_size": ("etp_size", "etp_size", 2),
    "cuda_graphs": ("enable_cuda_graphs", "cuda_graphs", 1),
    "use_mcore_fsdp": ("use_mcore_fsdp", "use_mcore_fsdp", 1),
    "recompute_layers": ("recompute_layers", "recompute_layers", 3),
    "activation_offload_layers": ("activation_offload_layers", "activation_offload_layers", 3),
    "recompute_modules": ("recompute_modules", "recompute_modules", "moe_act"),
}
ALONE = dict.fromkeys(
    ("num_gpus", "mbs", "gbs", "tp_size", "pp_size", "cp_size", "ep_size", "vp_size"), 1
) | {"num_gpus": 64, "gbs": 64}
# How scripts end where options do not go together.
REFUSALS = (ValueError, KeyError, AssertionError, AttributeError)
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


class Experiment:
    """nemo_run.Experiment, which keeps what it is given to run."""

    added: ClassVar[list[tuple[Any, Any]]] = []

    def __init__(self, name: str) -> None:
        self.jobs: list[Any] = []

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add(self, task: Any, executor: Any = None, name: str = "", **words: Any) -> Any:
        if task.trainer is not None:  # not an import of weights or data
            self.added.append((task, executor))
        return task

    def run(self, **words: Any) -> None:
        pass

    dryrun = run


class Run(nemo_recipes.Run):
    """nemo_run with experiments."""

    Experiment = Experiment


class Scripts:
    """The scripts of a checkout.

    Of the last run, picked: its task, model and size; recipe: the row of nemo2.json that it took;
    before and after: its values around the common part, handed: what that part was given.
    """

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        FILLERS["get_nemorun_home"] = lambda: "/nemo"
        nemo_recipes.recipes_package(checkout, lambda name: Run(name) if name == "nemo_run" else (
            nemo_recipes.stub(name)
        ))  # fmt: skip
        sys.path.insert(0, str(checkout))
        os.environ["NEMO_HOME"] = "/nemo"
        helpers = importlib.import_module("scripts.performance.helpers")
        self._configured, self._common = helpers.get_csv_configs, helpers.set_primary_perf_configs
        helpers.get_csv_configs = self._configuration
        helpers.set_primary_perf_configs = self._in_common
        self._row: dict[str, Any] | None = None
        self.picked: tuple[str, ...] = ()
        self.recipe = ""
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}
        self.handed: dict[str, Any] = {}

    def names(self) -> list[str]:
        """The scripts that train with the common part."""
        folder = self.checkout / FOLDER / "llm"
        own = (file for file in folder.glob("*_*.py") if "__init__" not in file.name)
        return sorted(file.stem for file in own if "set_primary_perf_configs" in file.read_text())

    def _configuration(self, gpu: str, *words: Any) -> Any:
        self.picked = words[:3]
        return self._configured(gpu, *words) if self._row is None else dict(self._row)

    def _in_common(self, recipe: Any, *words: Any, **values: Any) -> Any:
        self.before = values_of(recipe)
        self.handed = inspect.signature(self._common).bind(recipe, *words, **values).arguments
        made = self._common(recipe, *words, **values)
        self.after = values_of(made)
        return made

    def run(
        self, name: str, options: Mapping[str, str], row: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The values that a script resolves; row: instead of a recommended configuration.

        Raises what the script raises.
        """
        self._row, self.handed = row, {}
        Experiment.added.clear()
        words = [word for key, value in options.items() if value for word in (f"--{key}", value)]
        kept, sys.argv = sys.argv, [name, "-a", "a", "-p", "p", "-hf", "t", *words]
        self._watch(name)
        try:
            runpy.run_module(f"scripts.performance.llm.{name}", run_name="__main__")
        finally:
            sys.argv = kept
        recipe, executor = Experiment.added[-1]
        values = values_of(recipe)
        if _ALLOCATOR in executor.env_vars:
            values[f"env_vars.{_ALLOCATOR}"] = executor.env_vars[_ALLOCATOR]
        return values

    def _watch(self, name: str) -> None:
        """Has the recipe's module say which of its functions is called, and how."""
        text = (self.checkout / FOLDER / "llm" / f"{name}.py").read_text()
        short = text.partition("from nemo.collections.llm.recipes.")[2].partition(" ")[0]
        module = importlib.import_module(f"{nemo_recipes.RECIPES}.{short}")
        for function in nemo2.FUNCTIONS:
            if not hasattr(getattr(module, function, None), "watched"):
                self._wrap(module, function)

    def _wrap(self, module: ModuleType, function: str) -> None:
        make = getattr(module, function, None)
        if not inspect.isfunction(make):
            return
        known = [one for one in nemo_recipes.VARIANTS if one in inspect.signature(make).parameters]
        usual = {"performance_mode": False, "peft_scheme": "lora"}

        def watched(**words: Any) -> Any:
            chosen = {one: words.get(one, usual[one]) for one in known}
            self.recipe = nemo_recipes.key_of(module.__name__, function, chosen)
            return make(**words)

        watched.watched = True  # type: ignore[attr-defined]
        setattr(module, function, watched)


def values_of(recipe: Kept) -> dict[str, Any]:
    """What a recipe sets, by the names of Bridge's container."""
    return dict(nemo_recipes.said(recipe))


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What is set otherwise; None where it is gone."""
    keys = sorted({*old, *new})
    return {key: new.get(key) for key in keys if old.get(key) != new.get(key)}


def case(scripts: Scripts, name: str, options: Mapping[str, str]) -> dict[str, Any] | None:
    """What a script does by itself with these options; None where it refuses them."""
    try:
        final = scripts.run(name, options, ALONE)
    except REFUSALS:
        return None
    base = nemo2.table()["recipes"][scripts.recipe]
    before, after = changed(base, scripts.before), changed(scripts.after, final)
    return {"recipe": scripts.recipe, "before": before, "after": after}


def handed(scripts: Scripts, name: str, usual: Mapping[str, str]) -> dict[str, str]:
    """Whether the common part has an option from the configuration too, or from options alone."""
    usual = {key: value for key, value in usual.items() if key not in HANDED}
    found: dict[str, str] = {}
    for option, (word, column, value) in HANDED.items():
        said = "true" if column.startswith(("cuda", "use")) else str(value)
        tried = {"configuration": ({**ALONE, column: value}, {}), "option": (ALONE, {option: said})}
        for source, (row, more) in tried.items():
            with contextlib.suppress(*REFUSALS):  # the common part may, which was given it then
                scripts.run(name, {**usual, **more}, row)
            if scripts.handed.get(word):
                found[option] = source
                break
    return found


def depends(scripts: Scripts, name: str, usual: Mapping[str, str]) -> list[str]:
    """The options that a script itself looks at."""
    found = set()
    for values in itertools.product(*(TRIED[key] for key in FIRST)):
        base = usual | dict(zip(FIRST, values, strict=True))
        first = case(scripts, name, base)
        for key, others in TRIED.items():
            if key not in found and any(
                case(scripts, name, {**base, key: one}) != first for one in others
            ):
                found.add(key)
    found |= {TOGETHER[key] for key in found if key in TOGETHER}
    return [key for key in TRIED if key in found]


def script(scripts: Scripts, name: str) -> dict[str, Any]:
    """The row of a script."""
    usual = {key: values[0] for key, values in TRIED.items()}
    try:
        if case(scripts, name, usual) is None:
            usual["compute_dtype"] = "fp8"
    except (ImportError, NameError) as error:
        return {"fails": f"{type(error).__name__}: {error.args[0].partition(' (')[0]}"}
    (task, model, size), by = scripts.picked, depends(scripts, name, usual)
    kinds: list[dict[str, Any]] = []
    cases = {}
    for values in itertools.product(*(TRIED[key] for key in by)):
        made = case(scripts, name, usual | dict(zip(by, values, strict=True)))
        if made is not None:
            if made not in kinds:
                kinds.append(made)
            cases[",".join(values)] = kinds.index(made)
    row = {"task": task if name.startswith("pretrain") else "", "model": model, "size": size}
    return {**row, "handed": handed(scripts, name, usual), "by": by, "cases": cases, "kinds": kinds}


def precisions(scripts: Scripts) -> dict[str, dict[str, Any]]:
    """What the helpers make the mixed precision of, by fp8_recipe."""
    found = {}
    for recipe in ("ds", "cs", "mxfp8", "ss"):
        options = {"gpu": "h100", "compute_dtype": "fp8", "fp8_recipe": recipe}
        values = scripts.run("pretrain_llama3_8b", options, ALONE)
        mixed = {key: one for key, one in values.items() if key.startswith("mixed_precision")}
        found[recipe] = mixed
    return found


def configurations(checkout: Path) -> dict[str, list[dict[str, Any]]]:
    """The recommended configurations by GPU, without empty cells."""
    found = {}
    for gpu in GPUS:
        place = checkout / FOLDER / "recommended_model_configs" / f"model_configs_{gpu}.csv"
        with place.open() as lines:
            found[gpu] = [
                {key: _cell(cell) for key, cell in row.items() if cell and key != "system"}
                for row in csv.DictReader(lines)
            ]
    return found


def _cell(text: str) -> Any:
    try:
        return int(float(text))
    except ValueError:
        return text


def answers(scripts: Scripts, questions: list[tuple[str, dict[str, str]]]) -> list[Any]:
    """The values that the scripts resolve, or how they end."""
    found: list[Any] = []
    for name, options in questions:
        try:
            found.append(scripts.run(name, options))
        except Exception as error:
            found.append(repr(error))
    return found


if __name__ == "__main__":
    here = Scripts(Path(sys.argv[1]).resolve())
    if sys.argv[2] == "answers":
        with contextlib.redirect_stdout(sys.stderr):
            told = answers(here, json.load(sys.stdin))
        json.dump(told, sys.stdout)
        sys.exit()
    rows = {name: script(here, name) for name in here.names()}
    document = {
        "repository": "NVIDIA/NeMo", "commit": sys.argv[2],
        "configurations": configurations(here.checkout), "precisions": precisions(here),
        "scripts": rows,
    }  # fmt: skip
    write_table(TABLE, document, "scripts")
    print(len(rows), "scripts")
