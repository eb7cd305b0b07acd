"""Reads scripts that start transformers' Trainer with options of the command line.

Their own options differ (FastChat, LLaVA, Qwen, Alpaca); those of TrainingArguments are the same,
and PEFT's have many prefixes.  Each is taken to the key that the YAML trainers have for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from cost_models.catalog.names import UnknownName
from planner.frameworks import architecture, training_calls, unread_trainers
from planner.frameworks.accelerate import (
    python_trainer,
    sharding,
    swift,
    trainer_config,
    trainer_options,
    trainers,
    tuning,
)
from planner.frameworks.accelerate.launch_config import SWITCHES, of_config, plain
from planner.frameworks.accelerate.trainer_calls import MARK
from planner.frameworks.accelerate.trainer_keys import PLAIN, TRAINERS, Trainer
from planner.frameworks.accelerate.trainer_refusals import OTHER_PART, WHOLE, refuse
from planner.frameworks.bash import ProgramCall, slurm_variables
from planner.frameworks.given_values import (
    LaunchValues,
    Values,
    launcher_options,
    malformed,
    options,
)
from planner.frameworks.launch_files import GivenValues, given_with
from planner.frameworks.named_models import find, is_encoder, names_none
from planner.frameworks.python.scripts import PYTHON
from planner.frameworks.read_results import OtherTraining, Reading, Setting, Unreadable
from planner.frameworks.training_calls import TrainingCall, World

TITLE = PLAIN.title
RANK = re.compile(r"(.*_)?lora_(r|rank|dim)|peft_r")
# Option of many scripts -> the key for it; PEFT's may have a prefix.
KEYS = (
    (re.compile(r"((base|pretrained|hf|llm)_)?model(_(name|path|id|dir|checkpoint))?(_or_path)?|"
                r"config_name"), "model_name_or_path"),
    (re.compile(r"(use_)?grad(ient)?_checkpoint(ing)?"), "gradient_checkpointing"),
    (RANK, "lora_r"),
    (re.compile(r"(.*_)?lora_(target(_module)?s?|target_modules|trainable|modules)|target_modules"),
     "lora_target_modules"),
    (re.compile(r"(.*_)?lora_dropout(_p)?"), "lora_dropout"),
    (re.compile(r"zero"), "zero_stage"),
    (re.compile(r"(deepspeed|ds)_config(_file|_path)?"), "deepspeed"),
)  # fmt: skip
SWITCH = re.compile(r"((use|enable)_)?((peft|llm)_)?(q_?)?(lora|peft)(_enabled?)?")
QUANTIZED = re.compile(r"(use_)?q_?lora|(use_|load_in_)?(4bit|int4)(_quantization)?|use_4bit.*")
# Where adapters are loaded from or saved.
_ADAPTERS = re.compile(r"(\w+_)?adapters?_(path|dir|name|name_or_path|model|model_path)")
OWN = "--config_name"  # of the script that is written here
# An option of a program's parser with a whole number by default, and those that are filled in.
_DECLARED = re.compile(
    r"""add_argument\(\s*["']--(\w+)["'],(?:[^()]|\([^()]*\))*?\bdefault\s*=\s*(\d+)\s*[,)]"""
)
_FILLED = ("per_device_train_batch_size", "gradient_accumulation_steps", *PLAIN.length)
# A half precision in DeepSpeed's configuration of a program, as a mapping of Python's.
_ENABLED = re.compile(
    r"""^[ \t]*["'](fp16|bf16)["']:\s*\{\s*["']enabled["']:\s*True\b""", re.MULTILINE
)
MODES = ("full", "lora", "qlora")  # Firefly's
STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto")  # LLaMA-Factory's
# Options by which a program with LLaMA-Factory's length is its own.
OF_FACTORY = ("stage", "finetuning_type", "lora_target", "template", "quantization_bit")
# Lengths of the two parts of a sample.
PARTS = (("source_max_len", "target_max_len"), ("max_source_length", "max_target_length"))


def launches(call: ProgramCall) -> bool:
    """Whether a call has the options of transformers' Trainer, and is not of our own train.py."""
    own = _by_accelerate(call) and any(word.text.startswith(OWN) for word in call.arguments)
    return swift.launches(call) or (not own and training_calls.has_trainer_options(call))


def is_one(files: Mapping[str, str]) -> bool:
    """Whether some script has such a call."""
    hints, trains = (*training_calls.TRAINER_HINTS, "swift"), _trains(files)
    return training_calls.training_call_if_any(files, hints, trains, TITLE) is not None


def _trains(files: Mapping[str, str]) -> Callable[[ProgramCall], bool]:
    """Whether a call is one, by its options or by those that its program declares."""

    def declares(call: ProgramCall) -> bool:
        names_model = any(word.text.startswith("--model_name_or_path") for word in call.arguments)
        mark = f'"{training_calls.TRAINER_MARK}"'
        return names_model and mark in _program(call, files)[1]

    return lambda call: launches(call) or declares(call)


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of the last such call; raises Unreadable.

    A script that makes the arguments itself says more than the options of its call, where it can
    be followed.
    """
    if not python_trainer.is_one(files):
        return _read(files, accelerators, *_call(files))
    try:
        return _read(files, accelerators, *python_trainer.call(files, accelerators, processes))
    except Unreadable as error:
        if not is_one(files):
            raise python_trainer.without_config(error, files) from None
        return _by_options_alone(files, accelerators, error)


def _by_options_alone(
    files: Mapping[str, str], accelerators: int | None, error: Unreadable
) -> Reading:
    """What the options of the call say, where its program was not followed for this reason."""
    try:
        found = _read(files, accelerators, *_call(files))
    except Unreadable:
        raise error from None
    if isinstance(error, OtherTraining):
        if found.training.loss == "next_token":
            raise error
        return found  # of rewards, whose models have another head
    note = f"{error.file or 'the program'} is not followed, only its options are read: "
    return found.model_copy(update={"assumed": (*found.assumed, note + error.text[:200])})


def _call(files: Mapping[str, str]) -> tuple[TrainingCall, dict[str, Any]]:
    """The call with such options, and its keys that hold keys themselves."""
    call = trainer_config.call(files)
    named = call is not None and not call.script.endswith((*trainer_config.YAML, ".json"))
    if call is None or (is_one(files) and not (named and swift.launches(call.launch))):
        call = training_calls.training_call(files, _trains(files), TITLE)
    return call, trainer_config.sections(files)


def _read(
    files: Mapping[str, str],
    accelerators: int | None,
    call: TrainingCall,
    sections: dict[str, Any],
) -> Reading:
    given, program = given_with(files), call.launch.program
    settings = _settings(call.launch, given)
    values = LaunchValues({}, program.file, list(call.notes))
    values.settings = dict(_by_key(settings, call.launch, values.assumed))
    values.settings = {**_defaults_of_program(call, values), **values.settings}
    if swift.launches(call.launch) and values.text("rlhf_type") == "grpo":
        values.settings = swift.trained_of_grpo(values.settings, values.assumed)
    trainer = _trainer(values)
    refuse(values, call)
    if _loops_itself(call):
        values.assume(
            f"{program.text} trains in a loop of its own: costed as transformers' Trainer would"
        )
        values.settings = {**_half_of_program(call.files), **values.settings}
    beside = _beside(call, values.assumed)
    reached = _world(call.launch, beside)
    alone = not call.launch.launcher and program.file.endswith(PYTHON)
    if alone and reached.accelerators is None:
        accelerators = accelerators or 1
        values.assume(
            f"no launcher among the files: {accelerators} ranks, each with its own process"
        )
    elif not call.launch.before and not call.launch.launcher and not alone:
        stated = program.file.endswith((*trainer_config.YAML, ".json"))
        values.assume(
            f"no launcher among the files: {accelerators} ranks, each with its own process"
            if stated
            else f"{program.text} is a command of a package: one process is assumed"
        )
    size = training_calls.accelerators(call, reached, accelerators, values.assumed)
    if swift.launches(call.launch) and (steps := swift.accumulated(values.settings, size)):
        values.settings[steps.name] = steps
    _require(values, trainer, given, call)
    beside = sharding.by_options(values, call.launch, beside)
    model = trainers.model_of(values, trainer, given, call.files)
    tree = {name: one.value for name, one in values.settings.items()}
    tree |= sections
    try:
        training, plan = trainers.plan_of(values, trainer, tree, model, call.files, size, beside)
    except ValidationError as error:
        raise malformed(error, program.file) from None
    unread = _unread(values, settings)
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=reached.nodes,
        accelerators_per_node=reached.per_node,
        settings=(
            *training_calls.options(call.launch.before),
            *beside.settings.values(),
            *settings,
        ),
        unread=unread,
        assumed=tuple(dict.fromkeys(values.assumed)),
        written=False,
    )


def _loops_itself(call: TrainingCall) -> bool:
    """Whether a program that is at hand takes the steps of its training itself."""
    _, text = _program(call.launch, call.files)
    return bool(unread_trainers.OWN_LOOP.search(text)) and not MARK.search(text)


def _program(call: ProgramCall, files: Mapping[str, str]) -> tuple[str, str]:
    """The name and the text of a call's program, if it is at hand."""
    last = call.program.text.rsplit("/", 1)[-1]
    named = (name for name in files if name.rsplit("/", 1)[-1] == last and name.endswith(PYTHON))
    return (name := next(named, "")), files.get(name, "")


def _defaults_of_program(call: TrainingCall, values: Values) -> dict[str, Setting]:
    """The batch and the length that the program's own parser has where the call has none."""
    name, text = _program(call.launch, call.files)
    found = {
        one[1]: Setting(name=f"--{one[1]}", value=one[2], file=name,
                        line=1 + text.count("\n", 0, one.start()))
        for one in _DECLARED.finditer(text)
        if one[1] in _FILLED and not values.has(*(PLAIN.length if one[1] in PLAIN.length else ()))
    }  # fmt: skip
    left = {key: one for key, one in found.items() if key not in values.settings}
    if left:
        said = ", ".join(f"{key} {one.value}" for key, one in left.items())
        values.assume(f"defaults of {name}: {said}")
    return left


def _half_of_program(files: Mapping[str, str]) -> dict[str, Setting]:
    """The half precision that is on in DeepSpeed's configuration inside the program's files."""
    found = {
        one[1]: Setting(
            name=one[1], value="true", file=name, line=text.count("\n", 0, one.end(1)) + 1
        )
        for name, text in files.items()
        if name.endswith(PYTHON)
        for one in _ENABLED.finditer(text)
    }
    return found if len(found) == 1 else {}


def _unread(values: Values, settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """The settings that were not looked up; what of a plan is among them is said."""
    read_ones = [values.settings[key] for key in values.asked if key in values.settings]
    places = {(one.name, one.file, one.line) for one in read_ones}
    unread = tuple(one for one in settings if (one.name, one.file, one.line) not in places)
    left = tuple(one for one in unread if not _is_tuning(one))
    values.assumed += architecture.unplanned(left)
    return left


def _settings(call: ProgramCall, given: GivenValues) -> list[Setting]:
    """The options of the call, then the user's; several words of one are one text."""
    found = [*options(call.arguments), *given.settings()]
    return [
        one if not isinstance(one.value, tuple) else one.model_copy(
            update={"value": " ".join(one.value)}
        )
        for one in found
    ]  # fmt: skip


def _by_key(
    settings: Sequence[Setting], call: ProgramCall, assumed: list[str]
) -> Iterator[tuple[str, Setting]]:
    """The settings by the keys that trainers have for them; the last of each counts."""
    names = (one.name.lstrip("-").replace("-", "_") for one in settings)
    said = dict(zip(map(training_calls.whole_option, names), settings, strict=True))
    if swift.launches(call):
        yield from swift.keys(said, call).items()
        return
    yield from said.items()
    yield from _renamed(said)
    if "task_type" in said and "stage" not in said:  # Firefly's
        yield "stage", said["task_type"]
    if (mode := said.get("train_mode")) is not None and mode.value in MODES:
        yield "finetuning_type", mode
    elif "finetuning_type" not in said:
        yield from _adapters(said, call.program.text.rsplit("/", 1)[-1], assumed)


def _renamed(said: Mapping[str, Setting]) -> Iterator[tuple[str, Setting]]:
    """The settings of other names by the keys that trainers have for them."""
    for pattern, key in KEYS:
        named = [name for name in said if pattern.fullmatch(name) and not OTHER_PART.search(name)]
        bare = key == "deepspeed" and key in said and said[key].value is None
        if named and (key not in said or bare):
            yield key, said[named[0]]


def _adapters(
    said: Mapping[str, Setting], program: str, assumed: list[str]
) -> Iterator[tuple[str, Setting]]:
    """finetuning_type, by switches under any name, else by options of LoRA, else by the program."""
    switches = [one for name, one in said.items() if SWITCH.fullmatch(name)]
    about = next(iter(_adapting(said, switches, program)), None)
    if about is None:
        return
    if not switches and "finetuning_type" not in said:
        why = f"{about.name} is PEFT's" if "lora" in about.name else "by its name"
        assumed.append(f"{program} is assumed to train LoRA adapters: {why}")
    ranks = [one for one in switches if str(one.value).isdigit() and int(str(one.value)) > 1]
    if ranks:  # InternVL's --use_llm_lora 16
        yield "lora_r", ranks[0]
    elif "r" in said and "lora_alpha" in said:  # PEFT's own names
        yield "lora_r", said["r"]
    elif not any(RANK.fullmatch(name) for name in said):
        assumed.append("the rank of LoRA is not set: 8 as in PEFT, the program may have its own")
    trained = said.get("trainable")  # Chinese-LLaMA-Alpaca's
    if trained is not None and "_proj" in str(trained.value):
        yield "lora_target_modules", trained
    kind = "qlora" if _is_packed(said, program) else "lora"
    yield "finetuning_type", about.model_copy(update={"value": kind})
    if "modules_to_save" in said:
        assumed.append("modules_to_save: modules that are trained whole are not costed")


def _adapting(said: Mapping[str, Setting], switches: list[Setting], program: str) -> list[Setting]:
    """The settings that say that adapters are trained; empty where all weights are."""
    if any(tuning.is_on(said[name]) for name in WHOLE if name in said):
        return []
    if switches:
        return switches if any(map(tuning.is_on, switches)) else []
    found = [
        one
        for name, one in said.items()
        if ("lora_" in name or _ADAPTERS.fullmatch(name)) and not OTHER_PART.search(name)
    ]
    return found or (list(said.values()) if "lora" in program.lower() else [])


def _is_packed(said: Mapping[str, Setting], program: str) -> bool:
    """Whether frozen weights have 4 bits, by its options or else by the program's name."""
    names = ("bits", "quantization_bit", "load_in_bits", "quant_bits")
    bits = [said[name].value for name in names if name in said]
    if not bits and "qlora" in program.lower():
        return True
    return "4" in bits or any(
        tuning.is_on(one) for name, one in said.items() if QUANTIZED.fullmatch(name)
    )


def _trainer(values: Values) -> Trainer:
    """LLaMA-Factory by its own options, else transformers' Trainer itself."""
    factory = TRAINERS[0]
    stage = values.settings.get("stage")
    if stage is not None and stage.value not in STAGES:  # LLaVA's stages are of the data
        if stage.name == "--stage" and values.settings.keys() & {*factory.marks}:
            raise stage.unreadable(
                f"{stage.name} {stage.value}: its loss cannot be planned, only pt, sft, rm and dpo"
            )
        values.settings = {key: one for key, one in values.settings.items() if key != "stage"}
    staged = "stage" in values.settings and not values.has(*PLAIN.length)
    if staged or values.settings.keys() & {"cutoff_len", "lora_target"}:
        targets = ("lora_target", "lora_target_modules")
        length = (*factory.length, *PLAIN.length)  # of a script's own, beside LLaMA-Factory's
        tuning = factory.usual_tuning if values.settings.keys() & {*OF_FACTORY} else "full"
        return replace(factory, length=length, rank="lora_r", targets=targets, usual_tuning=tuning)
    return PLAIN


def _is_tuning(setting: Setting) -> bool:
    """Whether a setting says what is trained, which is read with its other names."""
    name = setting.name.lstrip("-")
    return any(one.fullmatch(name) for one in (SWITCH, QUANTIZED, RANK)) or "load_in" in name


def _by_accelerate(call: ProgramCall) -> bool:
    return call.launcher == "accelerate"


def processes(call: TrainingCall, notes: list[str]) -> int | None:
    """How many processes a call starts, by itself and by accelerate's configuration."""
    return _world(call.launch, _beside(call, notes)).accelerators


def _beside(call: TrainingCall, notes: list[str]) -> Values:
    """Accelerate's configuration of a call, and the options that overrule it."""
    before = call.launch.before[2:] if _by_accelerate(call.launch) else ()
    line = launcher_options(before, notes, SWITCHES)
    keyed = [*of_config(call.files, line, notes), *((plain(o.name), o) for o in line)]
    return Values(dict(keyed), call.launch.program.file, notes)


def _world(call: ProgramCall, beside: Values) -> World:
    """The processes, by accelerate's configuration if it launches; python alone starts one."""
    if _by_accelerate(call):
        return _of_accelerate(call, beside)
    if swift.launches(call):
        return swift.world(call)
    reached, script = training_calls.world(call), training_calls.scripts([call.program.file])
    own = not call.before and (training_calls.visible(call) or script)
    # Without a launcher or srun, whatever nodes the job has.
    started = training_calls.alone(call) and not reached.accelerators
    started |= bool(own or call.launcher == "python") and reached == World(None, None, None)
    return training_calls.unlaunched(call) if started else reached


def _of_accelerate(call: ProgramCall, beside: Values) -> World:
    """The processes of `accelerate launch`: stated, or one on each accelerator that it sees."""
    total = beside.integer("num_processes", default=0, least=0)
    nodes = beside.integer("num_machines", default=1)
    slurm = slurm_variables((*call.slurm, *call.before))
    seen = training_calls.visible(call)
    if not seen and nodes == slurm.get("SLURM_NNODES", 1):
        seen = slurm.get("SLURM_GPUS_PER_NODE")
    total = total or (seen or 0) * nodes
    return World(nodes, total // nodes, total) if total else World(None, None, None)


def _refuse_encoder(values: Values, given: GivenValues) -> None:
    """Raises Unreadable if the named model is none of a decoder alone."""
    stated = values.settings.get("model_name_or_path")
    if stated is not None and given.model is None and is_encoder(str(stated.value)):
        text = f"{str(stated.value)[:100]} is an encoder, or has one"
        raise stated.unreadable(f"{text}: {training_calls.DECODERS_ONLY}")


def _is_unnamed(values: Values, files: Mapping[str, str]) -> bool:
    """Whether no option names the model, or a folder that has no config.json here."""
    stated = values.settings.get("model_name_or_path")
    if stated is None:
        return True
    return "config.json" not in files and names_none(str(stated.value or ""))


def _is_unknown(stated: Setting, call: TrainingCall) -> bool:
    """Whether a model's name is no preset, and its shapes are not among the files."""
    try:
        find(str(stated.value), [])
    except UnknownName:
        known = any(one.endswith("config.json") for one in call.files)
        return not (known or "$" in str(stated.value) or names_none(str(stated.value)))
    return False


def _require(values: Values, trainer: Trainer, given: GivenValues, call: TrainingCall) -> None:
    """Raises Unreadable with all that is missing, how to give it, and what was read."""
    _refuse_encoder(values, given)
    missing, add = [], []
    if given.model is None and _is_unnamed(values, call.files):
        missing.append("the model")
        add.append("--model NAME")
    for parts in PARTS:
        if all(map(values.has, parts)) and not values.has(*trainer.length):
            total = sum(values.integer(one) for one in parts)
            said = values.settings[parts[0]].model_copy(update={"value": str(total)})
            values.settings = {**values.settings, trainer.length[0]: said}
            values.assume(f"the sequence length is {' + '.join(parts)}: {total}")
    if not values.has(*trainer.length) and trainer.usual_length is None:
        missing.append("the sequence length")
        add.append(f"--set {trainer.length[0]}=...")
    stated = values.settings.get("model_name_or_path")
    if missing and given.model is None and stated is not None and _is_unknown(stated, call):
        missing.append(f"a model that is known ({stated.value})")
        add.insert(0, "--model NAME")
    if missing:
        _raise_missing(values, trainer, call, missing, add)


def _raise_missing(
    values: Values, trainer: Trainer, call: TrainingCall, missing: list[str], add: list[str]
) -> None:
    shown = ("model_name_or_path", trainer.micro, "gradient_accumulation_steps", "deepspeed",
             "fsdp", "finetuning_type", "lora_r", "bf16")  # fmt: skip
    found = [f"{key} {values.settings[key].value or ''}".rstrip()
             for key in shown if key in values.settings
             and "${" not in str(values.settings[key].value)]  # fmt: skip
    program = call.launch.program
    open_ones = [one for one in call.notes if one.endswith(trainer_options.LEFT_OPEN)]
    raise program.unreadable(
        f"{program.text} leaves out {' and '.join(missing)}: add {' '.join(add)} (read: "
        f"{', '.join(found + open_ones[:3])})"
    )
