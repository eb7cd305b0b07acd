"""Reads Primus's configs: their presets and overrides as Megatron-LM's arguments."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.stage_layers import forward_layers
from planner.frameworks import architecture, training_calls
from planner.frameworks.arguments import Arguments, known_arguments
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import SET, given_with
from planner.frameworks.megatron import attribute_names
from planner.frameworks.megatron.reader import Dialect, reading_of
from planner.frameworks.primus.experiment import YAML, Experiment, experiment
from planner.frameworks.primus.model_by_name import adapted
from planner.frameworks.primus.names import MODEL, OWN, PRESETS, SHAPING
from planner.frameworks.primus.settings import ALGORITHMS
from planner.frameworks.read_results import Reading, Refusal, Setting, StatedValue, Unreadable

TITLE = "Primus"
PROGRAM = "primus/cli/main.py"
SCHEDULES = {name: schedule for schedule, name in ALGORITHMS.items()}
FP4 = "--fp4-recipe"  # its core/fp4_utils.py also has mxfp4, for MI355X
# Primus's own keys that a plan represents.
PLANNED = frozenset(
    {"enable_primus_turbo", "patch_primus_pipeline", "pp_algorithm", "use_turbo_deepep"}
    | {"recompute_layer_ids"}
)


def _trains(launch: ProgramCall) -> bool:
    return launch.program.text.endswith(PROGRAM)


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some YAML file has modules with a framework each."""
    return any(
        re.search(r"^modules:[ \t]*$", text, re.MULTILINE)
        and re.search(r"^[ \t]+framework:", text, re.MULTILINE)
        for name, text in files.items()
        if name.endswith(YAML)
    )


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """Reads a config, and the script that starts it if there is one.

    Raises Unreadable if it is not for Megatron-LM or leaves out what a model needs.
    """
    given = given_with(files)
    told = experiment(files, given)
    launch, size, reached = _call_and_world(files, told, accelerators)
    values = told.preset(str(told.body.get("config"))) | _model_preset(told) | told.overrides
    if given.model is None and not told.model_at_hand:
        given = replace(given, model=adapted(told))
    own = {key: one for key, one in values.items() if key in OWN}
    if given.model is None:
        shaping = [one.setting(key) for key, one in own.items() if key in SHAPING and one.value]
        architecture.refuse(shaping)

    def layers(args: Arguments) -> int:
        return given.model.num_layers if given.model else args.positive("--num-layers")

    ids = own.get("recompute_layer_ids")
    chosen = _layer_ids(ids) if ids is not None and ids.value is not None else ()
    if chosen:  # Megatron-LM's parser does not know layer ids and would ask for a method
        values = {key: one for key, one in values.items() if key != "recompute_granularity"}
    dialect = Dialect(
        "primus", TITLE, attribute_names.PACKAGE,
        plan=lambda args, plan: _plan(own, plan) | _some_layers(layers(args), plan, chosen),
    )  # fmt: skip
    args = _arguments(told, values)
    return _by_key(reading_of(dialect, args, launch, reached, size, given), own)


def _call_and_world(
    files: Mapping[str, str], experiment: Experiment, accelerators: int | None
) -> tuple[ProgramCall, int, training_calls.World]:
    """The call, its number of accelerators and its nodes; without a script, those asked for."""
    name = experiment.config.name
    if not any(PROGRAM in text for text in files.values()):
        if accelerators is None:
            raise Unreadable("a config alone starts no processes: give a cluster", name)
        nowhere = ProgramCall(program=Argument(PROGRAM, name, 1))
        return nowhere, accelerators, training_calls.World(None, None, None)
    found = training_calls.training_call(files, _trains, TITLE)
    reached = training_calls.world(found.launch)
    return found.launch, training_calls.accelerators(found, reached, accelerators), reached


def _model_preset(experiment: Experiment) -> dict[str, StatedValue]:
    """The values of the model's preset; if it is not given, those that all such presets set."""
    if experiment.model_at_hand:
        return experiment.preset(experiment.model)
    everywhere = {"sequence_parallel": PRESETS[MODEL]["sequence_parallel"]}
    return {key: StatedValue(value, experiment.config.name, 0) for key, value in everywhere.items()}


def _arguments(experiment: Experiment, values: Mapping[str, StatedValue]) -> Arguments:
    """The options of all attributes that are set, with their lines."""
    document = known_arguments(attribute_names.PACKAGE)
    four_bits = document["flags"][FP4]
    known = {FP4: {**four_bits, "choices": [*four_bits["choices"], "mxfp4"]}}
    flags = document["flags"] | known
    args = Arguments("Megatron-LM", flags, (max(document["versions"]),))
    for note in experiment.config.notes():
        args.assume(note)
    for key, one in values.items():
        if key in attribute_names.options():
            option = attribute_names.options()[key]
            attribute_names.take(args, option, one.value, key, one.file, one.line)
        elif key not in OWN and not _is_off(one.value):
            said = one.setting(key)
            args.settings.append(said)
            args.unknown.append(said)
    return args


def _is_off(value: Any) -> bool:
    """Whether a value only switches something off."""
    return not value or (isinstance(value, dict) and value.get("enabled") is False)


def _plan(values: Mapping[str, StatedValue], plan: ParallelPlan) -> dict[str, Any]:
    """The plan fields that Primus's own keys set."""
    on = {key: one.value for key, one in values.items()}
    said: dict[str, Any] = {}
    if on.get("patch_primus_pipeline") and on.get("pp_algorithm") in SCHEDULES:
        said["schedule"] = SCHEDULES[on["pp_algorithm"]]
    if on.get("enable_primus_turbo") and on.get("use_turbo_deepep"):
        said["moe_dispatcher"] = "deepep"
    return said


def _layer_ids(value: StatedValue) -> tuple[int, ...]:
    """Layer numbers; those beyond the model's layers are prediction layers."""
    words = value.value if isinstance(value.value, list) else str(value.value).split(",")
    try:
        return tuple(sorted({int(word) for word in words if str(word).strip()}))
    except (TypeError, ValueError):
        text = f"recompute_layer_ids must be whole numbers, got {str(value.value)[:60]!r}"
        raise Unreadable(text, value.file, value.line) from None


def _some_layers(num_layers: int, plan: ParallelPlan, chosen: Sequence[int]) -> dict[str, Any]:
    """The fields for full recompute of these layers, counted per virtual stage."""
    ends = list(accumulate(forward_layers(num_layers, plan)))
    counts = [0] * len(ends)
    for layer in chosen:
        if 0 <= layer < ends[-1]:
            counts[bisect_right(ends, layer)] += 1
    if not any(counts):
        return {}
    return {
        "recompute": "full",
        "recompute_method": "block",
        "recompute_modules": (),
        "recompute_num_layers": max(counts),
        "recompute_layers": tuple(counts),
    }


def _by_key(reading: Reading, values: Mapping[str, StatedValue]) -> Reading:
    """The reading with names of keys in place of options, and with Primus's own keys."""

    def key(setting: Setting) -> Setting:
        if not setting.name.startswith("--") or not setting.file.endswith((*YAML, SET)):
            return setting
        off = attribute_names.turns_off(setting.name)
        value = setting.value if setting.value is not None else ("false" if off else "true")
        return setting.model_copy(
            update={"name": attribute_names.attribute(setting.name), "value": value}
        )

    def refused(refusal: Refusal) -> Refusal:
        return refusal.model_copy(
            update={"setting": key(refusal.setting) if refusal.setting else None}
        )

    stated = {name: one for name, one in values.items() if one.line}
    left = {name: one for name, one in stated.items() if name not in PLANNED and one.value}
    unread = (key(one) for one in reading.unread if one.line or one.file == SET)
    return reading.model_copy(
        update={
            "settings": (
                *map(key, reading.settings),
                *(one.setting(name) for name, one in stated.items()),
            ),
            "unread": (*unread, *(one.setting(name) for name, one in left.items())),
            "refusals": tuple(map(refused, reading.refusals)),
        }
    )
