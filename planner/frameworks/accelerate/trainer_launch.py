"""Reads scripts that start transformers' Trainer with options of the command line.

Their own options differ (FastChat, LLaVA, Qwen, Alpaca); those of TrainingArguments are the same,
and PEFT's have many prefixes.  Each is taken to the key that the YAML trainers have for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from cost_models.catalog.names import UnknownName
from planner.frameworks import architecture, training_calls
from planner.frameworks.accelerate import (
    own_programs,
    program_lengths,
    python_trainer,
    sharding,
    swift,
    trainer_config,
    trainers,
)
from planner.frameworks.accelerate.frozen_bits import LEFT_OPEN
from planner.frameworks.accelerate.launch_config import SWITCHES, of_config, plain
from planner.frameworks.accelerate.trainer_keys import PARTS, PLAIN, TRAINERS, Trainer
from planner.frameworks.accelerate.trainer_names import by_key, is_tuning, of_adapter_file
from planner.frameworks.accelerate.trainer_refusals import is_grpo, refuse, trained_of_grpo
from planner.frameworks.bash import ProgramCall, slurm_variables
from planner.frameworks.given_values import (
    LaunchValues,
    Values,
    launcher_options,
    malformed,
    options,
)
from planner.frameworks.launch_files import GivenValues, given_with
from planner.frameworks.python.scripts import PYTHON
from planner.frameworks.read_results import OtherTraining, Reading, Setting, Unreadable
from planner.frameworks.training_calls import TrainingCall, World
from planner.huggingface.named_models import find, is_encoder, names_none

TITLE = PLAIN.title
OWN = "--config_name"  # of the script that is written here
# LLaMA-Factory's, and those of TRL's trainers of pairs.
STAGES = ("pt", "sft", "ppo", "rm", "dpo", "kto", "ipo", "orpo", "simpo", "cpo")
OF_PAIRS = STAGES[3:]
# Options by which a program with LLaMA-Factory's length is its own.
OF_FACTORY = ("stage", "finetuning_type", "lora_target", "template", "quantization_bit")


def launches(call: ProgramCall) -> bool:
    """Whether a call has the options of transformers' Trainer, and is not of our own train.py."""
    own = _by_accelerate(call) and any(word.text.startswith(OWN) for word in call.arguments)
    by_trainer = training_calls.has_trainer_options(call) or _by_console(call)
    return swift.launches(call) or (not own and by_trainer)


def _by_console(call: ProgramCall) -> bool:
    """Whether LLaMA-Factory's command starts it with options, which may leave out its batch."""
    console = call.before and call.before[-1].text.endswith("llamafactory-cli")
    return bool(console) and any(word.text.startswith("--stage") for word in call.arguments)


def is_one(files: Mapping[str, str]) -> bool:
    """Whether some script has such a call."""
    hints = (*training_calls.TRAINER_HINTS, "swift", "llamafactory-cli")
    trains = _trains(files)
    return training_calls.training_call_if_any(files, hints, trains, TITLE) is not None


def _trains(files: Mapping[str, str]) -> Callable[[ProgramCall], bool]:
    """Whether a call is one, by its options or by those that its program declares."""
    return lambda call: launches(call) or own_programs.declares(call, files)


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of the last such call; raises Unreadable.

    A script that makes the arguments itself says more than the options of its call, where it can
    be followed.
    """
    if not python_trainer.is_one(files):
        return _read(files, accelerators, *_call(files))
    words = python_trainer.example(files)
    if python_trainer.names_one(words, files):
        with suppress(Unreadable):
            return _by_example(files, accelerators, words)
    try:
        return _read(files, accelerators, *python_trainer.call(files, accelerators, processes))
    except Unreadable as error:
        if words and not isinstance(error, OtherTraining):
            with suppress(Unreadable):
                return _by_example(files, accelerators, words)
        if not is_one(files):
            raise python_trainer.without_config(error, files) from None
        return _by_options_alone(files, accelerators, error)


def _by_example(
    files: Mapping[str, str], accelerators: int | None, words: Sequence[str]
) -> Reading:
    """What a script says with the words of its own example of a call; raises Unreadable."""
    call = python_trainer.call(files, accelerators, processes, words)
    return _read(files, accelerators, *call)


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
    settings = _settings(call, given)
    values = LaunchValues({}, program.file, list(call.notes))
    values.settings = dict(by_key(settings, call.launch, values.assumed))
    _complete(values, call)
    trainer = _trainer(values)
    refuse(values, call)
    beside = _beside(call, values.assumed)
    reached = _world(call.launch, beside)
    accelerators = _alone(call, reached, accelerators, values.assumed)
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
        refusals=tuple(values.refusals),
        written=False,
    )


def _complete(values: LaunchValues, call: TrainingCall) -> None:
    """Adds what a program that is not followed says, and takes GRPO for its training."""
    values.settings = {**own_programs.defaults(call, values), **values.settings}
    if swift.launches(call.launch) and values.text("rlhf_type") == "grpo":
        values.settings = swift.trained_of_grpo(values.settings, values.assumed)
    elif is_grpo(values, call):
        values.settings = trained_of_grpo(values)
    if own_programs.loops_itself(call):
        own = "trains in a loop of its own: costed as transformers' Trainer would"
        values.assume(f"{call.launch.program.text} {own}")
        values.settings = {**own_programs.half_precision(call.files), **values.settings}


def _without_launcher(ranks: int | None) -> str:
    plural = "" if ranks == 1 else "s"
    return f"no launcher among the files: {ranks} rank{plural}, each with its own process"


def _alone(
    call: TrainingCall, reached: World, accelerators: int | None, assumed: list[str]
) -> int | None:
    """The accelerators of the cluster, one for a script without one; who starts them is said."""
    program = call.launch.program
    single = training_calls.alone(call.launch) and reached.accelerators == 1
    if single and not (training_calls.visible(call.launch) or swift.launches(call.launch)):
        assumed.append("python starts one process: one accelerator is assumed")
    if call.launch.launcher:
        return accelerators
    if program.file.endswith(PYTHON):
        if reached.accelerators is None:
            accelerators = accelerators or 1
            assumed.append(_without_launcher(accelerators))
    elif not call.launch.before:
        stated = program.file.endswith((*trainer_config.YAML, ".json"))
        package = f"{program.text} is a command of a package: one process is assumed"
        assumed.append(_without_launcher(accelerators) if stated else package)
    return accelerators


def _unread(values: Values, settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """The settings that were not looked up; what of a plan is among them is said."""
    # What is said twice is read once: the last counts.
    names = {values.settings[key].name for key in values.asked if key in values.settings}
    unread = tuple(one for one in settings if one.name not in names)
    left = tuple(one for one in unread if not is_tuning(one))
    values.assumed += architecture.unplanned(left)
    return left


def _settings(call: TrainingCall, given: GivenValues) -> list[Setting]:
    """The options of the call, then the user's; several words of one are one text.

    First those of a file of adapters that it names.
    """
    found = [*options(call.launch.arguments), *given.settings()]
    found = [*of_adapter_file(found, call.files), *found]
    return [
        one if not isinstance(one.value, tuple) else one.model_copy(
            update={"value": " ".join(one.value)}
        )
        for one in found
    ]  # fmt: skip


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
        seen = training_calls.of_node(slurm)
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
    _say_lengths(values, trainer)
    program_lengths.take(values, trainer, call)
    if not values.has(*trainer.length) and trainer.usual_length is None:
        missing.append("the sequence length")
        add.append(f"--set {trainer.length[0]}=...")
    stated = values.settings.get("model_name_or_path")
    if missing and given.model is None and stated is not None and _is_unknown(stated, call):
        missing.append(f"a model that is known ({stated.value})")
        add.insert(0, "--model NAME")
    if missing:
        _raise_missing(values, trainer, call, missing, add)


def _say_lengths(values: Values, trainer: Trainer) -> None:
    """Says which of several lengths that differ is read: of pairs TRL's own, else the first."""
    stated = {key: values.settings[key] for key in trainer.length if key in values.settings}
    if len({str(one.value) for one in stated.values()}) < 2:
        return
    pairs = values.settings.get("stage") if trainer is PLAIN else None
    own = pairs is not None and str(pairs.value) in OF_PAIRS and "max_length" in stated
    read = "max_length" if own else next(iter(stated))
    each = ", ".join(f"{one.name} {one.value}" for one in stated.values())
    values.assume(f"of the lengths {each} the one of {stated[read].name} is read")
    values.settings = {
        key: one for key, one in values.settings.items() if key not in stated or key == read
    }


def _raise_missing(
    values: Values, trainer: Trainer, call: TrainingCall, missing: list[str], add: list[str]
) -> None:
    shown = ("model_name_or_path", trainer.micro, "gradient_accumulation_steps", "deepspeed",
             "fsdp", "finetuning_type", "lora_r", "bf16")  # fmt: skip
    found = [f"{key} {values.settings[key].value or ''}".rstrip()
             for key in shown if key in values.settings
             and "${" not in str(values.settings[key].value)]  # fmt: skip
    program = call.launch.program
    open_ones = [one for one in call.notes if one.endswith(LEFT_OPEN)]
    raise program.unreadable(
        f"{program.text} leaves out {' and '.join(missing)}: add {' '.join(add)} (read: "
        f"{', '.join(found + open_ones[:3])})"
    )
