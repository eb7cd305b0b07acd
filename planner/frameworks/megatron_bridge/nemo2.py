"""Reads NeMo 2's launches of public recipes, with names of its successor Megatron-Bridge.

A launch takes a recipe of nemo.collections.llm.recipes by its name (`nemo llm pretrain --factory
NAME`), by a performance script, or in a Python file that changes it, which is evaluated statically.
nemo2.json has the recipes' values (`python -m tests.oracles.nemo_recipes CHECKOUT COMMIT`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any

from cost_models import package_files
from planner.frameworks import training_calls, yaml_files
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import SET, GivenValues
from planner.frameworks.megatron_bridge import nemo2_performance as performance
from planner.frameworks.megatron_bridge.nemo2_names import DEFAULTS, GROUPS, KEYS, PRECISIONS, WORDS
from planner.frameworks.megatron_bridge.nemo2_script import (
    FUNCTIONS,
    OVERLAP,
    TITLE,
    class_of,
    last_made,
    leaves,
)
from planner.frameworks.megatron_bridge.recipes import Recipe
from planner.frameworks.python.static_values import Call, Unknown
from planner.frameworks.read_results import StatedValue, Unreadable

TASKS = ("pretrain", "finetune")
_STRATEGY = "MegatronStrategy"
CHOICES = ("performance_mode", "peft_scheme")
_FACTORY = re.compile(r"([\w.-]+?)(?:_recipe)?(?:\((.*)\))?", re.DOTALL)


@dataclass
class Taken:
    """A recipe with the launch's changes, by the names of Bridge's container.

    said_as: Bridge's name of a value -> the launch's name.
    """

    recipe: Recipe
    values: dict[str, StatedValue]
    found: training_calls.TrainingCall
    notes: list[str]
    said_as: dict[str, str] = field(default_factory=dict)

    def world(self) -> training_calls.World:
        """The accelerators that the trainer asks for."""
        counts = []
        for key in ("nodes", "accelerators_per_node"):
            one = self.values.pop(key)
            if not isinstance(one.value, int) or isinstance(one.value, bool) or one.value < 1:
                text = f"{key} must be a whole number from 1, got {str(one.value)[:60]!r}"
                raise Unreadable(text, one.file, one.line)
            counts.append(one.value)
        nodes, each = counts
        return training_calls.World(nodes, each, nodes * each)


def table() -> dict[str, Any]:
    """nemo2.json."""
    return package_files.table("planner.frameworks.megatron_bridge", "nemo2.json")


def is_one(files: Mapping[str, str]) -> bool:
    """Whether the files start or take a recipe of NeMo 2."""
    return any(found is not None for found in (_file(files), _call(files), _performance(files)))


def _file(files: Mapping[str, str]) -> str | None:
    named = (
        name
        for name, text in files.items()
        if name.endswith(".py") and "nemo" in text
        if any(f"{one}(" in text for one in FUNCTIONS) or _STRATEGY in text
        if re.search(r"^\s*(from|import) nemo[.\s]", text, re.MULTILINE)
    )
    return next(named, None)


def _call(files: Mapping[str, str]) -> training_calls.TrainingCall | None:
    return training_calls.training_call_if_any(files, ["--factory"], _trains, TITLE)


def _performance(files: Mapping[str, str]) -> training_calls.TrainingCall | None:
    """The call of a performance script."""
    hints = ["performance.llm.", "performance/llm/"]
    return training_calls.training_call_if_any(files, hints, _is_performance_script, TITLE)


def _is_performance_script(launch: ProgramCall) -> bool:
    said = any(re.match(r"-(g|-gpu)(=|$)", word.text) for word in launch.arguments)
    return said and performance.script_of(launch.program.text) is not None


def _trains(launch: ProgramCall) -> bool:
    before = [word.text.rsplit("/", 1)[-1] for word in launch.before[-2:]]
    return before == ["nemo", "llm"] and launch.program.text in TASKS


def taken(files: Mapping[str, str], given: GivenValues) -> Taken:
    """The recipe with the launch's changes.  Raises Unreadable."""
    file = _file(files)
    found = _call(files)
    if found is not None:
        made = _of_command(found)
    elif (found := _performance(files)) is not None:
        made = _of_script(found, given)
    else:
        assert file is not None
        made = _of_python(files, file)
    for key, text in given.values.items():
        if key in WORDS:
            made.values[WORDS[key]] = StatedValue(_plain_text(text, SET), SET, 0)
        elif "." in key and not key.startswith("-"):
            _set(made, key, _plain_text(text, SET), SET, 0)
    for name, one in made.values.items():
        if isinstance(one.value, Unknown):
            key = made.said_as.get(name, name)
            text = f"{key} is `{one.value.source[:80]}`, which the file does not say"
            raise Unreadable(f"{text}: --set {key}=...", one.file, one.value.line)
    return made


def _find(name: str, function: str, words: Mapping[str, Any], file: str, line: int) -> Recipe:
    """The variant of a module's recipe that its arguments choose.  Raises Unreadable."""
    recipes = table()["recipes"]
    known = [key for key in recipes if key.startswith(f"{name}.{function}(")]
    if not known:
        every = sorted({key.partition(".")[0] for key in recipes if f".{function}(" in key})
        near = get_close_matches(name[:120], every, 3, 0.5)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        text = f"{name[:100]} has no {function} among {TITLE}'s public recipes"
        raise Unreadable(f"{text} ({table()['commit']}){hint}", file, line)
    chosen = {"performance_mode": "False", "peft_scheme": "lora"}
    for key in CHOICES:
        if key in words:
            chosen[key] = str(words[key]).lower() if key == "peft_scheme" else str(words[key])
    for key in known:
        said = dict(re.findall(r"(\w+)=(\w+)", key.partition("(")[2]))
        if all(chosen[one] == value for one, value in said.items()):
            path = f"nemo/collections/llm/recipes/{name}.py"
            return Recipe(key, path, 0, dict(recipes[key]))
    text = f"{name}.{function}: {', '.join(f'{k}={v}' for k, v in chosen.items())} is not read"
    raise Unreadable(text, file, line)


def _with_arguments(
    name: str,
    function: str,
    words: Mapping[str, Any],
    found: training_calls.TrainingCall,
    file: str,
    line: int,
) -> Taken:
    """A recipe with the arguments that it is called with."""
    recipe = _find(name, function, words, file, line)
    values = {key: StatedValue(one, file, line) for key, one in (DEFAULTS | recipe.values).items()}
    source = f"{table()['repository']} {table()['commit']}, {recipe.path}"
    made = Taken(recipe, values, found, [f"the values of {recipe.name} are those of {source}"])
    for key, value in words.items():
        if key in WORDS and value is not None:
            made.values[WORDS[key]] = StatedValue(_plain(value), file, line)
            made.said_as[WORDS[key]] = key
    return made


def _set(made: Taken, key: str, value: Any, file: str, line: int) -> None:
    """Sets the value that a launch calls `key`, unless it does not affect a step."""
    if key == "trainer.strategy.fsdp":
        sharded = value in ("megatron", "pytorch")
        made.values["ddp.use_megatron_fsdp"] = StatedValue(sharded, file, line)
        return
    name = KEYS.get(key)
    if name is None:
        group = next((one for one in GROUPS if key.startswith(one)), None)
        if group is None or "." in key.removeprefix(group):
            return
        name = GROUPS[group] + key.removeprefix(group)
    known = _plain(value)
    if name == "mixed_precision":
        known = PRECISIONS.get(str(known).removesuffix("()"), known)
        for old in [one for one in made.values if one.startswith("mixed_precision.")]:
            del made.values[old]
    made.values[name] = StatedValue(known, file, line)
    made.said_as[name] = key


def _plain(value: Any) -> Any:
    if isinstance(value, Call):
        return value.short
    return list(value) if isinstance(value, tuple) else value


# The command.


def _of_command(found: training_calls.TrainingCall) -> Taken:
    """The recipe of `nemo llm pretrain --factory "NAME(num_nodes=2)" trainer.strategy...=...`."""
    launch, name, line = found.launch, "", found.launch.program.line
    file = launch.program.file
    overrides: list[tuple[str, Argument]] = []
    words = iter(launch.arguments)
    for word in words:
        option, equals, value = word.text.partition("=")
        if option == "--factory":
            name = value or getattr(next(words, None), "text", "")
        elif equals and not option.startswith("-"):
            if not word.known and (option in KEYS or option.startswith(tuple(GROUPS))):
                raise word.unreadable(f"{word.text[:100]} is not in the files: --set {option}=...")
            overrides.append((option, Argument(value, word.file, word.line)))
    match = _FACTORY.fullmatch(name.strip("\"' "))
    if match is None:
        raise Unreadable(f"--factory {name[:80]!r} names no recipe", file, line)
    function = f"{launch.program.text}_recipe"
    made = _with_arguments(
        match[1], function, _arguments(match[2] or "", file, line), found, file, line
    )
    for key, one in overrides:
        _set(made, key, _plain_text(one.text, one.file), one.file, one.line)
    return made


def _arguments(text: str, file: str, line: int) -> dict[str, Any]:
    """The arguments of `NAME(num_nodes=2, name='x')`."""
    try:
        node = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(node, ast.Call)
        return {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg}
    except (SyntaxError, ValueError, AssertionError):
        raise Unreadable(f"({text[:80]}) are not arguments of a recipe", file, line) from None


def _plain_text(text: str, file: str) -> Any:
    return yaml_files.read(f"value: {text}", file).values["value"]


def _of_script(found: training_calls.TrainingCall, given: GivenValues) -> Taken:
    """The recipe of a performance script with its options."""
    launch = found.launch
    name = performance.script_of(launch.program.text)
    assert name is not None
    said = performance.options(launch.arguments, given.values, launch.program)
    key, resolved, notes = performance.resolved(name, said, table()["recipes"])
    recipe = Recipe(key, f"scripts/performance/llm/{name}.py", 0, resolved)
    place = launch.program
    values = {one: StatedValue(value, place.file, place.line) for one, value in resolved.items()}
    usual = {one: StatedValue(value, place.file, place.line) for one, value in DEFAULTS.items()}
    source = f"{table()['repository']} {table()['commit']}"
    notes.append(f"{name} takes {key} and changes it as in {source}")
    return Taken(recipe, usual | values, found, notes)


# A Python file.


def _of_python(files: Mapping[str, str], file: str) -> Taken:
    """The last recipe that a file takes, with the file's changes.  Raises Unreadable."""
    recipe = last_made(files[file], file)
    call: Call = recipe.args[0]
    program_word = Argument(file, file, call.line)
    found = training_calls.TrainingCall(ProgramCall(program_word), file, files)
    *_, module, function_name = call.name.split(".")
    if call.short in FUNCTIONS:
        taken = _with_arguments(module, function_name, call.kwargs, found, file, call.line)
    else:
        taken = _whole(call, found, file)
    for key, value, line in leaves(recipe, ""):
        _replace(taken, key, value, file, line)
    return taken


# What a trainer has where the script does not say it (lightning/pytorch/strategies).
_USUAL = {"nodes": 1, "accelerators_per_node": 1, "optimizer.optimizer": "adam",
          "optimizer.use_distributed_optimizer": True, "train.micro_batch_size": 4,
          "train.global_batch_size": 8, "mixed_precision": "MixedPrecisionConfig",
          "model.seq_length": 2048}  # fmt: skip


def _whole(call: Call, found: training_calls.TrainingCall, file: str) -> Taken:
    """What a script hands to llm.train, on the usual values of the classes that it makes."""
    name = f"{PurePosixPath(file).stem}.{class_of(call).rsplit('.', 1)[-1]}"
    recipe = Recipe(f"{name}(pretrain_)", file, 0, {})
    usual = DEFAULTS | _USUAL
    values = {key: StatedValue(one, file, call.line) for key, one in usual.items()}
    notes = [f"what {file} leaves out is as in {TITLE}"]
    return Taken(recipe, values, found, notes)


def _replace(made: Taken, key: str, value: Any, file: str, line: int) -> None:
    """Sets a value, or replaces a whole part, whose old values are then removed."""
    if not isinstance(value, Call):
        if not isinstance(value, Unknown) or key in KEYS or key.startswith(tuple(GROUPS)):
            _set(made, key, value, file, line)
    elif key == f"trainer.callbacks.{OVERLAP}":
        _replace_overlap(made, value, file, line)
    elif key == "model":
        inner = value.kwargs.get("config") or (value.args[1:] or value.args[:1] or (None,))[0]
        if isinstance(inner, Call):
            _replace(made, "model.config", inner, file, line)
    elif key in ("trainer", "optim"):
        for name, one in value.kwargs.items():
            _replace_in(made, f"{key}.{name}", one, file, value.lines.get(name, line))
    elif key == "data" or f"{key}." in GROUPS:
        _replace_part(made, key, value, file, line)


def _replace_overlap(made: Taken, value: Call, file: str, line: int) -> None:
    made.values["comm_overlap"] = StatedValue("CommOverlapConfig", file, line)
    for name, one in value.kwargs.items():
        if isinstance(one, bool):
            made.values[f"comm_overlap.{name}"] = StatedValue(one, file, line)


def _replace_in(made: Taken, key: str, value: Any, file: str, line: int) -> None:
    """Sets what a trainer or an optimizer is made with; of its callbacks the one for overlap."""
    if key != "trainer.callbacks" or not isinstance(value, list):
        _replace(made, key, value, file, line)
        return
    for one in value:
        if isinstance(one, Call) and class_of(one) == OVERLAP:
            _replace(made, f"{key}.{OVERLAP}", one, file, one.line)


def _replace_part(made: Taken, key: str, part: Call, file: str, line: int) -> None:
    """Takes over a part with all that stands in it."""
    if key == "trainer.strategy":
        for name in [one for one in made.values if _of_strategy(one)]:
            del made.values[name]
    if key in KEYS:
        _set(made, key, class_of(part), file, line)
    for name, one in part.kwargs.items():
        at = part.lines.get(name, line)
        if isinstance(one, Call):
            _replace(made, f"{key}.{name}", one, file, at)
        elif key != "data" or f"data.{name}" in KEYS:
            _set(made, f"{key}.{name}", one, file, at)


def _of_strategy(key: str) -> bool:
    """Whether a value belongs to the strategy, so that a new strategy removes it."""
    return key.startswith("ddp.") or bool(
        re.fullmatch(r"model\.(\w+_parallel_size|sequence_parallel|pipeline_\w+)", key)
    )
