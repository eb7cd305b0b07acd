"""Reads Megatron-Bridge's launches: a public recipe by its name, and the launch's overrides.

The recipe's values come from the stored table, and are translated to Megatron-LM's options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cost_models.catalog.names import UnknownName
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import architecture, training_calls
from planner.frameworks.arguments import Arguments, known_arguments
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import SET, GivenValues, given_with
from planner.frameworks.megatron import attribute_names
from planner.frameworks.megatron.reader import Dialect, reading_of
from planner.frameworks.megatron_bridge import nemo2, own_recipe, python_recipe, recipes
from planner.frameworks.megatron_bridge.attributes import (
    RECIPE_OVERRIDES,
    SECTIONS,
    SHAPES,
    attributes,
)
from planner.frameworks.megatron_bridge.nemo2_names import MODELS
from planner.frameworks.megatron_bridge.performance_options import Words, words
from planner.frameworks.megatron_bridge.recipe_model import (
    adapted,
    drop_projection_recompute,
    expandable,
    model_of,
    whole,
)
from planner.frameworks.megatron_bridge.recipes import Recipe, Selector
from planner.frameworks.megatron_bridge.rules import EXPANDABLE
from planner.frameworks.megatron_bridge.settings import translated
from planner.frameworks.read_results import Reading, Setting, StatedValue, Unreadable
from planner.huggingface import named_models

TITLE = "Megatron-Bridge"
PROGRAMS = ("setup_experiment.py", "run_script.py", "run_recipe.py")
TASKS = ("pretrain", "sft", "peft")
EACH = {"h100": 8, "b200": 8, "b300": 8, "gb200": 4, "gb300": 4, "vr200": 4, "r100": 1}
# Value of a launch -> values that follow from it in a performance script.
_OF_PERFORMANCE: dict[str, dict[str, Any]] = {
    "model.recompute_num_layers": {
        "model.recompute_granularity": "full", "model.recompute_method": "block",
    },
    "model.recompute_modules": {"model.recompute_granularity": "selective"},
    "model.cpu_offloading_num_layers": {"model.cpu_offloading": True},
}  # fmt: skip
_COMMAND = re.compile(r"^.*(?:setup_experiment|run_script|run_recipe)\.py\b.*$", re.MULTILINE)
_SAYS_RECIPE = re.compile(r"--recipe[\s=]+\w+_config\b")
_OF_THE_PARSER = re.compile(r"--(overlap-param-gather|fp8-param-gather) needs ")


def _trains(launch: ProgramCall) -> bool:
    name = launch.program.text.rsplit("/", 1)[-1]
    said = {word.text.partition("=")[0] for word in launch.arguments}
    if name.endswith(PROGRAMS):
        return bool(said & {"-mr", "--model_recipe_name", "--recipe", "-s", "--model_size"})
    return "--recipe" in said and name.endswith(("train.sh", ".py"))


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script starts a recipe by its name."""
    if python_recipe.is_one(files) or nemo2.is_one(files) or own_recipe.file_of(files) is not None:
        return True
    return _calls_recipe(files)


def _calls_recipe(files: Mapping[str, str]) -> bool:
    """Whether some script starts a recipe by its name."""
    if not any(
        any(program in text for program in PROGRAMS) or _SAYS_RECIPE.search(text)
        for text in files.values()
    ):
        return False
    try:
        _call(files)
    except Unreadable:
        return False
    return True


def _call(files: Mapping[str, str]) -> training_calls.TrainingCall:
    """The call that starts a recipe, also one inside a text that another program runs.

    Raises Unreadable if there is none.
    """
    try:
        return training_calls.training_call(files, _trains, TITLE)
    except Unreadable as error:
        for name in training_calls.scripts(files):
            for match in _COMMAND.finditer(files[name]):
                line = files[name].count("\n", 0, match.start())
                alone = "\n" * line + _continued(files[name][match.start() :])
                try:
                    return training_calls.training_call({**files, name: alone}, _trains, TITLE)
                except Unreadable:
                    continue
        raise error


def _continued(text: str) -> str:
    """The first command of a text: its line, and those that continue it."""
    rows: list[str] = []
    for row in text.split("\n"):
        rows.append(row)
        if not row.rstrip().endswith("\\"):
            break
    return "\n".join(rows) + "\n"


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """Reads a launch of a public recipe.

    Raises Unreadable if the recipe, an option, or a setting that may change the model is unknown.
    """
    given = given_with(files)
    if not _recipe_by_name(files) and (file := own_recipe.file_of(files)) is not None:
        return _read_own(files, file, given, accelerators)
    if not python_recipe.is_one(files) and nemo2.is_one(files):
        return _read_nemo(nemo2.taken(files, given), given)
    found, said, own = _call_and_words(files, given)
    launch = found.launch
    for name, text in given.values.items():
        if "." in name and not name.startswith("-"):
            said.sets[name] = StatedValue(text, SET, 0)
    recipe = own or _recipe(said, launch)
    _refuse_unknown(said)
    reached = _world(said, launch, recipe, accelerators)
    size = training_calls.accelerators(found, reached, accelerators or recipe.accelerators or None)
    place = StatedValue(None, launch.program.file, launch.program.line)
    values = {key: StatedValue(one, place.file, place.line) for key, one in recipe.values.items()}
    notes = [f"the values of {recipe.name} are those of {recipe.source}", *found.notes]
    _override(values, said, recipe, size, notes)
    return _reading(values, recipe, given, launch, reached, size, notes)


def _recipe_by_name(files: Mapping[str, str]) -> bool:
    """Whether a public recipe is taken by its name, by a call or by a Python file."""
    return python_recipe.is_one(files) or nemo2.is_one(files) or _calls_recipe(files)


def _read_own(
    files: Mapping[str, str], file: str, given: GivenValues, accelerators: int | None
) -> Reading:
    """Reads a recipe of one's own, which makes the whole container."""
    own = own_recipe.of_files(files, file)
    args = own_recipe.arguments(own, TITLE)
    found = _started(files, file)
    args.assumed += [note for note in found.notes if note not in args.assumed]
    model = given.model
    if own.model and model is None:
        try:
            model = named_models.find(own.model, args.assumed)
        except UnknownName:
            text = f"the model {own.model[:80]} is no preset: give it (--model)"
            raise Unreadable(text, file, own.line) from None
    reached = training_calls.world(found.launch)
    size = training_calls.accelerators(found, reached, accelerators)
    dialect = Dialect("megatron-bridge", TITLE, attribute_names.PACKAGE, hybrids=True)
    call = replace(found.launch, arguments=())
    reading = reading_of(dialect, args, call, reached, size, GivenValues(model=model))
    if adapters := adapted(own.values, reading.model):
        training = TrainingSpec(**{**reading.training.model_dump(), **adapters})
        reading = reading.model_copy(update={"training": training})
    if expandable(own.values, found.launch.environment):
        plan = reading.plan.model_copy(update={"runtime": EXPANDABLE})
        reading = reading.model_copy(update={"plan": plan})
    return _in_bridge_names(reading)


def _started(files: Mapping[str, str], file: str) -> training_calls.TrainingCall:
    """The call that starts a Python file, or the file alone."""
    last = file.rsplit("/", 1)[-1]
    try:
        return training_calls.training_call(
            files, lambda one: one.program.text.endswith(last), TITLE
        )
    except Unreadable:
        program = Argument(file, file, 1)
        return training_calls.TrainingCall(ProgramCall(program), file, files)


def _read_nemo(taken: nemo2.Taken, given: GivenValues) -> Reading:
    """Reads a launch of NeMo 2, whose values have Bridge's names."""
    reached, values = taken.world(), taken.values
    assert reached.accelerators is not None
    sets = {key: one for key, one in values.items() if key not in taken.recipe.values}
    _refuse_unknown(Words({}, sets, {}))
    name = values["model"]
    values["model"] = replace(name, value=MODELS.get(str(name.value), name.value))
    notes = [*taken.notes, *taken.found.notes]
    size, launch = reached.accelerators, taken.found.launch
    reading = _reading(values, taken.recipe, given, launch, reached, size, notes)
    return reading.model_copy(update={"written": False})


def _reading(
    values: dict[str, StatedValue],
    recipe: Recipe,
    given: GivenValues,
    launch: ProgramCall,
    reached: training_calls.World,
    size: int,
    notes: list[str],
) -> Reading:
    """Reads the values of a recipe on `size` accelerators."""
    if "pretrain_" not in recipe.name:
        notes.append("samples are assumed to fill their sequences, packed or padded")
    model = given.model or model_of(values, recipe, notes)
    drop_projection_recompute(values, model, notes)
    args = _arguments(values, model, notes)
    call = replace(launch, arguments=())
    adapters = adapted(values, model)
    dialect = Dialect(
        "megatron-bridge",
        TITLE,
        attribute_names.PACKAGE,
        hybrids=True,
        training=lambda args: adapters,
    )
    reading = reading_of(dialect, args, call, reached, size, GivenValues(model=model))
    if expandable(values, launch.environment):
        plan = reading.plan.model_copy(update={"runtime": EXPANDABLE})
        reading = reading.model_copy(update={"plan": plan})
    return _in_bridge_names(reading)


def _call_and_words(
    files: Mapping[str, str], given: GivenValues
) -> tuple[training_calls.TrainingCall, Words, Recipe | None]:
    """The call, its options, and the recipe if one of the Python files takes it."""
    if not python_recipe.is_one(files):
        found = _call(files)
        return found, words(found.launch.arguments), None
    recipe, sets, file = python_recipe.recipe_and_settings(files, given)
    said = Words({"recipe": StatedValue(recipe.name, file, 1)}, sets, {})
    return _started(files, file), said, recipe


def _refuse_unknown(said: Words) -> None:
    """Raises Unreadable if a setting may change the model and is not understood."""
    for key, one in said.sets.items():
        section, _, name = key.partition(".")
        known = key in recipes.relevant() or name in (*SHAPES, *RECIPE_OVERRIDES)
        if (
            section != "model"
            or known
            or attribute_names.of_core(name) in attribute_names.options()
        ):
            continue
        shown = Setting(name=key, value=str(one.value), file=one.file, line=one.line)
        architecture.refuse([shown])


def _in_bridge_names(reading: Reading) -> Reading:
    """The reading with Bridge's settings for options, without refusals of Megatron-LM's parser."""

    def own(one: Setting) -> Setting:
        told = (one.value,) if isinstance(one.value, str) else one.value or ("0",)
        names = [name for name, _ in translated(one.name, told)]
        return one.model_copy(update={"name": names[0]}) if names else one

    kept = (one for one in reading.refusals if not _OF_THE_PARSER.match(one.reason.text))
    return reading.model_copy(
        update={
            "assumed": tuple(t for t in reading.assumed if "CUDA_DEVICE_MAX_CONN" not in t),
            "settings": tuple(map(own, reading.settings)),
            "unread": tuple(map(own, reading.unread)),
            "refusals": tuple(
                one.model_copy(update={"setting": own(one.setting) if one.setting else None})
                for one in kept
            ),
        }
    )


def _recipe(said: Words, launch: ProgramCall) -> Recipe:
    """The recipe that the options pick."""
    place = launch.program
    if "recipe" in said.picks:
        one = said.picks["recipe"]
        return recipes.find(str(one.value), one.file, one.line)

    def pick(name: str, usual: str = "") -> str:
        found = said.picks.get(name)
        if found is None and not usual and name != "config_variant":
            raise place.unreadable(f"--{name} is missing")
        return usual if found is None else str(found.value)

    task, key = pick("task", "pretrain"), "model_recipe_name"
    if "model_size" in said.picks:
        family = "model_name" if "model_name" in said.picks else "model_family_name"
        key, model = "model_size", f"{pick(family)}_{pick('model_size')}"
    else:
        model = pick(key)
    if task not in TASKS:
        one = said.picks["task"]
        raise one.unreadable(f"--task {task[:60]} is not read; {', '.join(TASKS)} are")
    named = said.picks[key]
    if said.picks.get("use_recipes"):
        return recipes.find(f"{model}_{task}_config", named.file, named.line)
    count = pick("num_gpus")
    if not re.fullmatch(r"[1-9]\d{0,6}", count):
        one = said.picks["num_gpus"]
        raise one.unreadable(f"--num_gpus {count[:40]!r} is not a number")
    gpu, precision = pick("gpu").lower(), pick("compute_dtype", "bf16")
    if precision == "fp8":
        precision = f"fp8_{pick('fp8_recipe', 'cs')}"
    variant = pick("config_variant")
    return Selector(model, task, int(count), gpu, precision, variant).recipe(named.file, named.line)


def _world(
    said: Words, launch: ProgramCall, recipe: Recipe, asked: int | None
) -> training_calls.World:
    """The accelerators that the launch asks for."""
    count = said.picks.get("num_gpus")
    if count is None:
        reached = training_calls.world(launch)
        return reached if launch.launcher == "torchrun" else training_calls.World(None, None, None)
    total, each = int(str(count.value)), said.picks.get("gpus_per_node")
    gpu = said.picks.get("gpu")
    text = str(each.value) if each is not None else ""
    usual = EACH.get(str(gpu.value).lower()) if gpu is not None else None
    per_node = int(text) if re.fullmatch(r"[1-9]\d{0,3}", text) else usual
    if per_node is None or total % per_node:
        per_node = total if per_node and total < per_node else None
    return training_calls.World(total // per_node if per_node else None, per_node, total)


def _override(
    values: dict[str, StatedValue], said: Words, recipe: Recipe, size: int, notes: list[str]
) -> None:
    """Overrides the recipe's values with the launch's and with those that scripts derive."""
    performance = recipes.PERFORMANCE in recipe.path and "recipe" not in said.picks
    base = _replicas(values, recipe.accelerators)
    for key, one in said.sets.items():
        section = key.partition(".")[0]
        known = (*SECTIONS, "mixed_precision", "dataset", "tokenizer", "peft")
        if section not in known:
            continue
        values[key] = one
        for derived, value in _derived(key, one, performance).items():
            values[derived] = replace(one, value=value)
    if not performance:
        return
    adam = values.get("optimizer.optimizer")
    precision = said.picks.get("compute_dtype")
    if (precision is None or precision.value == "bf16") and adam and adam.value == "adam":
        values["optimizer.use_precision_aware_optimizer"] = replace(adam, value=True)
    batch, now = values.get("train.global_batch_size"), _replicas(values, size)
    scaled = "train.global_batch_size" not in said.sets and recipe.accelerators != size
    if scaled and batch and base and now not in (0, base):
        grown = max(batch.value * now // base, 1)
        values["train.global_batch_size"] = replace(batch, value=grown)
        notes.append(
            f"the batch of {batch.value} grows with the replicas to {grown}, as in {TITLE}"
        )


def _derived(key: str, one: StatedValue, performance: bool) -> Mapping[str, Any]:
    """Values that follow from one of the launch; performance: in a performance script."""
    if key == "model.tensor_model_parallel_size":
        return {"model.sequence_parallel": whole(one, key) > 1}
    if key == "model.moe_flex_dispatcher_backend":
        return {"model.moe_token_dispatcher_type": "flex" if one.value else "alltoall"}
    if key == "ddp.use_megatron_fsdp" and one.value is True:
        return {"ddp.data_parallel_sharding_strategy": "optim_grads_params"}
    return _OF_PERFORMANCE.get(key, {}) if performance else {}


def _replicas(values: Mapping[str, StatedValue], size: int) -> int:
    """Data-parallel replicas on `size` accelerators; 0 if the other degrees do not divide it."""
    product = 1
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        one = values.get(f"model.{name}")
        product *= max(whole(one, name), 1) if one and one.value is not None else 1
    context = values.get("model.context_parallel_size")
    product *= max(whole(context, "context_parallel_size"), 1) if context else 1
    return size // product if size % product == 0 else 0


def _arguments(values: Mapping[str, StatedValue], model: ModelSpec, notes: list[str]) -> Arguments:
    """The values as Megatron-LM's options."""
    document = known_arguments(attribute_names.PACKAGE)
    args = Arguments(TITLE, document["flags"], (max(document["versions"]),))
    for note in notes:
        args.assume(note)
    for name, one in attributes(values).items():
        option = attribute_names.options().get(attribute_names.of_core(name))
        if option is not None:
            attribute_names.take(args, option, one.value, name, one.file, one.line)
    return args
