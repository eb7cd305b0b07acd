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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.oracles.bridge_recipes import IDLE, LAYOUT, layout
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
# What a class has where a script asks for it (pytorch/strategies/megatron_strategy.py).
USUAL = {"MegatronStrategy": {"ddp": "megatron"}}
# What an object remembers of how it was made.
INNER = ("made_by", "words", "__fn_or_cls__")
# What MegatronTokenDropCallback sets unless told otherwise (pytorch/callbacks/moe_token_drop.py).
DROPS = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
# Of a strategy, what says nothing of a step.
OTHER = frozenset(
    {"gradient_as_bucket_view", "ckpt_async_save", "ckpt_parallel_load", "ckpt_load_strictness"}
    | {"precision", "fp8_margin", "fp8_amax_history_len", "fp8_amax_compute_algo", "alpha"}
    | {"use_sharp", "nccl_ub", "activation_func_fp8_input_store", "use_te_activation_func"}
    | {"use_transformer_engine_op_fuser"}
    | {"ckpt_include_optimizer", "save_ckpt_format", "ckpt_load_optimizer", "use_te_rng_tracker"}
)


class Configured:
    """run.Config and run.Partial: an object of that class, or what a function returns."""

    def __new__(cls, made: Any = None, *words: Any, **values: Any) -> Any:
        name = getattr(made, "__name__", str(made))
        kept = Kept(*words, made_by=name, **USUAL.get(name, {}) | values)
        kept.__dict__["__fn_or_cls__"] = made
        return kept

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
    return recipe[0] if path == "trainer.plugins" and isinstance(recipe, list) else recipe


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
            idle = name in ("ddp", *INNER) or name in OTHER or IDLE.match(name)
            if path == "trainer.strategy" and name == "fsdp":
                yield "ddp.use_megatron_fsdp", value in ("megatron", "pytorch")
            elif not idle and value is not None:
                yield f"{section}.{name}", layout(value) if name == LAYOUT else plain(value)
    for name, key in DATA.items():
        value = found_at(recipe, f"data.{name}")
        if value is not None:
            yield key, plain(value)
    yield from callbacks(recipe)
    for key, name in (("nodes", "num_nodes"), ("accelerators_per_node", "devices")):
        yield key, found_at(recipe, f"trainer.{name}")


def callbacks(recipe: Kept) -> Iterator[tuple[str, Any]]:
    """The overlap and the dropped tokens that their callbacks turn on."""
    for one in found_at(recipe, "trainer.callbacks") or []:
        if isinstance(one, Kept) and one.made_by == "MegatronTokenDropCallback":
            for name, usual in DROPS.items():
                yield f"model.{name}", one.__dict__.get(name, usual)
        if isinstance(one, Kept) and one.made_by == "MegatronCommOverlapCallback":
            yield "comm_overlap", "CommOverlapConfig"
            for name, value in one.__dict__.items():
                idle = name in INNER or IDLE.match(name)
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
            yield key_of(module.__name__, function, words), dict(said(recipe))


def recipes_package(checkout: Path, made: Callable[[str], ModuleType] = stub) -> ModuleType:
    """The package of recipes of a checkout, with what stands in for the rest; made: stubs."""
    finder = Finder(checkout, STUBBED, lambda name: name.startswith(f"{RECIPES}."), made)
    sys.meta_path.insert(0, finder)
    FILLERS["PEFT_STR2CLS"] = ADAPTERS
    top = ModuleType(RECIPES)  # what it imports by itself are the recipes of all families
    top.__path__ = [str(checkout / RECIPES.replace(".", "/"))]
    sys.modules[RECIPES] = top
    return top


def key_of(module: str, function: str, words: Mapping[str, Any]) -> str:
    """The name of a recipe's row."""
    ending = ",".join(f"{name}={value}" for name, value in words.items())
    return f"{module.rsplit('.', 1)[-1]}.{function}({ending})"


def table(checkout: Path, commit: str) -> dict[str, Any]:
    """Every recipe that can be built."""
    top = recipes_package(checkout)
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
