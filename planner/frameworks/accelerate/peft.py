"""LoRA adapters by PEFT 0.21: rules, options of train.py, and the reader of those options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.spec import TrainingSpec
from planner.constraints import Context, Rule
from planner.frameworks.base import Flag, flag, unsupported
from planner.frameworks.given_values import Values
from planner.huggingface.export.exporter import config_of

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Model families whose layers have each of NAMES as a separate module, and those whose attention
# has: their experts are one parameter, or modules by other names.
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gemma4_text", "olmo2",
)  # fmt: skip
ATTENTION = NAMES[:4]
OF_ATTENTION = ("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe")


def _has_named_modules(c: Context) -> bool:
    keys = config_of(c.model)
    attention_only = set(c.training.lora_targets) <= set(ATTENTION)
    # Gemma 4 has models with experts beside the MLP of each layer.
    of_all = FAMILIES if c.model.moe is None else ()
    known = of_all + (OF_ATTENTION if attention_only else ())
    return keys is None or keys["model_type"] in known


def _lacking_modules(c: Context) -> str:
    """Which modules a family lacks, and what of it is planned here instead."""
    keys, targets = config_of(c.model), c.training.lora_targets
    lacks = f"{c.model.name}'s family does not have the modules "
    if keys is None or keys["model_type"] not in OF_ATTENTION:
        known = ", ".join((*FAMILIES, *OF_ATTENTION))
        return f"{lacks}{', '.join(targets)}: adapters are modelled here for {known}"
    others = ", ".join(name for name in targets if name not in ATTENTION)
    return (
        f"{lacks}{others}: adapters on weights of experts, which PEFT has, are not modelled here; "
        f"give lora_targets {','.join(ATTENTION)}"
    )


UNPACKED = unsupported(
    lambda c, p: c.training.frozen_dtype == "as trained",
    "the script has random weights, bitsandbytes quantizes only loaded ones: not in nf4",
    "degrees",
)
# Bitsandbytes replaces linear layers (issue 1849); for trainers that do not quantize experts too.
PACKED_EXPERTS = unsupported(
    lambda c, p: c.model.moe is None or c.training.frozen_dtype == "as trained",
    "bitsandbytes leaves experts in half precision, which are one parameter of a layer since "
    "transformers 5: no nf4; Axolotl and Unsloth quantize them",
    "degrees",
)
NO_FROZEN_PARTS = unsupported(
    lambda c, p: not c.training.frozen,
    "the script trains all weights or only adapters: no frozen parts",
    "degrees",
)
NAMED_TARGETS = unsupported(
    lambda c, p: not c.training.lora_rank or set(c.training.lora_targets) <= set(NAMES),
    lambda c, p: (
        f"lora_targets are modules of transformers ({', '.join(NAMES)}), not "
        + ", ".join(c.training.lora_targets)
    ),
    "degrees",
)
PARTIAL_TRAINING: tuple[Rule, ...] = (
    NO_FROZEN_PARTS,
    UNPACKED,
    NAMED_TARGETS,
    unsupported(
        lambda c, p: not c.training.lora_rank or _has_named_modules(c),
        lambda c, p: _lacking_modules(c),
        "degrees",
    ),
)


def adapter_arguments(training: TrainingSpec, group: str) -> Iterator[Flag]:
    """The options of train.py for adapters; none if all weights are trained."""
    if not training.lora_rank:
        return
    yield flag(group, "--lora_rank", training.lora_rank, "rank of the adapters")
    yield flag(group, "--lora_targets", ",".join(training.lora_targets), "modules with adapters")
    yield flag(group, "--lora_dropout", training.lora_dropout, "dropout before the adapters")


def tuning_of(arguments: Values) -> dict[str, Any]:
    """The adapter fields of the training spec, from the options; empty without --lora_rank."""
    rank = arguments.integer("--lora_rank", default=0)
    if not rank:
        return {}
    targets = arguments.text("--lora_targets")
    return {
        "lora_rank": rank,
        "lora_targets": tuple(targets.split(",")) if targets else NAMES,
        "lora_dropout": arguments.probability("--lora_dropout"),
    }
