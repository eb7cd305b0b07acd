"""Reads LitGPT's trainings: a YAML of its config_hub, and `litgpt` on a command line.

Keys and defaults of litgpt/finetune/{full,lora}.py, litgpt/pretrain.py and litgpt/args.py (0.5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import post_training, training_calls, yaml_files
from planner.frameworks.accelerate.trainer_keys import kept_in
from planner.frameworks.accelerate.trainers import optimizer_of
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import DEGREE, LaunchValues, Values, malformed, options
from planner.frameworks.launch_files import given_with
from planner.frameworks.read_results import Reading, Setting, Unreadable

TITLE = "LitGPT"
YAML = (".yaml", ".yml")
# Keys that only its configurations have beside those of `train:`.
_MARKS = re.compile(
    r"^(checkpoint_dir|model_name|model_config|initial_checkpoint_dir):", re.MULTILINE
)
_TRAIN = re.compile(r"^train:\s*$", re.MULTILINE)
_MICRO = re.compile(r"^\s+micro_batch_size:", re.MULTILINE)
_OTHER_TASKS = re.compile(r"(finetune_)?adapter(_v2)?")
_TASKS = re.compile(rf"finetune(_full|_lora)?|pretrain|full|lora|{_OTHER_TASKS.pattern}")
_STARTS = ("pretrain_", "finetune_")
# Precision of a plan by Fabric's.
_HALF = {
    "bf16-true": "bf16", "bf16-mixed": "bf16", "16-true": "fp16", "16-mixed": "fp16",
    "32-true": "bf16", "32": "bf16",
}  # fmt: skip
# Key -> module with adapters, and whether it has them by default; those of the MLP apart.
_TARGETS = {
    "lora_query": ("q_proj", True),
    "lora_key": ("k_proj", False),
    "lora_value": ("v_proj", True),
    "lora_projection": ("o_proj", False),
}
_GATED, _PLAIN = ("gate_proj", "up_proj", "down_proj"), ("linear_fc1", "linear_fc2")
# Batch and micro-batch by default, of fine-tuning and of pre-training.
_USUAL = {"finetune": (16, 1), "pretrain": (512, 4)}


def launches(call: ProgramCall) -> bool:
    """Whether a call is one of LitGPT's trainings."""
    before = [word.text.rsplit("/", 1)[-1] for word in call.before]
    if before[-1:] == ["litgpt"]:
        return call.program.text.startswith(_STARTS) or bool(_TASKS.fullmatch(call.program.text))
    first = call.arguments[0].text if call.arguments else ""
    return call.program.text == "litgpt" and bool(_TASKS.fullmatch(first))


def _call(files: Mapping[str, str]) -> training_calls.TrainingCall | None:
    return training_calls.training_call_if_any(files, ("litgpt",), launches, TITLE)


def _yaml(files: Mapping[str, str]) -> str | None:
    """The name of a configuration; None if there is none."""
    found = (
        name
        for name, text in files.items()
        if name.endswith(YAML)
        and all(mark.search(text) for mark in (_MARKS, _TRAIN, _MICRO))
        and "tensor_model_parallel" not in text
    )
    return next(found, None)


def recognises(files: Mapping[str, str]) -> bool:
    """Whether a script starts LitGPT, or one of its configurations is among the files."""
    return _yaml(files) is not None or _call(files) is not None


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan; raises Unreadable."""
    call = _call(files)
    values = _values(files, call)
    settings, place = tuple(values.settings.values()), values.file
    task = _task(values, call)
    model = given_with(files).model or _model(values, place)
    nodes, world = _world(values, task, accelerators)
    try:
        training, plan = _plan(values, model, task, nodes, world)
    except ValidationError as error:
        raise malformed(error, place) from None
    return Reading(
        framework="pytorch",
        model=model,
        training=training,
        plan=plan,
        nodes=nodes,
        accelerators_per_node=world // nodes,
        settings=settings,
        unread=tuple(one for one in settings if one.name not in values.asked),
        assumed=tuple(dict.fromkeys(values.assumed)),
        refusals=tuple(values.refusals),
        written=False,
    )


def _values(files: Mapping[str, str], call: training_calls.TrainingCall | None) -> LaunchValues:
    """The keys of the configuration, then those of the call and of the user."""
    said = _of_call(call) if call is not None else []
    notes = list(call.notes) if call is not None else []
    place, of_file = call.script if call is not None else "", list[Setting]()
    if (name := _config(files, said)) is not None:
        config = yaml_files.read(files[name], name)
        place, of_file, notes = name, list(config.settings()), [*notes, *config.notes()]
    settings = (*of_file, *said, *given_with(files).settings())
    return LaunchValues({one.name: one for one in settings}, place, notes)


def _config(files: Mapping[str, str], said: Sequence[Setting]) -> str | None:
    """The configuration that a call names, or that stands alone; None without one."""
    named = next((one.value for one in said if one.name == "config"), None)
    if not isinstance(named, str):
        return None if said else _yaml(files)
    last = named.rsplit("/", 1)[-1]
    name = next((one for one in files if one.rsplit("/", 1)[-1] == last), None)
    if name is None:
        raise Unreadable(f"the configuration {named} is not among the files: give it")
    return name


def _of_call(call: training_calls.TrainingCall) -> list[Setting]:
    """The options of a call by their keys; the checkpoint may stand alone before them."""
    words = list(call.launch.arguments)
    if call.launch.program.text == "litgpt":
        words = words[1:]
    while words and _TASKS.fullmatch(words[0].text):
        words = words[1:]
    found = []
    if words and not words[0].text.startswith("-"):
        first = words.pop(0)
        place = {"file": first.file, "line": first.line}
        found.append(Setting(name="checkpoint_dir", value=first.text, **place))
    found += [
        one.model_copy(update={"name": one.name.lstrip("-").replace("-", "_")})
        for one in options(words)
    ]
    return found


def _task(values: Values, call: training_calls.TrainingCall | None) -> str:
    """full, lora or pretrain; by the command, else by the keys.  Raises Unreadable."""
    words = []
    if call is not None:
        words = [call.launch.program.text, *(one.text for one in call.launch.arguments[:2])]
    if words and words[0].startswith(_STARTS) and not _TASKS.fullmatch(words[0]):
        raise Unreadable(f"{words[0]} is of a fork of {TITLE}: not read", values.file)
    if any(map(_OTHER_TASKS.fullmatch, words)):
        raise Unreadable("LLaMA-Adapter adds parts to the model, which no plan has", values.file)
    if "pretrain" in words or values.has("model_name", "model_config", "initial_checkpoint_dir"):
        if values.has("lora_r"):
            rank = values.settings["lora_r"]
            raise rank.unreadable("pre-training of adapters is of a fork of LitGPT: not read")
        return "pretrain"
    whole = {"full", "finetune_full"} & set(words)
    adapted = values.has("lora_r") or {"lora", "finetune_lora", "finetune"} & set(words)
    return "lora" if adapted and not whole else "full"


def _model(values: LaunchValues, place: str) -> ModelSpec:
    named = values.path("checkpoint_dir", "model_name", "initial_checkpoint_dir").rstrip("/")
    return post_training.preset(
        named, "no checkpoint_dir or model_name", (place, 0), values.assumed
    )


def _world(values: Values, task: str, accelerators: int | None) -> tuple[int, int]:
    """The nodes, and the accelerators of all of them."""
    nodes = values.integer("num_nodes", default=1, most=DEGREE)
    stated = values.text("devices")
    if stated is None and task != "pretrain":
        values.assume("devices: not set, 1 as in LitGPT")
        return nodes, nodes
    if stated not in (None, "auto", "-1"):
        return nodes, nodes * values.integer("devices", most=DEGREE)
    if not accelerators or accelerators % nodes:
        raise Unreadable("LitGPT's files do not say how many accelerators run it: give a cluster")
    return nodes, accelerators


def _plan(
    values: Values, model: ModelSpec, task: str, nodes: int, world: int
) -> tuple[TrainingSpec, ParallelPlan]:
    usual_batch, usual_micro = _USUAL["pretrain" if task == "pretrain" else "finetune"]
    micro = values.integer("train.micro_batch_size", default=usual_micro)
    batch = values.integer("train.global_batch_size", default=usual_batch)
    steps = max(batch // world, 1) // micro
    if not steps:
        values.refuse(
            f"a rank's batch, {batch} / {world}, is less than a micro-batch of {micro}",
            "train.global_batch_size",
        )
    steps = max(steps, 1)
    if steps * micro * world != batch:
        values.assume(f"a batch of {batch} is {steps * micro * world} on {world} ranks")
    if not values.has("train.max_seq_length"):
        raise Unreadable(
            "LitGPT's files do not say how long samples are cut: --set train.max_seq_length=...",
            values.file,
        )
    stated = values.choice("precision", choices=_HALF, default="bf16-mixed")
    if stated.startswith("32"):
        values.assume(f"precision {stated}: plans have no fp32 training, bf16 assumed")
    sharded = world > 1
    recomputed = sharded and task != "pretrain"
    training = TrainingSpec(
        seq_length=values.integer("train.max_seq_length"),
        global_batch_size=steps * micro * world,
        precision=_HALF[stated],
        optimizer=_optimizer(values),
        **_weights(values, model, task, stated, sharded),
    )
    hybrid = sharded and task == "pretrain" and nodes > 1
    plan = ParallelPlan(
        dp=world,
        micro_batch_size=micro,
        zero_stage=3 if sharded else 0,
        recompute="full" if recomputed else "none",
        recompute_num_layers=model.num_layers if recomputed else 0,
        attention_kernel="flash2",
        cross_entropy="unfused",
        runtime="litgpt",
        compile=task == "pretrain",
        **({"dp_shard": world // nodes} if hybrid else {}),
    )
    return training, plan


def _optimizer(values: Values) -> Any:
    name = values.text("optimizer.class_path", "optimizer") or "AdamW"
    last = name.rsplit(".", 1)[-1].lower()
    eight = "adam8" in last or "8bit" in last
    paged = "paged_" if last.startswith("paged") else ""
    if "adam" not in last and last != "sgd":
        values.assume(f"the optimizer {name[:60]} is costed as Adam")
    return optimizer_of(f"{paged}adamw_8bit" if eight else f"{paged}adamw" if paged else last)


def _weights(
    values: Values, model: ModelSpec, task: str, stated: str, sharded: bool
) -> dict[str, Any]:
    """The types of what is kept, the adapters, and how frozen weights are stored."""
    half = _HALF[stated]
    true = stated.endswith("-true") and not stated.startswith("32")
    types: dict[str, Any] = {"gradient_reduce_dtype": half} if sharded else {}
    if task != "lora":
        return types | (kept_in(half) if true else {})
    packed = values.text("quantize")
    if packed and sharded:
        values.refuse("LitGPT quantises on one device only", "quantize")
    return types | {
        "lora_rank": values.integer("lora_r", default=8),
        "lora_dropout": values.probability("lora_dropout") if values.has("lora_dropout") else 0.05,
        "lora_targets": _targets(values, model),
        "frozen_dtype": "nf4" if packed and "4" in packed else "as trained",
    }


def _targets(values: Values, model: ModelSpec) -> tuple[str, ...]:
    if values.boolean("lora_head"):
        values.assume("lora_head: adapters of the output layer are not costed")
    stated = [name for key, (name, usual) in _TARGETS.items() if values.boolean(key, default=usual)]
    if values.boolean("lora_mlp"):
        stated += _GATED if model.gated_mlp else _PLAIN
    return tuple(stated)
