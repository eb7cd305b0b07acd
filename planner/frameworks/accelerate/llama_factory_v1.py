"""LLaMA-Factory's v1 YAML (`USE_V1=1 llamafactory-cli sft`), translated to the older keys.

Source: src/llamafactory/v1 of ff6d4d1: config/*_args.py, core/base_trainer.py, plugins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cost_models.package_files import table
from planner.frameworks.given_values import LaunchValues, Values
from planner.frameworks.read_results import Setting

# Key of v1 -> key of the older trainer, or of accelerate's FSDP config.
KEYS: dict[str, str] = table("planner.frameworks.accelerate", "llama_factory_v1.json")["keys"]
ENGINES = ("fsdp2", "deepspeed")
MODES = ("ulysses",)
# Keys that change neither time nor memory of a step, and keys of data and sampling.
IDLE = re.compile(
    r"^(dp_size|num_train_epochs|max_steps|max_grad_norm|learning_rate|output_dir|batching_workers|"
    r"dist_timeout|full_determinism|resume_|save_|logging_|pref_|simpo_|dpo_|ld_alpha|seed|"
    r"(train|eval)_dataset|sample_backend|max_new_tokens|custom_chat_template|trust_remote|"
    r"model_class|init_config|lr_scheduler_config|optim_config\.|dist_config\.(name|dcp_path|pin_)|"
    r"quant_config\.name|batching_strategy|eval_|report_to|plugins?)"
)
_MARKS = re.compile(r"^(model_class|train_dataset|dist_config):", re.MULTILINE)
# Keys of transformers' Trainer and of TRL, which it has under other names.
_OTHERS = re.compile(
    r"^(per_device_\w+|gradient_accumulation_steps|max_(seq_)?length|packing|lora_\w+|"
    r"attn_implementation|use_peft):",
    re.MULTILINE,
)
_COMMAND = re.compile(r"\bllamafactory-cli\s+(sft|dpo|rm)\b")


def is_one(text: str) -> bool:
    """Whether a YAML is in the v1 format."""
    named = re.search(r"^model:[ \t]*\S", text, re.MULTILINE)
    return bool(named and _MARKS.search(text) and not _OTHERS.search(text))


def translated(
    settings: tuple[Setting, ...],
    tree: Mapping[str, Any],
    files: Mapping[str, str],
    file: str,
    assumed: list[str],
) -> tuple[LaunchValues, dict[str, Any]]:
    """The settings under the older keys, and a tree of the values that are not scalars.

    Raises Unreadable for a setting that is not supported.
    """
    known = {one.name: one for one in settings}
    own = LaunchValues(known, file)
    _check_supported(own)
    found = {KEYS.get(name, name): one for name, one in known.items() if _counts(name)}
    adapters, engine = tree.get("peft_config"), own.text("dist_config.name")
    made: dict[str, Any] = {}
    if isinstance(adapters, dict):
        made["lora_target"] = adapters.get("target_modules", "all")
        found = {k: one for k, one in found.items() if not k.startswith("peft_config.target")}
    if engine == "fsdp2":
        found["fsdp_version"] = known["dist_config.name"].model_copy(update={"value": "2"})
        made["fsdp_config"] = {
            key: True for key in ("reshard_after_forward", "offload_params")
            if f"dist_config.{key}" in known
        }  # fmt: skip
    task = next((m[1] for text in files.values() if (m := _COMMAND.search(text))), None)
    if task is None:
        task = "dpo" if any(name.startswith("pref_") for name in known) else "sft"
        assumed.append(f"no file has a llamafactory-cli sft, dpo or rm command: {task} assumed")
    found["stage"] = Setting(name="llamafactory-cli", value=task, file=file, line=0)
    return LaunchValues(found, file, assumed), made


def _counts(name: str) -> bool:
    return name in KEYS or IDLE.match(name) is None


def _check_supported(own: Values) -> None:
    """Raises Unreadable for a run that no plan can express."""
    engine, mode = own.text("dist_config.name"), own.text("cp_mode")
    if engine not in (None, *ENGINES):
        known = ", ".join(ENGINES)
        text = f"{engine} cannot be read: only {known} or none (--set dist_config.name=fsdp2)"
        raise own.fault(("dist_config.name",), text)
    if (own.text("model_class") or "llm") != "llm":
        raise own.fault(("model_class",), "must be llm: only decoders can be read")
    if own.has("bf16") and not own.boolean("bf16"):
        text = "is off: plans have no fp32 training (--set bf16=true)"
        raise own.fault(("bf16",), text)
    if mode is not None and mode not in MODES and own.integer("cp_size", default=1) > 1:
        raise own.fault(("cp_mode",), f"{mode} cannot be read: only {', '.join(MODES)}")
    bits = own.text("quant_config.quantization_bit")
    if bits not in (None, "4"):
        raise own.fault(("quant_config.quantization_bit",), f"{bits} cannot be read: only 4 bits")
    if own.has("dp_size") and own.integer("dp_size") < 1:
        raise own.fault(("dp_size",), "must be at least 1")


def accumulation(values: Values, micro: int, dp: int) -> int:
    """Micro-batches per step.  Raises Unreadable if the batch is not a multiple of micro x dp."""
    batch = values.integer("global_batch_size", default=micro * dp)
    if batch % (micro * dp):
        text = f"{batch} is not a multiple of micro_batch_size {micro} x {dp} ranks"
        raise values.fault(("global_batch_size",), f"{text}: give its cluster")
    return batch // (micro * dp)
