"""Asks a checkout of torchtune what its recipes, components and builders take.

`python tests/oracles/torchtune_check.py table CHECKOUT REVISION` prints
planner/frameworks/torchtune/components.json; `... check CHECKOUT FILE...` prints a line (WRONG ...)
for each config that a recipe would not take.  Needs what the checkout imports (torchao, omegaconf,
sentencepiece, tiktoken, blobfile, kagglehub), whose folder may stand in PYTHONPATH.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = (
    "llama2", "llama3", "llama3_1", "llama3_2", "llama3_3", "qwen2", "qwen2_5", "qwen3", "mistral",
    "gemma", "phi3", "phi4",
)  # fmt: skip
RECIPES = (
    "full_finetune_single_device", "full_finetune_distributed", "lora_finetune_single_device",
    "lora_finetune_distributed", "lora_dpo_single_device", "lora_dpo_distributed",
    "full_dpo_distributed",
)  # fmt: skip
COMPONENTS = (
    "torchtune.training.FullModelHFCheckpointer", "torchtune.datasets.alpaca_cleaned_dataset",
    "torchtune.modules.loss.LinearCrossEntropyLoss", "torch.nn.CrossEntropyLoss",
    "torchtune.training.metric_logging.DiskLogger", "torchtune.models.llama3.base_llama_tp_plan",
    "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup", "torch.optim.AdamW",
    "torchao.optim.AdamW8bit", "torch.optim.SGD", "torch.optim.Adafactor",
    "bitsandbytes.optim.PagedAdamW", "bitsandbytes.optim.PagedAdamW8bit",
)  # fmt: skip
IMAGES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")


class Images(ModuleType):
    """Stands in for torchvision, which torchtune imports for images alone."""

    __path__: list[str] = []  # noqa: RUF012
    __version__ = "0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Images(name)


def found(checkout: str) -> None:
    """Lets the checkout be imported, torchvision or not."""
    sys.path.insert(0, checkout)
    sys.modules.update({name: Images(name) for name in IMAGES})


def component(path: str) -> Any:
    """The class or function of a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def taken(function: Any) -> dict[str, Any]:
    """The arguments that a function takes and their defaults; null: none."""
    plain = (str, bool, int, float)
    return {
        name: one.default if isinstance(one.default, plain) else None
        for name, one in inspect.signature(function).parameters.items()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    }


def keys(recipe: Path) -> list[str]:
    """The keys of the config that a recipe reads, or the client of its checkpoints."""
    read = {"dataset", "loss", "profiler"}
    client = recipe.parent.parent / "torchtune/training/checkpointing/_checkpoint_client.py"
    trees = (ast.parse(file.read_text()) for file in (recipe, client))
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and _is_config(node.value):
            read.add(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            gets = node.func.attr == "get" and _is_config(node.func.value)
            if gets and isinstance(first, ast.Constant):
                read.add(str(first.value))
    return sorted(read - {"get", "items"})


def _is_config(node: ast.expr) -> bool:
    return ast.unparse(node) in ("cfg", "self._cfg")


def builders(package: str, calls: list[tuple[Any, dict[str, Any]]]) -> Iterator[Any]:
    """Each builder of a package: the component that it calls, and with what.

    calls: shared by all packages, since some builders are those of another package.
    """
    module = import_module(f"torchtune.models.{package}._model_builders")
    public = import_module(f"torchtune.models.{package}")
    for name, function in list(vars(module).items()):
        if inspect.isfunction(function) and function.__module__.endswith("_component_builders"):
            setattr(module, name, lambda _own=function, **given: calls.append((_own, given)))
    for name in sorted(public.__all__):
        function = getattr(public, name)
        if name.startswith("lora_") or name.endswith(("_tokenizer", "_reward_7b")):
            continue
        if inspect.isfunction(function) and function.__module__.endswith("_model_builders"):
            function()
            own, given = calls.pop()
            if "intermediate_dim" not in given:  # the component computes it
                scale = component(f"{own.__module__}.scale_hidden_dim_for_mlp")
                given["intermediate_dim"] = scale(given["embed_dim"])
            defaults = {key: value for key, value in taken(own).items() if value is not None}
            path = f"torchtune.models.{package}.{name}"
            yield path, {"component": own.__name__, **defaults, **given}


def public(package: str) -> Iterator[str]:
    """The paths of a package's components and of its tokenizer; not all components are exported."""
    exported = import_module(f"torchtune.models.{package}").__all__
    own = Path(component(f"torchtune.models.{package}").__file__).parent / "_component_builders.py"
    for name in (package, f"lora_{package}") if own.exists() else ():
        private = "" if name in exported else "_component_builders."
        yield f"torchtune.models.{package}.{private}{name}"
    for name in sorted(exported):
        if name.endswith("_tokenizer"):
            yield f"torchtune.models.{package}.{name}"


def tables(checkout: str, revision: str) -> dict[str, Any]:
    """What components.json holds."""
    paths = [*COMPONENTS, *(path for package in PACKAGES for path in public(package))]
    # The components first: a builder is asked with its component replaced.
    components = {path: taken(component(path)) for path in paths}
    calls: list[tuple[Any, dict[str, Any]]] = []
    return {
        "source": f"torchtune main {revision}: recipes, torchtune/models",
        "recipes": {name: keys(Path(checkout) / f"recipes/{name}.py") for name in RECIPES},
        "components": components,
        "builders": dict(one for package in PACKAGES for one in builders(package, calls)),
    }


def rows(document: dict[str, Any]) -> str:
    """The document as JSON, each component and builder on a line of its own."""
    text = json.dumps(document, indent=2)
    for part in document.values():
        for value in part.values() if isinstance(part, dict) else ():
            nested = json.dumps(value, indent=2).replace("\n", "\n    ")
            text = text.replace(nested, json.dumps(value))
    return text


def wrong(checkout: str, path: str) -> Iterator[str]:
    """What of a config its recipe would not take; the model is built without memory."""
    import torch
    from omegaconf import OmegaConf
    from torchtune import config, training
    from torchtune.modules.peft import get_adapter_params

    said = OmegaConf.load(path)
    recipe = said.recipe
    del said["recipe"]
    for key in sorted(set(said) - set(keys(Path(checkout) / f"recipes/{recipe}.py"))):
        yield f"{path}: {recipe} does not read {key}"
    config.validate(said)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[said.dtype]
    with training.set_default_dtype(kind), torch.device("meta"):
        model = config.instantiate(said.model)
    adapters = sum(one.numel() for one in get_adapter_params(model).values())
    whole = sum(one.numel() for one in model.parameters())
    print(f"BUILT {path} {whole - adapters} {adapters}")
    config.instantiate(said.optimizer, [torch.nn.Parameter(torch.zeros(2, 2))])
    config.instantiate(said.loss)
    if "tensor_parallel_plan" in said:
        config.instantiate(said.tensor_parallel_plan, model=model, enable_fp8_training=False)
    training.checkpointing.ModelType[said.checkpointer.model_type]


def main(task: str, checkout: str, *words: str) -> None:
    found(checkout)
    if task == "table":
        print(rows(tables(checkout, *words)))
        return
    for path in words:
        try:
            for line in wrong(checkout, path):
                print(f"WRONG {line}")
        except Exception as error:  # of any of its components
            print(f"WRONG {path}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
