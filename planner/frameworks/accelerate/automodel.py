"""NeMo Automodel's recipes: a YAML for transformers' models under FSDP 2.

Keys of NVIDIA-NeMo/Automodel examples/llm_finetune and llm_pretrain (main of 2026).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import training_calls, yaml_files
from planner.frameworks.accelerate import trainers
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.accelerate.trainer_keys import Trainer
from planner.frameworks.given_values import LaunchValues, Values, malformed
from planner.frameworks.launch_files import given_with
from planner.frameworks.read_results import Reading, Unreadable

TITLE = "NeMo Automodel"
YAML = (".yaml", ".yml")
NAME = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path",
        "model.config")  # fmt: skip
LENGTH = (
    "packed_sequence.packed_sequence_size", "dataset.seq_len", "dataset.seq_length",
    "dataset.tokenizer.model_max_length", "seq_length",
)  # fmt: skip
TRAINER = Trainer(TITLE, (), NAME, LENGTH)
# Of recipes that train more than a decoder on the next token.
OTHERS = re.compile(r"VLM|vlm|Diffusion|Biencoder|CrossEncoder|SequenceClassification|Eagle|Omni")


def file_of(files: Mapping[str, str]) -> str | None:
    """The name of the file with a recipe; None if there is none."""
    for name, text in files.items():
        scheduled = name.endswith(YAML) and re.search(r"^step_scheduler:", text, re.MULTILINE)
        if scheduled and re.search(r"nemo_automodel|^recipe:", text, re.MULTILINE):
            return name
    return None


def read(name: str, files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan; raises Unreadable."""
    config, given = yaml_files.read(files[name], name), given_with(files)
    assumed = config.notes()
    settings = (*config.settings(), *given.settings())
    # Its loader takes none, which is text in YAML, for no value.
    said = {one.name: one for one in settings if one.value != "none"}
    values = LaunchValues(said, name, assumed)
    recipe = values.text("recipe") or ""
    targets = " ".join(str(one.value) for one in settings if one.name.endswith("_target_"))
    if OTHERS.search(f"{recipe} {targets} {name}") or "vlm_finetune" in targets:
        raise Unreadable(
            f"{recipe or name} trains more than a decoder on the next token: "
            f"{training_calls.DECODERS_ONLY}",
            name,
        )
    if not accelerators:
        raise Unreadable("the files do not say how many accelerators run it: give a cluster")
    model = trainers.model_of(values, TRAINER, given, files)
    try:
        training, plan = _plan(values, model, accelerators)
    except ValidationError as error:
        raise malformed(error, name) from None
    unread = tuple(one for key, one in values.settings.items() if key not in values.asked)
    return Reading(
        framework="accelerate", model=model, training=training, plan=plan, nodes=None,
        accelerators_per_node=None, settings=settings, unknown=(), unread=unread,
        assumed=tuple(assumed), refusals=tuple(values.refusals), written=False,
    )  # fmt: skip


def _plan(values: Values, model: ModelSpec, world: int) -> tuple[TrainingSpec, ParallelPlan]:
    degrees = {
        one: values.integer(f"distributed.{one}_size", default=1) for one in ("tp", "cp", "pp")
    }
    ep = values.integer("distributed.ep_size", default=1)
    split = degrees["tp"] * degrees["cp"] * degrees["pp"]
    if world % split:
        raise Unreadable(f"{world} accelerators are not a multiple of tp x cp x pp, {split}")
    dp = world // split
    copies = values.integer("distributed.dp_replicate_size", default=1)
    strategy = values.choice(
        "distributed.strategy", choices=("fsdp2", "ddp", "megatron_fsdp"), default="fsdp2"
    )
    sharded = strategy != "ddp"
    full = values.boolean("distributed.activation_checkpointing")
    # One that is 0 stands for samples of their own lengths.
    lengths = [one for one in LENGTH if (values.text(one) or "0") != "0"]
    if not lengths:
        raise Unreadable("the recipe has no sequence length: --set seq_length=...", values.file)
    micro = values.integer("step_scheduler.local_batch_size", default=1)
    training = TrainingSpec(
        seq_length=values.integer(*lengths),
        global_batch_size=values.integer("step_scheduler.global_batch_size", default=micro * dp),
        precision="fp8" if values.boolean("fp8.enabled") else "bf16",
        gradient_reduce_dtype="bf16" if sharded else "fp32",
        optimizer=trainers.optimizer_of((values.text("optimizer._target_") or "adam").lower()),
        **_adapters(values),
    )
    plan = ParallelPlan(
        **degrees, ep=ep, dp=dp, micro_batch_size=micro,
        cp_kind="all_gather", zero_stage=3 if sharded else 0,
        sequence_parallel=values.boolean("distributed.sequence_parallel"),
        recompute="full" if full else "none",
        recompute_num_layers=model.num_layers if full else 0,
        attention_kernel="flash", cross_entropy="unfused", runtime="transformers",
        compile=values.boolean("compile.enabled"),
        **({"dp_shard": dp // copies * degrees["cp"]} if sharded and copies > 1 else {}),
    )  # fmt: skip
    return training, plan


def _adapters(values: Values) -> dict[str, Any]:
    """The fields of adapters in the training spec."""
    if not any(name.startswith("peft.") for name in values.settings):
        return {}
    said = values.text("peft.target_modules") or "*_proj"
    known = tuple(name for name in NAMES if name in said)
    four = values.boolean("quantization.load_in_4bit")
    return {
        "lora_rank": values.integer("peft.dim", default=8),
        "lora_targets": known or NAMES,
        "lora_dropout": values.probability("peft.dropout"),
        "frozen_dtype": "nf4" if four else "as trained",
    }
