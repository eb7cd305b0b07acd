"""Reads torchtitan launches: the registry module, and the overrides of the command line.

The module is Python and is never imported: static_evaluation.py evaluates it, read_model.py reads
the model.  toml_config.py reads the TOML of versions up to 0.2.2.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from cost_models.spec import ModelSpec
from planner.frameworks import training_calls
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.given_values import invalid
from planner.frameworks.launch_files import CONFIG, GivenValues, given_with
from planner.frameworks.python.static_evaluation import Program
from planner.frameworks.python.static_values import Call, Value
from planner.frameworks.read_results import Reading, Setting, Unreadable
from planner.frameworks.torchtitan import registry, toml_config
from planner.frameworks.torchtitan.read_model import Architecture, Tree
from planner.frameworks.torchtitan.read_plan import plan_and_training
from planner.frameworks.torchtitan.trainer_settings import (
    TrainerSettings,
    apply_overrides,
    gather_settings,
    source_of,
    value_shown,
)

TITLE = "torchtitan"
PROGRAM = "torchtitan.train"


def _trains(launch: ProgramCall) -> bool:
    name = launch.program.text
    words = {word.text.partition("=")[0] for word in launch.arguments}
    return (
        name == PROGRAM or name.endswith("torchtitan/train.py") or toml_config.FILE_OPTION in words
    )


def _modules(files: Mapping[str, str]) -> list[str]:
    """Python files that seem to import torchtitan."""
    return [
        name
        for name, text in files.items()
        if name.endswith(".py") and "torchtitan" in text and "import" in text
    ]


# What forks state of a model that torchtitan itself takes from the tokenizer.
_OF_FORKS = ("vocab_size",)


def recognises(files: Mapping[str, str]) -> bool:
    """Whether a script runs torchtitan.train, or a Python file builds on its configs."""
    if training_calls.is_called(files, _trains):
        return True
    alone = not training_calls.scripts(files)
    return alone and bool(_modules(files) or toml_config.is_one(files))


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of the launch.

    Raises Unreadable if there is no registry module or it lacks a field of the model.
    """
    words: tuple[Argument, ...] = ()
    nodes = per_node = None
    size = accelerators
    notes: tuple[str, ...] = ()
    launcher: tuple[Setting, ...] = ()
    if training_calls.scripts(files):
        found = training_calls.training_call(files, _trains, TITLE)
        reached = training_calls.world(found.launch)
        nodes, per_node, words = reached.nodes, reached.per_node, found.launch.arguments
        size = training_calls.accelerators(found, reached, accelerators)
        notes, launcher = found.notes, training_calls.options(found.launch.before)
    given = given_with(files)
    old = toml_config.is_one(files) or toml_config.names_one(words)
    trainer = (
        toml_config.trainer_settings(files, words, given.model is not None)
        if old
        else _of_module(files, words, given)
    )
    for note in notes:
        trainer.assume(note)
    if size is None:
        raise Unreadable(
            "the files do not say how many accelerators run it: give a cluster", trainer.file
        )
    try:
        architecture = _architecture(trainer, given.model)
        model = given.model or ModelSpec(**{**architecture.model, **_of_fork(trainer, old)})
        plan, training = plan_and_training(trainer, architecture, model, size)
    except ValidationError as error:
        raise invalid(error, trainer.file) from None
    return Reading(
        framework="torchtitan",
        model=model,
        training=training,
        plan=plan,
        nodes=nodes,
        accelerators_per_node=per_node,
        settings=(*launcher, *trainer.settings),
        unknown=tuple(trainer.unknown),
        unread=tuple(
            one
            for one in trainer.settings
            if one.name not in trainer.asked and one not in trainer.unknown
        ),
        assumed=tuple(trainer.assumed),
        refusals=tuple(trainer.refusals),
        written=not old,
    )


def _of_fork(trainer: TrainerSettings, old: bool) -> dict[str, Any]:
    """Fields of the model that forks set in a TOML, whose names leave no doubt."""
    found = {
        name: one
        for one in (trainer.unknown if old else ())
        if (name := one.name.rpartition(".")[2]) in _OF_FORKS and str(one.value).isdigit()
    }
    for name, one in found.items():
        trainer.assume(f"{one.name} {one.value}: a fork's own, read as the model's {name}")
        trainer.unknown.remove(one)
        trainer.asked.add(one.name)
    return {name: int(str(one.value)) for name, one in found.items()}


def _of_module(
    files: Mapping[str, str], words: Sequence[Argument], given: GivenValues
) -> TrainerSettings:
    """The settings of the registry module and of the command line."""
    module, function, rest = _named(words)
    trainer = _config(files, module, function or given.values.get(CONFIG, ""))
    gather_settings(trainer)
    apply_overrides(trainer, rest)
    return trainer


def _named(words: Sequence[Argument]) -> tuple[str, str, list[Argument]]:
    """(--module, --config, the other words)."""
    given = {"--module": "", "--config": ""}
    rest: list[Argument] = []
    wanted = ""
    for word in words:
        name, equals, value = word.text.partition("=")
        if wanted:
            given[wanted], wanted = word.text, ""
        elif name in given and equals:
            given[name] = value
        elif word.text in given:
            wanted = word.text
        else:
            rest.append(word)
    return given["--module"], given["--config"], rest


def _config(files: Mapping[str, str], module: str, function: str) -> TrainerSettings:
    """The Trainer.Config that the named function returns."""
    base, place = module.rsplit(".", 1)[-1], module.replace(".", "/")
    candidates = (f"{place}.py", f"{base}.py", f"{place}/config_registry.py")
    names = [name for name in candidates if name in files] if module else _modules(files)
    if not names:
        return _stored(files, module, function)
    file = names[0]
    program = Program(files[file], file, registry.library, registry.missing)
    function = function or _only_config(program, file)
    made = program.call(function)
    if not isinstance(made, Call) or made.short != "Trainer.Config":
        line = program.functions[function].lineno
        text = f"{function}() returns {source_of(made)}, not a Trainer.Config"
        raise Unreadable(text, file, line)
    trainer = TrainerSettings(made, file, function)
    for note in program.notes:
        trainer.assume(note)
    return trainer


def _stored(files: Mapping[str, str], module: str, function: str) -> TrainerSettings:
    """A config of torchtitan's own registry.  Raises Unreadable if it has none of that name."""
    package = module.removeprefix("torchtitan.models.").removesuffix(".config_registry")
    stored = registry.document()["configs"].get(package)
    if stored is None:
        shown = ", ".join(files) or "none"
        raise Unreadable(
            f"no file has the registry module {module or 'of a Trainer.Config'} (files: {shown})"
        )
    if function not in stored:
        known = ", ".join(stored)
        raise Unreadable(f"module {module} has no config {function!r} (it has {known})")
    return TrainerSettings(registry.config(package, stored[function], 0), f"{package}.{function}")


def _only_config(program: Program, file: str) -> str:
    """The function that must be the config where the launch names none."""
    chosen = [name for name in program.functions if name == "config"] or _returning(program)
    if len(chosen) != 1:
        known = ", ".join(chosen) or "none"
        raise Unreadable(f"which function is the config? ({known}); give --config", file)
    return chosen[0]


def _returning(program: Program) -> list[str]:
    """Functions without arguments that are annotated to return a Trainer.Config."""
    return [
        name
        for name, node in program.functions.items()
        if not node.args.args
        and node.returns is not None
        and ast.unparse(node.returns).endswith("Trainer.Config")
    ]


def _architecture(trainer: TrainerSettings, model: ModelSpec | None) -> Architecture:
    """The architecture in the settings; with a given model, only the parts that the plan needs."""
    tree = Tree(trainer.file)
    trainer.asked |= {"model_spec", "activation_checkpoint", "loss", "optimizer"}
    spec = trainer.config.kwargs.get("model_spec")
    if model is not None:
        return Architecture("", {}, **_backends(tree, spec))
    if isinstance(spec, Call) and spec.short == "ModelSpec":
        found = tree.architecture(spec.kwargs.get("model"))
    elif isinstance(spec, Call) and spec.short == "model_registry":
        found = _flavor(tree, spec, trainer.function)
    else:
        shown = value_shown(spec)
        raise Unreadable(
            f"model_spec is `{shown}`, which the files do not say: only ModelSpec(...) or "
            "model_registry(...) can be read",
            trainer.file,
            trainer.config.lines.get("model_spec", trainer.config.line),
        )
    for note in found.assumed:
        trainer.assume(note)
    return found


def _flavor(tree: Tree, call: Call, function: str) -> Architecture:
    """One of torchtitan's own flavors, from the stored table.

    function: the config function; in a module with a relative import of `model_registry`, its
    name identifies the package.
    """
    models, configs = registry.document()["models"], registry.document()["configs"]
    package = next((part for part in call.name.split(".") if part in models), "")
    beside = call.name.startswith("..") and not package
    if beside:
        package = next((one for one, known in configs.items() if function in known), "")
    if not package:
        raise tree.wrong(f"{call.name} is not in torchtitan.models: {', '.join(models)}", call.line)
    flavor = call.args[0] if call.args else call.kwargs.get("flavor")
    row = models[package]
    if flavor not in row["flavors"]:
        known = ", ".join(row["flavors"])
        raise tree.wrong(
            f"{package} has no flavor {value_shown(flavor)} (it has {known})", call.line
        )
    model = dict(row["flavors"][flavor])
    model["mtp_num_layers"] = tree.number(call, "num_mtp_layers", 0)
    named = {**model, "name": f"{package} {flavor}"}
    note = f"model_registry is taken from torchtitan's {package}, which also has a {function}"
    notes = [note] if beside else []
    return Architecture(package, named, **_backends(tree, call, row), assumed=notes)


def _backends(tree: Tree, call: Value, row: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Attention kernel, expert dispatcher and converters of a call of a model registry."""
    if not isinstance(call, Call):
        return {}
    converters = call.kwargs.get("converters") or []
    usual = row.get("moe_comm_backend")
    return {
        "attention": str(tree.get(call, "attn_backend", row.get("attn_backend", "flex"))),
        # The default of the functions that build the flavors.
        "dispatcher": str(tree.get(call, "moe_comm_backend", usual) or "standard"),
        "converters": [one for one in converters if isinstance(one, Call)],
    }
