"""Reads a script of Unsloth without running it: the arguments of its calls, and its ranks.

What a script leaves open is as in Unsloth 2026.10.9: loader.py, llama.py and rl.py of models/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from cost_models.catalog.names import UnknownName
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import training_calls
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.accelerate.settings import ADAM_BY_LISTS
from planner.frameworks.accelerate.trainer_calls import config_of_trainer, is_trainer
from planner.frameworks.accelerate.trainer_keys import GRPO, GRPO_PARTS, kept_in
from planner.frameworks.accelerate.trainers import optimizer_of
from planner.frameworks.bash import ProgramCall, evaluate
from planner.frameworks.config_files import model_of_config
from planner.frameworks.given_values import DEGREE, Values, malformed
from planner.frameworks.launch_files import GivenValues, given_with
from planner.frameworks.python.loaders import by_unsloth
from planner.frameworks.python.scripts import PYTHON, Script
from planner.frameworks.python.static_values import Call, Unknown
from planner.frameworks.read_results import (
    COSTED_AS_TWICE,
    PAIRS_ALONE,
    OtherTraining,
    Reading,
    Setting,
    Unreadable,
)
from planner.frameworks.unsloth.rules import LEAST_OFFLOADED
from planner.frameworks.unsloth.settings import ADAPT, ARGUMENTS, CHECKPOINTS, LOAD
from planner.huggingface.named_models import find

# Configurations of trainers of the next token, whose arguments are named alike.
GENERATES = "GRPOConfig"
# Those of pairs, whose logits are whole -> the loss.
PAIRED = {"DPOConfig": "dpo", "ORPOConfig": PAIRS_ALONE, "CPOConfig": PAIRS_ALONE}
CONFIGS = (ARGUMENTS, "TrainingArguments", "UnslothTrainingArguments", GENERATES, *PAIRED)
OTHERS = re.compile(r"(?:KTO|PPO|RLOO|Reward|GKD)Config")
# The length of a sequence, which older releases of TRL hand the trainer itself.
LENGTHS = ("max_length", "max_seq_length")
MICRO = f"{ARGUMENTS}.per_device_train_batch_size"
USUAL_LENGTH, USUAL_PAIR, USUAL_RANK = 2048, 1024, 16
# Micro-batch, accumulation and optimizer where a configuration is silent: of TRL's class, which
# Unsloth replaces by its own, and of transformers' TrainingArguments.
USUAL, OF_TRANSFORMERS = (4, 2, "adamw_8bit"), (8, 1, "adamw_torch_fused")
# bf16 or fp16 is what a card has, packing and alpha change no cost.
IDLE = {f"{LOAD}.dtype", f"{ARGUMENTS}.bf16", f"{ARGUMENTS}.packing", f"{ADAPT}.lora_alpha"}
# What trains more, or less, than adapters in every layer.
OTHER_WEIGHTS = ("modules_to_save", "layers_to_transform", "finetune_last_n_layers")
# What makes ranks hold parts of a model or of a sequence, in other files and in the script.
_SPLITS = re.compile(
    r"\bUNSLOTH_FSDP2=[\"']?(?:1|true|yes|on|native)\b|--use_(?:fsdp|deepspeed)\b|"
    r"\bdistributed_type:\s*(?:FSDP|DEEPSPEED)\b",
    re.IGNORECASE,
)
_WHOLE_ONLY = "cannot be read: only ranks that hold a whole model"
SPLITS = ("fsdp", "fsdp_config", "deepspeed", "context_parallel_size")
# Names of its checkpoints in four bits.
_PACKED = re.compile(r"(-unsloth)?-bnb-4bit$")
# Classes whose from_pretrained loads a model.
_OF_MODELS = re.compile(r"\bFast\w*Model\.from_pretrained$")
_USED = re.compile(r"\bFast(?:Language)?Model\.from_pretrained\b")


def recognises(files: Mapping[str, str]) -> bool:
    """Whether a script loads a model with Unsloth."""
    return _script(files) is not None


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of a script; raises Unreadable."""
    name = _script(files)
    if name is None:
        raise Unreadable(f"no script of Unsloth among the files: {', '.join(files)}")
    given, assumed = given_with(files), list[str]()
    _refuse_parts(files)
    start = training_calls.start_of(files, name)
    alone = start is None and training_calls.devices_set_by_script(files[name])
    nodes, world = (1, 1) if alone else _ranks(start, accelerators, assumed)
    calls, loss = _calls(files, name, start, world, assumed)
    said = {one.name: one for one in _settings(calls, name)}
    said |= {_of_call(one.name, said): one for one in given.settings()}
    values = Values(said, name, assumed)
    _refuse_splits(values)
    model = _model(values, given, files, calls[LOAD])
    own = calls[ARGUMENTS].short != "TrainingArguments"
    try:
        usual = USUAL if own else OF_TRANSFORMERS
        training, plan = _plan(values, model, world, usual, calls[ARGUMENTS], loss)
    except ValidationError as error:
        raise malformed(error, name) from None
    asked = values.asked - said.keys() - IDLE
    open_ = (one for one in _at_run_time(calls) if one in asked)
    assumed += [f"{one}: known only at run time, taken as Unsloth's default" for one in open_]
    return Reading(
        framework="unsloth",
        model=model,
        training=training,
        plan=plan,
        nodes=nodes,
        accelerators_per_node=world // nodes if nodes else None,
        settings=tuple(said.values()),
        unread=tuple(one for key, one in said.items() if key not in values.asked),
        assumed=tuple(assumed),
        written=loss == "next_token",
    )


def _script(files: Mapping[str, str]) -> str | None:
    """The script that loads a model, or the launch itself where a module of it does."""
    scripts = [name for name in files if name.endswith(PYTHON)]
    loads = [one for one in scripts if _USED.search(files[one]) and by_unsloth(files, one)]
    first = next(iter(files), "")
    if loads and first in scripts:
        return first
    started = (one for one in loads if training_calls.start_of(files, one) is not None)
    return next(started, next(iter(loads), None))


def _calls(
    files: Mapping[str, str],
    name: str,
    start: ProgramCall | None,
    world: int,
    assumed: list[str],
) -> tuple[dict[str, Call], str]:
    """The calls that decide the run, by LOAD, ADAPT and ARGUMENTS, and its loss.

    start: what starts the script, in so many processes.
    """
    found: dict[str, Call] = {}
    trainers: list[Call] = []

    def seen(call: Call) -> None:
        kind = call.name.rsplit(".", 1)[-1]
        if is_trainer(call):
            trainers.append(call)
        kind = ARGUMENTS if kind in CONFIGS or OTHERS.fullmatch(kind) else kind
        if kind == LOAD and not _OF_MODELS.search(call.name):
            return
        if kind == LOAD and call.args:
            call.kwargs.setdefault("model_name", call.args[0])
        if kind in (LOAD, ADAPT, ARGUMENTS):
            found[kind] = call

    words, environment = given_with(files).arguments, dict[str, str]()
    if start is not None:
        words = tuple(word.text for word in start.arguments)
        environment = {"WORLD_SIZE": str(world), **start.environment}
    script = Script(files, name, seen, words, environment)
    script.follow(lambda: LOAD in found and ARGUMENTS in found)
    assumed += script.known.notes
    whole = LOAD in found and found[LOAD].kwargs.get("full_finetuning") is True
    for kind in (LOAD, ARGUMENTS) if whole else (LOAD, ADAPT, ARGUMENTS):
        if kind not in found:
            idle = (
                "" if ARGUMENTS in found else ", nor one of a trainer: give the script that trains"
            )
            raise Unreadable(f"no call of {kind} is reached{idle}", name)
    for one in trainers[-1:]:
        _hand_length(one, found[ARGUMENTS])
    return found, _loss(trainers, found[ARGUMENTS], name)


def _hand_length(trainer: Call, arguments: Call) -> None:
    """Gives the arguments the length that only the trainer is given."""
    for key in LENGTHS:
        said = trainer.kwargs.get(key)
        if isinstance(said, int) and not arguments.kwargs.keys() & {*LENGTHS}:
            arguments.set(key, said, trainer.line)


def _loss(trainers: Sequence[Call], arguments: Call, file: str) -> str:
    """The loss by the class of the last trainer, else of its arguments; raises OtherTraining."""
    names = [config_of_trainer(one) for one in trainers[-1:]]
    for name in (*names, arguments.short):
        if OTHERS.fullmatch(name):
            text = f"{name}: only training on tokens and by DPO or its like can be read"
            raise OtherTraining(text, file, arguments.line)
        if name in PAIRED:
            return PAIRED[name]
    return "next_token"


def _settings(calls: Mapping[str, Call], file: str) -> Iterator[Setting]:
    """The arguments whose values are known, named call.argument."""
    for kind, call in calls.items():
        for name, value in call.kwargs.items():
            if isinstance(value, str | int | float | list | tuple):
                words = tuple(map(str, value)) if isinstance(value, list | tuple) else str(value)
                line = call.lines.get(name, call.line)
                yield Setting(name=f"{kind}.{name}", value=words, file=file, line=line)


def _at_run_time(calls: Mapping[str, Call]) -> Iterator[str]:
    """The arguments whose values the script does not say."""
    for kind, call in calls.items():
        for name, value in call.kwargs.items():
            if isinstance(value, Unknown | Call):
                yield f"{kind}.{name}"


def _of_call(name: str, known: Iterable[str]) -> str:
    """The argument that a given name means: of the call that has it, else of the configuration."""
    found = (one for one in known if one == name or one.endswith(f".{name}"))
    return next(found, name if "." in name else f"{ARGUMENTS}.{name}")


def _refuse_parts(files: Mapping[str, str]) -> None:
    """Raises Unreadable for a run whose ranks do not hold whole models, by its launch."""
    for file, text in files.items():
        if (found := _SPLITS.search(text)) is not None:
            line = text.count("\n", 0, found.start()) + 1
            raise Unreadable(f"{found[0]} {_WHOLE_ONLY}", file, line)


def _refuse_splits(values: Values) -> None:
    """As _refuse_parts, by the arguments of the script."""
    for name in SPLITS:
        if (values.text(f"{ARGUMENTS}.{name}") or "1") not in ("1", "False"):
            raise values.fault((f"{ARGUMENTS}.{name}",), _WHOLE_ONLY)


def _model(values: Values, given: GivenValues, files: Mapping[str, str], load: Call) -> ModelSpec:
    """The given model, else that of the name in the script, of config.json, or of the launch."""
    name = values.text(f"{LOAD}.model_name")
    if given.model is not None:
        return given.model
    if name is None and "config.json" in files:
        return model_of_config(files, "config.json")
    if name is None and (name := _exported(files)) is None:
        said = load.kwargs.get("model_name")
        text = (
            f"the model is {said.source[:80]}, known only at run time"
            if isinstance(said, Unknown)
            else "the script does not say which model"
        )
        raise Unreadable(
            f"{text}: give its config.json, or a name (--model)", values.file, load.line
        )
    try:
        return find(_PACKED.sub("", name), values.assumed)
    except UnknownName as error:
        text = f"{name[:100]}: {error}; give the model by another name or by its config.json"
        raise values.fault((f"{LOAD}.model_name",), f"{text} (--model)") from None


def _exported(files: Mapping[str, str]) -> str | None:
    """The name of the model that the launch hands on in its environment."""
    for script in training_calls.scripts(files):
        try:
            launches = evaluate(files, script).launches
        except Unreadable:
            continue
        for launch in launches:
            if (name := launch.environment.get("MODEL")) is not None:
                return name
    return None


def _ranks(
    start: ProgramCall | None, accelerators: int | None, assumed: list[str]
) -> tuple[int | None, int]:
    """Nodes, if a launcher says them, and processes of all nodes; python alone starts one."""
    if start is None:
        ranks = accelerators or 1
        counted = f"{ranks} rank{'s' * (ranks != 1)}"
        assumed.append(f"no launcher among the files: {counted}, each with a whole model")
        return None, ranks
    reached = training_calls.world(start)
    if start.launcher == "accelerate":
        said = {one.name: one for one in training_calls.options(start.before)}
        launched = Values(said, start.program.file)
        nodes = launched.integer("--num_machines", default=1, most=DEGREE)
        return nodes, launched.integer("--num_processes", default=accelerators, most=DEGREE)
    if start.launcher == "python" and reached == training_calls.World(None, None, None):
        return 1, 1
    if (size := reached.accelerators or accelerators) is None:
        text = "the files do not say how many processes run it: give a cluster"
        raise start.program.unreadable(text)
    return reached.nodes, size


def _plan(
    values: Values,
    model: ModelSpec,
    world: int,
    usual: tuple[int, int, str],
    arguments: Call,
    loss: str,
) -> tuple[TrainingSpec, ParallelPlan]:
    length, micro = _length(values, loss), values.integer(MICRO, default=usual[0])
    steps = values.integer(f"{ARGUMENTS}.gradient_accumulation_steps", default=usual[1])
    if arguments.short == GENERATES:
        length, micro = _trained_of_grpo(values, arguments, length, micro, steps * world)
    if loss != "next_token":
        micro *= 2
    if loss == PAIRS_ALONE:
        values.assume(f"{arguments.short}: {COSTED_AS_TWICE}")
    values.has(*IDLE)
    half = "fp16" if values.boolean(f"{ARGUMENTS}.fp16") else "bf16"
    word = values.text(f"{ADAPT}.{CHECKPOINTS}", f"{LOAD}.{CHECKPOINTS}") or "unsloth"
    full = word.lower() != "false"
    optimizer = values.text(f"{ARGUMENTS}.optim") or usual[2]
    if optimizer == ADAM_BY_LISTS:
        values.assume(f"{ARGUMENTS}.optim {ADAM_BY_LISTS} is costed as AdamW in one kernel")
    training = TrainingSpec(
        seq_length=length,
        global_batch_size=micro * steps * world,
        precision=half,
        optimizer=optimizer_of(optimizer),
        loss="dpo" if loss == "dpo" else "next_token",
        **_weights(values, half),
    )
    plan = ParallelPlan(
        dp=world,
        micro_batch_size=micro,
        recompute="full" if full else "none",
        recompute_num_layers=model.num_layers if full else 0,
        offload_activations=word == "unsloth" and length >= LEAST_OFFLOADED,
        attention_kernel="flash2",
        cross_entropy="chunked" if loss == "next_token" else "unfused",
        runtime="unsloth",
        zero_stage=0,
    )
    return training, plan


def _length(values: Values, loss: str) -> int:
    """The longest sequence, of pairs by the arguments alone."""
    names = [f"{ARGUMENTS}.{key}" for key in LENGTHS]
    if loss != "next_token" and not values.has(*names):
        values.assume(f"max_length: not set, {USUAL_PAIR} as in TRL")
        return USUAL_PAIR
    return values.integer(*names, f"{LOAD}.max_seq_length", default=USUAL_LENGTH)


def _trained_of_grpo(
    values: Values, arguments: Call, length: int, micro: int, times: int
) -> tuple[int, int]:
    """The length and the micro-batch of GRPO's training, so many times a step."""
    length = min(length, _longest(arguments.kwargs, length))
    samples = values.integer(f"{ARGUMENTS}.num_generations", default=8)
    micro = micro if micro * times % samples == 0 else samples  # rl.py
    values.has(*(f"{ARGUMENTS}.{key}" for key in (*GRPO_PARTS, *GRPO.generates)))
    values.assume(f"only the training of GRPO is read, each sequence as long as {length} tokens")
    return length, micro


def _longest(said: Mapping[str, Any], longest: int) -> int:
    """The longest prompt and response; those that only running says fill the whole length."""
    parts = [said.get(key, usual) for key, usual in GRPO_PARTS.items()]
    return sum(parts) if all(isinstance(one, int) for one in parts) else longest


def _weights(values: Values, half: str) -> dict[str, Any]:
    """The fields of what is trained, and how all else is stored."""
    for name in OTHER_WEIGHTS:
        if values.has(f"{ADAPT}.{name}"):
            text = "cannot be read: only adapters in every layer"
            raise values.fault((f"{ADAPT}.{name}",), text)
    if values.boolean(f"{LOAD}.full_finetuning"):
        whole = values.boolean(f"{LOAD}.float32_mixed_precision", default=half == "fp16")
        return {} if whole else kept_in(half)
    eight = values.boolean(f"{LOAD}.load_in_8bit")
    if eight:
        values.assume("frozen weights of 8 bits are costed as 16: plans have 16 or 4")
    packed = not eight and not values.boolean(f"{LOAD}.load_in_16bit")
    return {
        "lora_rank": values.integer(f"{ADAPT}.r", default=USUAL_RANK),
        "lora_targets": _targets(values),
        "lora_dropout": values.probability(f"{ADAPT}.lora_dropout"),
        "frozen_dtype": (
            "nf4" if values.boolean(f"{LOAD}.load_in_4bit", default=packed) else "as trained"
        ),
    }


def _targets(values: Values) -> tuple[str, ...]:
    """The matrices with adapters; all of a layer where the script names none, or all-linear."""
    said = values.settings.get(f"{ADAPT}.target_modules")
    if said is None or not values.has(said.name) or not isinstance(said.value, tuple):
        return NAMES
    if odd := [name for name in said.value if name not in NAMES]:
        raise said.unreadable(
            f"adapters at {', '.join(odd)[:80]} cannot be read: only {', '.join(NAMES)}"
        )
    return said.value
