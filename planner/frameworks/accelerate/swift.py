"""ms-swift's `swift sft`, `pt` and `rlhf`: transformers' Trainer under options of its own.

Names and defaults are those of its documentation (swift.readthedocs.io, Command line parameters,
releases 2 to 4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

from planner.frameworks import training_calls
from planner.frameworks.bash import ProgramCall
from planner.frameworks.read_results import Setting
from planner.frameworks.training_calls import World

TASKS = ("sft", "pt", "rlhf")
# Its options -> the keys that other trainers have for them; the first that is given counts.
NAMES = {
    "model": "model_name_or_path", "model_id_or_path": "model_name_or_path",
    "model_type": "model_name_or_path", "tuner_type": "finetuning_type",
    "train_type": "finetuning_type", "sft_type": "finetuning_type", "lora_rank": "lora_r",
    "lora_dropout_p": "lora_dropout", "target_modules": "lora_target_modules",
    "lora_target_modules": "lora_target_modules", "batch_size": "per_device_train_batch_size",
    "attn_impl": "attn_implementation", "quant_bits": "quantization_bit",
}  # fmt: skip
DEFAULTS = {
    "finetuning_type": "lora", "gradient_checkpointing": "true", "lora_r": "8", "bf16": "true",
    "per_device_train_batch_size": "1", "lora_target_modules": "all-linear",
}  # fmt: skip
_VALUES = {
    "attn_implementation": {"flash_attn": "flash_attention_2"},
    "lora_target_modules": {"ALL": "all-linear", "DEFAULT": "all-linear", "AUTO": "all-linear"},
}
# Its options of other parts, and those that are read.
OWN = (
    "freeze_parameters", "freeze_parameters_regex", "freeze_vit", "freeze_aligner", "adapter_act",
    "adapter_length", "sequence_parallel_size",
)  # fmt: skip
# What the command starts, as a file or a module of its own.
_ENTRY = re.compile(r"(^|/)swift[./]cli[./](sft|pt|rlhf)(\.py)?$")
# Sequences that a step has at least where nothing says how many micro-batches are accumulated.
LEAST_BATCH = 16
# Kinds of `swift rlhf` that generate samples; the training of GRPO is read without them.
GENERATING = ("ppo", "gkd")
PAIRED_OTHERWISE = ("kto",)
_USUAL_RESPONSE = "512"
OF_SAMPLES = re.compile(r"stage|num_generations|reward_\w+|beta|loss_type|generation_batch_size")


def launches(call: ProgramCall) -> bool:
    """Whether a call is ms-swift's training on transformers' Trainer."""
    before = [word.text.rsplit("/", 1)[-1] for word in call.before]
    return (before[-1:] == ["swift"] and call.program.text in TASKS) or bool(
        _ENTRY.search(call.program.text)
    )


def task(call: ProgramCall) -> str:
    """The training that it starts, one of TASKS."""
    return call.program.text.removesuffix(".py").replace(".", "/").rsplit("/", 1)[-1]


def keys(said: Mapping[str, Setting], call: ProgramCall) -> dict[str, Setting]:
    """The settings by the trainers' keys, with its defaults for what is not said."""
    found = {name: one for name, one in said.items() if name not in NAMES}
    for name, key in NAMES.items():
        if name == "model_type" and "model" in said:  # its family, beside the model itself
            continue
        if name in said and said[name].value is not None and key not in found:
            value = _VALUES.get(key, {}).get(str(said[name].value), said[name].value)
            found[key] = said[name].model_copy(update={"value": value})
    program = call.program
    for key, value in DEFAULTS.items():
        usual = Setting(name=key, value=value, file=program.file, line=program.line)
        found.setdefault(key, usual)
    if said.get("rlhf_type") and task(call) == "rlhf":
        found["stage"] = said["rlhf_type"]
    return found


def trained_of_grpo(settings: Mapping[str, Setting], assumed: list[str]) -> dict[str, Setting]:
    """The settings of GRPO's training alone: a sequence is the longest prompt and response."""
    left = {key: one for key, one in settings.items() if not OF_SAMPLES.fullmatch(key)}
    response = settings.get("max_completion_length")
    parts = [str(settings["max_length"].value)] if "max_length" in settings else []
    parts += [str(response.value) if response is not None else _USUAL_RESPONSE]
    if len(parts) > 1 and all(map(str.isdigit, parts)):
        total = str(sum(map(int, parts)))
        left["max_length"] = settings["max_length"].model_copy(update={"value": total})
        assumed.append(
            "only the training of GRPO is read, each sequence as long as the longest prompt and "
            f"response: {' + '.join(parts)}"
        )
    return left


def accumulated(settings: Mapping[str, Setting], size: int) -> Setting | None:
    """The micro-batches that it accumulates by default on so many replicas."""
    micro = settings["per_device_train_batch_size"]
    if "gradient_accumulation_steps" in settings or not str(micro.value).isdigit():
        return None
    steps = ceil(LEAST_BATCH / max(int(str(micro.value)) * size, 1))
    return micro.model_copy(update={"name": "gradient_accumulation_steps", "value": str(steps)})


# The processes of one of Ray's device_groups.
_RANKS = re.compile(r"range\((?:(\d{1,6}), *)?(\d{1,6})\)")


def world(call: ProgramCall) -> World:
    """The processes that its environment variables start; one without them."""
    if total := _dumped(call):
        return total
    if call.launcher in ("torchrun", "deepspeed"):
        return training_calls.world(call)
    counts = [call.environment.get(name, "1") for name in ("NNODES", "NPROC_PER_NODE")]
    nodes, each = (int(text) if text.isdigit() and len(text) < 7 else None for text in counts)
    return World(nodes, each, nodes * each if nodes and each else None)


def _dumped(call: ProgramCall) -> World | None:
    """The processes that its dump of all arguments names, or its groups of Ray; None for a call."""
    said = dict(word.text.lstrip("-").split("=", 1) for word in call.arguments if "=" in word.text)
    total, each = said.get("global_world_size", ""), said.get("local_world_size", "")
    if ranks := _RANKS.search(said.get("ranks", "")):
        total = str(int(ranks[2]) - int(ranks[1] or 0))
        each = said.get("nproc_per_node", total)
    if not (total.isdigit() and each.isdigit()) or not 0 < int(each) <= int(total) < 1_000_000:
        return None
    return World(int(total) // int(each), int(each), int(total))
