"""Reads Megatron-LM's launches: specs, plan, and the errors that Megatron-LM would raise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import architecture, training_calls, verl_overrides, yaml_files
from planner.frameworks.areal import reader as areal
from planner.frameworks.arguments import Arguments, known_arguments, of_call
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import invalid
from planner.frameworks.launch_files import GivenValues, given_with
from planner.frameworks.megatron import (
    forks,
    nemo1,
    nemo_rl_policy,
    numerics,
    own_arguments,
    printed_arguments,
    slime,
    unplanned,
    verl_actor,
    yaml_config,
)
from planner.frameworks.megatron import ms_swift as swift
from planner.frameworks.megatron.changes import Changes
from planner.frameworks.megatron.printed_arguments import Namespace, TranslatedLaunch
from planner.frameworks.megatron.read_model import model_fields, position_kind
from planner.frameworks.megatron.read_plan import FSDP, plan_and_training, updates_by_layer
from planner.frameworks.megatron_option_readers import LENGTHS, build_llama
from planner.frameworks.nemo_rl import policy as nemo_rl
from planner.frameworks.nemo_rl.config import Config, of_files
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.training_calls import TrainingCall, World

PACKAGE = "planner.frameworks.megatron"
TITLE = "Megatron-LM"
MINDSPEED = re.compile(r"\bmindspeed(?:_llm)?\b", re.IGNORECASE)
# Options that only MindSpeed's parser has.
MINDSPEED_OPTIONS = frozenset(table(PACKAGE, "forks.json")["mindspeed"])
# What a replica is split by; one process splits nothing.
SPLITS = ("tensor-model", "pipeline-model", "context", "expert-model")
_CHECKS = table(PACKAGE, "parser_checks.json")
# Options that the parser knows only to refuse them -> what to give instead.
GONE: dict[str, str] = _CHECKS["gone"]
# Pairs of options that the parser refuses together.
EXCLUSIVE: list[tuple[str, str]] = _CHECKS["exclusive"]
# Options, each with others of which the parser requires at least one.
NEEDS: list[tuple[str, list[str]]] = _CHECKS["needs"]


def trains(launch: ProgramCall) -> bool:
    """Whether a call looks like a training of the Megatron family."""
    return training_calls.training(launch, "--num-layers")


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script calls a Megatron-LM training without DeepSpeed or MindSpeed."""
    if verl_overrides.call(files, verl_overrides.on_megatron) is not None:
        return False
    if nemo_rl.is_on(files, "megatron_cfg"):
        return True
    documents = (
        printed_arguments.is_one, yaml_config.is_one, nemo1.trainer_of, areal.file_of,
        _other_trainer,
    )  # fmt: skip
    if any(known(files) for known in documents):
        return True
    if any(MINDSPEED.search(text) for text in files.values()):
        return False
    try:
        launch = training_calls.training_call(files, trains, TITLE).launch
    except Unreadable:
        return False
    if slime.launches(launch):
        return False
    words = {word.text.partition("=")[0] for word in launch.arguments}
    foreign = launch.launcher == "deepspeed" or words & {"--deepspeed", "--deepspeed_config"}
    dims = words & {"--num-layers", "--micro-batch-size", "--tensor-model-parallel-size"}
    pretrains = launch.program.text.rsplit("/", 1)[-1].startswith("pretrain_")
    pretrains &= "litgpt" not in {word.text for word in launch.before}
    return bool(not foreign and not words & MINDSPEED_OPTIONS and (dims or pretrains))


@dataclass(frozen=True)
class Dialect:
    """A trainer whose launches are read as Megatron-LM's: its name, parser and differences.

    model, plan, training: fields that replace those read as Megatron-LM's.
    hybrids: whether it trains hybrid models.  options: its options beyond those of the package.
    translate: replaces its own options by Megatron-LM's, after changes, the table of those that do
    not depend on others.
    world: the processes that train.
    """

    framework: str
    title: str
    package: str
    model: Callable[[Arguments, dict[str, Any]], dict[str, Any]] = lambda args, fields: {}
    plan: Callable[[Arguments, ParallelPlan], dict[str, Any]] = lambda args, plan: {}
    hybrids: bool = False
    training: Callable[[Arguments], dict[str, Any]] = lambda args: {}
    translate: Callable[[Arguments], None] = lambda args: None
    options: Callable[[], dict[str, Any]] = dict
    world: Callable[[Arguments, World], World] = lambda args, reached: reached
    changes: Changes = field(default_factory=Changes)


# (call, given values, Megatron-LM's options) -> the call translated to these options.
Translator = Callable[[ProgramCall, GivenValues, Mapping[str, Any]], TranslatedLaunch]


UPSTREAM = Dialect(
    "megatron", TITLE, PACKAGE, hybrids=True, options=lambda: forks.OPTIONS,
    translate=forks.translate,
)  # fmt: skip
SLIME = Dialect(
    "megatron",
    "slime",
    PACKAGE,
    hybrids=True,
    options=lambda: slime.OPTIONS,
    translate=slime.translate,
    world=slime.world,
)


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """Reads a launch.

    Raises Unreadable if it is no launch of Megatron-LM or leaves out what a model needs.
    """
    if (found := printed_arguments.of_files(files)) is not None:
        return _read_namespace(found, files, accelerators)
    if (config := yaml_config.of_files(files)) is not None:
        return _read_yaml(config, files, accelerators)
    if (sections := nemo1.trainer_of(files)) is not None:
        return _read_sections(*sections, files, accelerators)
    if (name := areal.file_of(files)) is not None:
        return _read_areal(name, files, accelerators)
    if (run := of_files(files)) is not None:
        nemo_rl.backend(run)
        return _read_policy(run, files, accelerators)
    if (other := _other_trainer(files)) is not None:
        return _read_other_trainer(other, files, accelerators)
    launch = training_calls.training_call(files, trains, TITLE).launch
    return read_as(SLIME if slime.launches(launch) else UPSTREAM, files, accelerators)


def _read_namespace(
    block: Namespace, files: Mapping[str, str], accelerators: int | None
) -> Reading:
    """Reads the arguments that Megatron-LM has printed."""
    known = {**known_arguments(PACKAGE)["flags"], **forks.OPTIONS}
    launch = block.launch(known)
    found = TrainingCall(launch, launch.program.file, files)
    dialect = replace(UPSTREAM, world=lambda args, reached: block.world)
    return _reading(dialect, found, given_with(files), accelerators)


def _read_yaml(
    config: yaml_config.Config, files: Mapping[str, str], accelerators: int | None
) -> Reading:
    """Reads Megatron-LM's settings in YAML."""
    given = given_with(files)
    launch = yaml_config.launch(config)
    args = yaml_config.arguments(config, given)
    found = TrainingCall(launch, launch.program.file, files)
    reached = training_calls.world(launch)
    size = training_calls.accelerators(found, reached, accelerators)
    return reading_of(UPSTREAM, args, launch, reached, size, given)


def _other_trainer(files: Mapping[str, str]) -> tuple[TrainingCall, str, Translator] | None:
    """The call of another trainer on Megatron-Core, the trainer's title, and its translator."""
    if (call := verl_overrides.call(files, verl_overrides.on_megatron)) is not None:
        return call, verl_overrides.TITLE, verl_actor.translated
    if not any(swift.MARK.search(text) for text in files.values()):
        return None
    try:
        call = training_calls.training_call(files, swift.launches, swift.TITLE)
    except Unreadable:
        return None
    return call, swift.TITLE, swift.translated


def _read_policy(run: Config, files: Mapping[str, str], size: int | None) -> Reading:
    """Reads the training of a NeMo-RL run's policy."""
    known = known_arguments(PACKAGE)["flags"]
    translated = nemo_rl_policy.translated(run, given_with(files), known, size)
    found = TrainingCall(translated.launch, run.name, files)
    return _translated(translated, found, "NeMo-RL", size)


def _read_sections(name: str, title: str, files: Mapping[str, str], size: int | None) -> Reading:
    """Reads a YAML of FlagScale or NeMo 1, or a call of NeMo 1 that overrides one."""
    call = nemo1.call_of(files)
    file = nemo1.file_of(call, files) if call is not None else yaml_files.read(files[name], name)
    known = known_arguments(PACKAGE)["flags"]
    translated = nemo1.translated(file, title, given_with(files), known, size, call)
    notes = call.notes if call is not None else ()
    found = TrainingCall(translated.launch, file.name, files, notes=notes)
    return _translated(translated, found, title, size)


def _read_areal(name: str, files: Mapping[str, str], size: int | None) -> Reading:
    """Reads the training of an AReaL run's policy."""
    file = yaml_files.read(files[name], name)
    translated = areal.translated(file, given_with(files), known_arguments(PACKAGE)["flags"])
    found = TrainingCall(translated.launch, name, files)
    return _translated(translated, found, areal.TITLE, size)


def _read_other_trainer(
    other: tuple[TrainingCall, str, Translator], files: Mapping[str, str], size: int | None
) -> Reading:
    """Reads the call of another trainer."""
    found, title, translate = other
    translated = translate(found.launch, given_with(files), known_arguments(PACKAGE)["flags"])
    return _translated(translated, found, title, size)


def _translated(
    translated: TranslatedLaunch, found: TrainingCall, title: str, size: int | None
) -> Reading:
    """Reads a launch that is translated to Megatron-LM's options."""
    dialect = replace(
        UPSTREAM,
        title=title,
        world=lambda args, reached: translated.world,
        training=lambda args: dict(translated.training),
    )
    call = replace(found, launch=translated.launch, notes=(*found.notes, *translated.notes))
    # The translated options include the user's given values.
    reading = _reading(dialect, call, GivenValues(model=translated.model), size)
    unread = (*reading.unread, *translated.left)
    return reading.model_copy(update={"unread": unread, "written": False})


def read_as(dialect: Dialect, files: Mapping[str, str], accelerators: int | None) -> Reading:
    """Reads a launch script of a dialect.

    Raises Unreadable as `read` does.
    """
    found = training_calls.training_call(files, trains, dialect.title)
    training_calls.decoder_only(found.launch, hybrids=dialect.hybrids)
    return _reading(dialect, found, given_with(files), accelerators)


def _reading(
    dialect: Dialect, call: TrainingCall, given: GivenValues, accelerators: int | None
) -> Reading:
    """Reads a call of a training program."""
    launch = call.launch
    args = of_call(dialect.title, dialect.package, launch, given, dialect.options())
    own_arguments.add_defaults(args, call.files)
    dialect.changes.translate(args)
    dialect.translate(args)
    build_llama(args)
    for note in call.notes:
        args.assume(note)
    reached = dialect.world(args, training_calls.world(launch))
    unknown = training_calls.alone(launch) and reached.accelerators is None
    if unknown and all(args.integer(f"--{one}-parallel-size", 1) == 1 for one in SPLITS):
        reached = World(1, 1, 1)
    size = training_calls.accelerators(call, reached, accelerators, args.assumed)
    try:
        return reading_of(dialect, args, launch, reached, size, given)
    except Unreadable as error:
        raise training_calls.with_missing_file_hints(error, call, bool(given.positional)) from None


def reading_of(
    dialect: Dialect,
    args: Arguments,
    launch: ProgramCall,
    reached: World,
    size: int,
    given: GivenValues,
) -> Reading:
    """Reads the parsed arguments of a launch on `size` accelerators.

    Raises Unreadable if they leave out what a model needs.
    """
    try:
        model = _model(dialect, args, launch, given)
        args.lenient = True
        _refuse_conflicts(args, model)
        unplanned.note(args)
        _check_environment(args, launch)
        plan, training = plan_and_training(args, model, size)
        plan = ParallelPlan(**{**plan.model_dump(), **dialect.plan(args, plan)})
        if own := dialect.training(args):
            training = TrainingSpec(**{**training.model_dump(), **own})
    except ValidationError as error:
        raise invalid(error, launch.program.file, launch.program.line) from None
    architecture.refuse(args.foreign(), args.unread(), named=given.model is not None)
    args.upstream()
    before = training_calls.options(launch.before)
    return args.reading(dialect.framework, model, training, plan, reached, before)


def _model(dialect: Dialect, args: Arguments, launch: ProgramCall, given: GivenValues) -> ModelSpec:
    """The model that the user gives, or else that of the options."""
    if given.model is not None:
        args.assume(f"the model is {given.model.name}: options of the model are ignored")
        if not args.has(*LENGTHS):
            program = launch.program
            raise program.unreadable(f"{LENGTHS[0]} is missing: --set {LENGTHS[0]}=...")
        return given.model
    if dialect is SLIME:
        slime.require_training(args, launch)
        slime.require_model(args, launch)
    fields = model_fields(args, launch)
    stated = numerics.read(args, fields)
    return ModelSpec(**{**fields, **dialect.model(args, fields), "numerics": stated})


def _refuse_conflicts(args: Arguments, model: ModelSpec) -> None:
    """Refuses removed options, exclusive pairs, and options without those that they need."""
    for option, instead in GONE.items():
        if option in args.given and not (
            option == "--no-position-embedding" and position_kind(args) == "rope"
        ):
            args.refuse(f"{option} is no longer valid: give {instead}", option)
    for one, other in EXCLUSIVE:
        if one in args.given and other in args.given and args.given[other].value != "0":
            args.refuse(f"{one} and {other} exclude each other", one)
    for option, others in NEEDS:
        if option in args.given and args.given.keys().isdisjoint(others):
            named = "--num-experts" in others and model.moe is not None
            if not named and not _stands_alone(args, option):
                args.refuse(f"{option} needs {' or '.join(others)}", option)


def _stands_alone(args: Arguments, option: str) -> bool:
    """Whether the other options make one valid without those that it needs."""
    if option == "--expert-model-parallel-size":
        return args.integer(option, 1) == 1
    return option == "--overlap-param-gather" and updates_by_layer(args)


def _check_environment(args: Arguments, launch: ProgramCall) -> None:
    """Checks CUDA_DEVICE_MAX_CONNECTIONS, which the parser reads from the environment."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = launch.environment.get(name)
    tp, cp = (
        args.integer("--tensor-model-parallel-size", 1),
        args.integer("--context-parallel-size", 1),
    )
    sharding = (*FSDP, "--use-torch-fsdp2")
    if args.has(*sharding):
        if value == "1":
            args.refuse(f"Megatron-FSDP refuses {name}=1", *sharding)
    elif args.has("--overlap-moe-expert-parallel-comm"):
        if value == "1":
            args.assume(f"{name}=1 is taken to hide the exchange of tokens as 32 would")
    elif (tp > 1 or cp > 1) and value != "1":
        args.assume(
            f"{name} is assumed to be 1 (the script "
            f"{f'sets it to {value}' if value else 'does not set it'}): before Blackwell "
            f"{TITLE} requires 1 for tp or cp"
        )
