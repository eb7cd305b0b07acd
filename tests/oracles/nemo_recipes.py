"""The values of NeMo 2's public recipes, from a checkout.

    python -m tests.oracles.nemo_recipes CHECKOUT COMMIT

The recipes' own modules run; whatever they import from elsewhere only remembers what it was made
with (tests/oracles/recipe_stubs.py).  Each recipe is built as it is and with the arguments that
change more than one value: performance_mode and peft_scheme.  Values have the names of
Megatron-Bridge's container, in which the reader goes on.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.oracles.bridge_recipes import IDLE
from tests.oracles.recipe_stubs import FILLERS, Finder, Kept, Meta, Stub, plain, write_table

TABLE = Path("planner/frameworks/megatron_bridge/nemo2.json")
RECIPES = "nemo.collections.llm.recipes"
STUBBED = (
    "nemo", "nemo_run", "torch", "megatron", "lightning", "pytorch_lightning", "transformers",
    "nvidia_resiliency_ext", "bionemo", "sentence_transformers", "fiddle",
)  # fmt: skip
VARIANTS = {"performance_mode": (False, True), "peft_scheme": ("lora", "none")}
# Where a recipe says it -> what the container calls it.
GROUPS = {
    "trainer.strategy": "model", "model.config": "model", "trainer.strategy.ddp": "ddp",
    "trainer.plugins": "mixed_precision", "optim.config": "optimizer", "peft": "peft",
}  # fmt: skip
DATA = {
    "seq_length": "model.seq_length",
    "global_batch_size": "train.global_batch_size",
    "micro_batch_size": "train.micro_batch_size",
}
# peft's classes by the names that recipes take.
ADAPTERS = {"lora": Meta("LoRA", (Kept,), {}), "dora": Meta("DoRA", (Kept,), {})}
# Of a strategy, what says nothing of a step.
OTHER = frozenset(
    {"gradient_as_bucket_view", "ckpt_async_save", "ckpt_parallel_load", "ckpt_load_strictness"}
    | {"precision", "fp8_margin", "fp8_amax_history_len", "fp8_amax_compute_algo", "alpha"}
    | {"ckpt_include_optimizer", "save_ckpt_format", "ckpt_load_optimizer", "use_te_rng_tracker"}
)


class Configured:
    """run.Config and run.Partial: an object of that class, or what a function returns."""

    def __new__(cls, made: Any = None, *words: Any, **values: Any) -> Any:
        return Kept(*words, made_by=getattr(made, "__name__", str(made)), **values)

    def __class_getitem__(cls, made: Any) -> Any:
        return cls


def factory(*words: Any, **values: Any) -> Any:
    """run.cli.factory, with arguments or without."""
    if words and callable(words[0]) and not values:
        return words[0]
    return lambda function: function


class Command:
    factory = staticmethod(factory)
    entrypoint = staticmethod(factory)


class Run(Stub):
    """nemo_run."""

    Config = Configured
    Partial = Configured
    autoconvert = staticmethod(factory)
    cli = Command


def stub(name: str) -> ModuleType:
    return (Run if name == "nemo_run" else Stub)(name)


def found_at(recipe: Any, path: str) -> Any:
    for part in path.split("."):
        recipe = recipe.__dict__.get(part) if isinstance(recipe, Kept) else None
    return recipe


def said(recipe: Kept) -> Iterator[tuple[str, Any]]:
    """What a recipe sets, by the names of the container."""
    config = found_at(recipe, "model.config")
    yield "model", config.made_by if isinstance(config, Kept) else plain(found_at(recipe, "model"))
    for path, section in GROUPS.items():
        one = found_at(recipe, path)
        if not isinstance(one, Kept):
            continue
        if section in ("mixed_precision", "peft"):
            yield section, "MixedPrecisionConfig" if section == "mixed_precision" else one.made_by
        for name, value in one.__dict__.items():
            idle = name in ("made_by", "words", "ddp") or name in OTHER or IDLE.match(name)
            if not idle and value is not None:
                yield f"{section}.{name}", plain(value)
    for name, key in DATA.items():
        value = found_at(recipe, f"data.{name}")
        if value is not None:
            yield key, plain(value)
    yield from callbacks(recipe)
    for key, name in (("nodes", "num_nodes"), ("accelerators_per_node", "devices")):
        yield key, found_at(recipe, f"trainer.{name}")


def callbacks(recipe: Kept) -> Iterator[tuple[str, Any]]:
    """The overlap that its callback turns on."""
    for one in found_at(recipe, "trainer.callbacks") or []:
        if isinstance(one, Kept) and one.made_by == "MegatronCommOverlapCallback":
            yield "comm_overlap", "CommOverlapConfig"
            for name, value in one.__dict__.items():
                idle = name in ("made_by", "words") or IDLE.match(name)
                if not idle and isinstance(value, bool):
                    yield f"comm_overlap.{name}", value


def built(module: ModuleType) -> Iterator[tuple[str, dict[str, Any]]]:
    """The recipes of a module, by function and the arguments that change several values."""
    for function in ("pretrain_recipe", "finetune_recipe"):
        make = getattr(module, function, None)
        if not inspect.isfunction(make) or make.__module__ != module.__name__:
            continue
        known = inspect.signature(make).parameters
        names = [name for name in VARIANTS if name in known]
        for values in itertools.product(*(VARIANTS[name] for name in names)):
            words = dict(zip(names, values, strict=True))
            try:
                recipe = make(**words)
            except Exception as error:
                print(f"{module.__name__}.{function}({words}): {error!r}", file=sys.stderr)
                continue
            ending = ",".join(f"{name}={value}" for name, value in words.items())
            short = module.__name__.rsplit(".", 1)[-1]
            yield f"{short}.{function}({ending})", dict(said(recipe))


def table(checkout: Path, commit: str) -> dict[str, Any]:
    """Every recipe that can be built."""
    finder = Finder(checkout, STUBBED, lambda name: name.startswith(f"{RECIPES}."), stub)
    sys.meta_path.insert(0, finder)
    FILLERS["PEFT_STR2CLS"] = ADAPTERS
    top = ModuleType(RECIPES)  # what it imports by itself are the recipes of all families
    top.__path__ = [str(checkout / RECIPES.replace(".", "/"))]
    sys.modules[RECIPES] = top
    recipes: dict[str, Any] = {}
    for info in pkgutil.iter_modules(top.__path__):
        try:
            module = importlib.import_module(f"{RECIPES}.{info.name}")
        except Exception as error:
            print(f"{info.name}: {error!r}", file=sys.stderr)
            continue
        recipes |= dict(built(module))
    return {"repository": "NVIDIA/NeMo", "commit": commit, "recipes": dict(sorted(recipes.items()))}


if __name__ == "__main__":
    found = table(Path(sys.argv[1]).resolve(), sys.argv[2])
    write_table(TABLE, found, "recipes")
    print(len(found["recipes"]), "recipes")
