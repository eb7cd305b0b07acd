"""Which function of torchtune builds a model, with which arguments; and the model of a function.

components.json has the signatures of the functions and what each builder, such as llama3_1_8b,
gives to its component, such as llama3_1 (tests/oracles/torchtune_check.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil
from typing import Any

from cost_models.package_files import table
from cost_models.spec import ModelSpec
from planner.huggingface.numerics import GELU, SILU

_TABLE = table("planner.frameworks.torchtune", "components.json")
RECIPES: dict[str, list[str]] = _TABLE["recipes"]
SIGNATURES: dict[str, dict[str, Any]] = _TABLE["components"]
BUILDERS: dict[str, dict[str, Any]] = _TABLE["builders"]
MODELS = "torchtune.models."
# Argument of a component -> field of the model.
SHAPE = {
    "vocab_size": "vocab_size", "num_layers": "num_layers", "num_heads": "num_attention_heads",
    "num_kv_heads": "num_query_groups", "embed_dim": "hidden_size",
    "intermediate_dim": "ffn_hidden_size", "head_dim": "head_dim",
    "tie_word_embeddings": "tied_embeddings", "attn_dropout": "attention_dropout",
    "q_proj_bias": "qkv_bias", "k_proj_bias": "qkv_bias", "v_proj_bias": "qkv_bias",
}  # fmt: skip
NORMS = ("q_norm", "k_norm")  # of each head, or none
NUMBERS = {"norm_eps": "norm_epsilon", "rope_base": "rope_theta"}
SCALE, LENGTH = "scale_factor", "max_seq_len"
# torchtune/models/llama3_1/_position_embeddings.py, Llama3ScaledRoPE.
SCALING = {
    "kind": "llama3", "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip
# Of which a component knows nothing; a window as long as the sequence is none.
UNBUILT = {"name", "numerics", "max_position_embeddings", "sliding_window", "full_attention_period"}


@dataclass(frozen=True)
class Family:
    """A component, and what its tokenizer and its checkpoints are.

    checkpoint: the ModelType; vocabulary: ids that the tokenizer has at least; tokenizer: argument
    -> file beside the weights; fields: of its models, beside those of its arguments.
    """

    checkpoint: str
    vocabulary: int
    tokenizer: Mapping[str, str]
    fields: Mapping[str, Any]


_DECODER = {"norm": "rmsnorm", "gated_mlp": True}
_TIKTOKEN = {"path": "original/tokenizer.model"}
_SENTENCES = {"path": "tokenizer.model"}
_PAIRS = {"path": "vocab.json", "merges_file": "merges.txt"}
_GEMMA = {"tied_embeddings": True, "numerics": {"activation": "gelu_pytorch_tanh"}}
FAMILIES = {
    "llama3": Family("LLAMA3", 128_256, _TIKTOKEN, _DECODER),
    "llama3_1": Family("LLAMA3", 128_256, _TIKTOKEN, _DECODER),
    "llama3_2": Family("LLAMA3_2", 128_256, _TIKTOKEN, _DECODER),
    "qwen2": Family("QWEN2", 151_646, _PAIRS, _DECODER),
    "qwen3": Family("QWEN3", 151_669, _PAIRS, _DECODER),
    "llama2": Family("LLAMA2", 32_000, _SENTENCES, _DECODER),
    "mistral": Family("MISTRAL", 32_000, _SENTENCES, _DECODER),
    "gemma": Family("GEMMA", 256_000, _SENTENCES, {**_DECODER, **_GEMMA}),
    "phi3": Family("PHI3_MINI", 32_011, _SENTENCES, _DECODER),
}
# Packages whose tokenizer, or checkpoint, is not that of their component.
_TOKENIZERS = {
    "llama3_1": "llama3.llama3_tokenizer", "llama3_2": "llama3.llama3_tokenizer",
    "llama3_3": "llama3.llama3_tokenizer", "phi3": "phi3.phi3_mini_tokenizer",
}  # fmt: skip
_PHI4 = {"vocab_path": "vocab.json", "merges_path": "merges.txt"}


@dataclass(frozen=True)
class Component:
    """A function of torchtune that builds a model: a builder without arguments, or a component."""

    package: str
    name: str
    family: str
    arguments: Mapping[str, Any]

    def path(self, adapted: bool) -> str:
        """The function's own path, or that of its form with adapters."""
        if self.name == self.family:
            return path_of(self.family, adapted)
        return f"{MODELS}{self.package}.{'lora_' * adapted}{self.name}"

    @property
    def tokenizer(self) -> tuple[str, Mapping[str, str]]:
        """The function that makes the tokenizer, and its files by argument."""
        files = _PHI4 if self.package == "phi4" else FAMILIES[self.family].tokenizer
        name = _TOKENIZERS.get(self.package, f"{self.package}.{self.package}_tokenizer")
        return MODELS + name, files

    @property
    def checkpoint(self) -> str:
        return "PHI4" if self.package == "phi4" else FAMILIES[self.family].checkpoint


def path_of(family: str, adapted: bool = False) -> str:
    """The path of a component, which its package may not export."""
    name = f"{'lora_' * adapted}{family}"
    paths = (f"{MODELS}{family}.{name}", f"{MODELS}{family}._component_builders.{name}")
    return next(path for path in paths if path in SIGNATURES)


def model_of(family: str, arguments: Mapping[str, Any]) -> ModelSpec:
    """The model that a component builds of its arguments; numbers at their default are unsaid."""
    said = {**SIGNATURES[path_of(family)], **arguments}
    fields = dict(FAMILIES[family].fields)
    fields |= {field: said[name] for name, field in SHAPE.items() if said.get(name) is not None}
    if any(said.get(name) for name in NORMS):
        fields["qk_norm"] = "head"
    numerics = {field: arguments[name] for name, field in NUMBERS.items() if name in arguments}
    if SCALE in said:
        numerics["rope_scaling"] = {**SCALING, "factor": said[SCALE]}
    fields["numerics"] = {**numerics, **fields.get("numerics", {})}
    if said.get("intermediate_dim") is None:  # torchtune's scale_hidden_dim_for_mlp
        wide = 4 * int(2 * said["embed_dim"] / 3)
        fields["ffn_hidden_size"] = 256 * ceil(wide / 256)
    fields.setdefault("head_dim", max(said["embed_dim"] // said["num_heads"], 1))
    return ModelSpec(name=family, **fields)


def _wanted(model: ModelSpec, family: str, adapted: bool) -> dict[str, Any]:
    """The arguments with which a component builds a model, if it can."""
    numbers, scaling = model.numerics, model.numerics.rope_scaling
    said = {name: getattr(model, field) for name, field in SHAPE.items()}
    said |= dict.fromkeys(NORMS, model.qk_norm != "none")
    said |= {name: getattr(numbers, field) for name, field in NUMBERS.items()}
    said[SCALE] = None if scaling is None else scaling.factor
    takes = SIGNATURES[path_of(family, adapted)]
    return {name: value for name, value in said.items() if name in takes and value is not None}


def _differences(model: ModelSpec, built: ModelSpec) -> tuple[str, ...]:
    """Fields in which a component's model differs; checkpoints of others are no use to it."""
    one, other = (each.model_dump(exclude=UNBUILT) for each in (model, built))
    fields = [name for name, value in one.items() if other[name] != value]
    names = model.numerics.stated - {"init_std"}
    if names:  # those left out are the usual ones
        names |= {"activation", "rope_scaling"}
    numbers = [
        name
        for name in names
        if _plain(getattr(model.numerics, name)) != _plain(getattr(built.numerics, name))
    ]
    return (*sorted(fields), *sorted(numbers))


def _plain(value: Any) -> Any:
    """A number; approximations of an activation are one."""
    if value is None or value in SILU:
        return None
    return "gelu" if value in GELU else value


@lru_cache(maxsize=256)
def differences(model: ModelSpec, adapted: bool) -> dict[str, tuple[str, ...]]:
    """The components, and the fields in which the model of each differs."""
    built = {
        family: model_of(family, SIGNATURES[path_of(family)] | _wanted(model, family, adapted))
        for family in FAMILIES
    }
    return {family: _differences(model, one) for family, one in built.items()}


@cache
def _built() -> dict[str, ModelSpec]:
    """The models of the builders."""
    return {path: model_of(given["component"], given) for path, given in BUILDERS.items()}


@lru_cache(maxsize=256)
def component_of(model: ModelSpec, seq_length: int, adapted: bool) -> Component | None:
    """The function that builds the model: a builder if one does, else the likeliest component."""
    named = [
        path
        for path, built in _built().items()
        if BUILDERS[path][LENGTH] >= seq_length and not _differences(model, built)
    ]
    if named:
        path = max(named, key=lambda one: _says(model.name, one.split(".")[2]))
        _, _, package, name = path.split(".")
        return Component(package, name, BUILDERS[path]["component"], {})
    able = [family for family, fields in differences(model, adapted).items() if not fields]
    if not able:
        return None
    family = max(able, key=lambda one: _likeness(model, one))
    arguments = {**_wanted(model, family, adapted), LENGTH: seq_length}
    return Component(family, family, family, arguments)


def _likeness(model: ModelSpec, family: str) -> tuple[bool, bool]:
    """What is in favour of one of several components that build the same layers."""
    return _says(model.name, family), model.vocab_size >= FAMILIES[family].vocabulary


def _says(name: str, package: str) -> bool:
    """Whether the name of a model begins with that of a package, as llama-3.1-8b with llama3_1."""
    stem = package.rstrip("0123456789_")
    version = package.removeprefix(stem).replace("_", r"\.")
    return re.match(rf"(meta-)?{stem}[-_ ]?{version}(?![\d.])", name.lower()) is not None
