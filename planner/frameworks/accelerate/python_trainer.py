"""Reads a Python script, or a notebook, that calls transformers' Trainer or one of TRL's itself.

The arguments of its calls become the options of a call with TrainingArguments, which is read as
that of any script (trainer_launch).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.frameworks import training_calls
from planner.frameworks.accelerate import lightning
from planner.frameworks.accelerate.frozen_bits import LEFT_OPEN
from planner.frameworks.accelerate.trainer_calls import MARK, OF_TRL, PLAIN, Calls, class_of
from planner.frameworks.accelerate.trainer_options import Options
from planner.frameworks.accelerate.trainer_refusals import refuse_parts
from planner.frameworks.bash import Argument, ProgramCall, evaluate
from planner.frameworks.launch_files import given_with
from planner.frameworks.python.loaders import by_unsloth
from planner.frameworks.python.scripts import PYTHON, Script
from planner.frameworks.python.static_values import Call, Value
from planner.frameworks.read_results import OtherTraining, Unreadable
from planner.frameworks.training_calls import (
    TrainingCall,
    devices_set_by_script,
    scripts,
    several,
    visible,
)

# Arguments of a Trainer that say something of its training.
_OF_TRAINING = re.compile(
    r"per_device_train|gradient_|learning_rate|num_train|max_|[bf]+16|optim|deepspeed|fsdp|\*"
)
_MOST_NAMED, _MOST_WORDS = 4, 64
# What an example of a call begins with.
_STARTERS = "python3?|accelerate|torchrun|deepspeed|uv"
# The device maps by which one process has the layers of its model on all accelerators.
_SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")


def script_of(files: Mapping[str, str]) -> tuple[str, TrainingCall | None] | None:
    """The script that makes the arguments of a Trainer, and the call of it in a shell's script.

    It is the launch itself or the program that this starts; None without one.
    """
    first = next(iter(files), "")
    if first.endswith(PYTHON):
        return (first, None) if _makes_arguments(files) else None
    if not any(name.endswith(PYTHON) and MARK.search(text) for name, text in files.items()):
        return None
    for name in scripts(files):
        try:
            outcome = evaluate(files, name)
        except Unreadable:
            continue
        for one in reversed(outcome.launches):
            program = _program(files, one)
            if program is not None:
                known = {**files, **outcome.files}
                alike = [each for each in outcome.launches if _program(files, each) == program]
                notes = (*outcome.notes, *several(alike, program, name))
                return program, TrainingCall(one, name, known, notes=notes)
    return None


def _makes_arguments(files: Mapping[str, str]) -> bool:
    """Whether Python files make a Trainer's arguments, and none of them a model of Unsloth's."""
    python = [name for name in files if name.endswith(PYTHON)]
    marked = any(MARK.search(files[name]) for name in python)
    return marked and not any(by_unsloth(files, name) for name in python)


def _program(files: Mapping[str, str], launch: ProgramCall) -> str | None:
    """The file of a call's program, if it makes the arguments of a Trainer."""
    last = launch.program.text.rsplit("/", 1)[-1]
    if not last.endswith(PYTHON):  # a module
        last = f"{last.rsplit('.', 1)[-1]}.py"
    name = next((one for one in files if one.rsplit("/", 1)[-1] == last), "")
    text = files.get(name, "")
    makes = name.endswith(PYTHON) and MARK.search(text) and not by_unsloth(files, name)
    return name if makes else None


def without_config(error: Unreadable, files: Mapping[str, str]) -> Unreadable:
    """The error, or that the configuration of the script's call is not among the files."""
    which = script_of(files)
    base = which[1] if which is not None else None
    absent = base and training_calls.absent_config(base.launch, base.files)
    if not absent or isinstance(error, OtherTraining):
        return error
    return absent.unreadable(f"{absent.text}, its configuration, is not among the files: give it")


def is_one(files: Mapping[str, str]) -> bool:
    """Whether the launch is such a script, or calls one."""
    return script_of(files) is not None


def example(files: Mapping[str, str]) -> list[str]:
    """The words after a script's name in an example of its call that it has itself, if any.

    Empty where the files or the user say the words.
    """
    first = next(iter(files))
    if not first.endswith(PYTHON) or given_with(files).arguments:
        return []
    name = first.rsplit("/", 1)[-1]
    line = rf"^[ \t#>$]*(?:\w+=\S+ +)*(?:{_STARTERS})\b.*\b{re.escape(name)}\b(.*)$"
    found = re.search(line, re.sub(r"\\\n[ \t#]*", " ", files[first]), re.MULTILINE)
    try:
        return shlex.split(found[1], comments=True)[:_MOST_WORDS] if found else []
    except ValueError:
        return []


def names_one(words: Sequence[str], files: Mapping[str, str]) -> bool:
    """Whether the words of a call name a configuration that is among the files."""
    last = {one.rpartition("=")[2].rsplit("/", 1)[-1] for one in words}
    return any(one.rsplit("/", 1)[-1] in last for one in files if not one.endswith(PYTHON))


def call(
    files: Mapping[str, str],
    accelerators: int | None,
    processes: Callable[[TrainingCall, list[str]], int | None],
    example: Sequence[str] = (),
) -> tuple[TrainingCall, dict[str, Any]]:
    """The call with the options that the script amounts to, and those that are sections.

    processes: how many a call starts, if it says so.  example: the words of its command line where
    nothing else says them.  Raises Unreadable where it is followed to
    no training.
    """
    which = script_of(files)
    assert which is not None
    name, base = which
    words = given_with(files).arguments or tuple(example)
    ranks, environment = accelerators or 1, {"LOCAL_RANK": "0", "RANK": "0"}
    launch, notes = ProgramCall(Argument(name, name, 1)), list[str]()
    if base is not None:
        words = tuple(one.text for one in base.launch.arguments)
        ranks = processes(base, []) or ranks
        environment |= base.launch.environment
        launch, notes = replace(base.launch, program=launch.program), list(base.notes)
        refuse_parts(base.launch)
    environment = {"WORLD_SIZE": str(ranks), **environment}
    known = files if base is None else base.files
    found = Calls()
    script = Script(known, name, found.take, words, environment)
    followed = script.follow(lambda: bool(found.arguments))
    if found.by_lightning:
        notes.append(lightning.NOTE)
        launch = _by_lightning(script, found, launch)
    launch = _by_ray(found, launch, notes)
    if not found.arguments or _sets_none(found):
        text = (
            "it makes no arguments of a Trainer, as far as it can be followed: give the script "
            "that is started"
        )
        raise Unreadable(text, name)
    notes += _followed(script, name, followed)
    notes += _by_default(script, name, example, told=bool(base or words))
    notes += script.known.notes
    options = Options(script, found, name, notes, given_with(files).values)
    arguments = tuple(
        Argument(f"--{key}={_shown(value)}", name, line) for key, value, line in options.all()
    )
    launch = replace(launch, arguments=arguments)
    if base is None:
        launch = _alone(launch, files[name], options.model, notes)
    return TrainingCall(launch, name, known, notes=tuple(notes)), options.sections()


def _followed(script: Script, name: str, followed: Sequence[str]) -> Iterator[str]:
    """What is said of functions that nothing calls, and of documents that are not here."""
    if followed:
        named = ", ".join(followed[:_MOST_NAMED])
        yield f"{named} of {name} is taken to be what is called"
    for one in script.known.missing:
        yield f"what {one}, which is not among the files, says: {LEFT_OPEN}"


def _by_default(script: Script, name: str, example: Sequence[str], told: bool) -> Iterator[str]:
    """Where the options have their values from, if no call is told them."""
    if example:
        yield f"the options of {name} are those of the example in it: {' '.join(example)}"
    elif not told and script.known.options.are_parsed:
        yield f"no call of {name} is among the files: its options have their defaults"


def _sets_none(found: Calls) -> bool:
    """Whether no trainer is made, of arguments that say nothing of a training."""
    keys = {key for one in found.arguments for key in one.kwargs}
    usual = all(class_of(one) in (*PLAIN, *OF_TRL) for one in found.arguments)
    return usual and bool(keys) and not (found.trainers or any(map(_OF_TRAINING.match, keys)))


def _by_ray(found: Calls, launch: ProgramCall, notes: list[str]) -> ProgramCall:
    """The call with the workers that Ray Train starts, each on an accelerator of its own."""
    scaled = next((one for one in reversed(found.others) if one.short == "ScalingConfig"), None)
    workers = scaled.kwargs.get("num_workers") if scaled is not None else None
    if scaled is None or launch.before or not isinstance(workers, int) or workers < 1:
        return launch
    notes.append(f"Ray Train starts {workers} workers: taken to be on one node")
    words = ("torchrun", "--nnodes=1", f"--nproc_per_node={workers}")
    placed = tuple(Argument(one, launch.program.file, scaled.line) for one in words)
    return replace(launch, before=placed)


def _by_lightning(script: Script, found: Calls, launch: ProgramCall) -> ProgramCall:
    """The call with the processes that Lightning's Trainer starts, and its arguments completed."""
    lightning.follow(script, [*found.others, *found.models])
    said = found.arguments[-1]
    if (batch := lightning.batch_size(found.others)) is not None:
        said.set("per_device_train_batch_size", *batch)
    each, nodes = said.kwargs.pop("devices", None), said.kwargs.pop("num_nodes", 1)
    if each is None or launch.before:
        return launch
    words = ("torchrun", f"--nnodes={nodes}", f"--nproc_per_node={each}")
    return replace(launch, before=tuple(Argument(one, script.file, said.line) for one in words))


def _alone(launch: ProgramCall, text: str, model: Call | None, notes: list[str]) -> ProgramCall:
    """The call, started by nothing, with the accelerators that the script leaves itself."""
    launch = replace(launch, environment=devices_set_by_script(text))
    spread = model.kwargs.get("device_map") if model is not None else None
    if spread not in _SPREADS or (seen := visible(launch)) == 1:
        return launch
    notes.append(f"device_map {spread} spreads one model over all accelerators: no plan does")
    return replace(launch, environment={"CUDA_VISIBLE_DEVICES": "0"}) if seen else launch


def _shown(value: Value) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
