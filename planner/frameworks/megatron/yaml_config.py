"""Reads Megatron-LM's settings in YAML: a file for --yaml-cfg, or MODEL_ARGS of its test runs.

Sources: megatron/training/yaml_arguments.py of core 0.15 to main, _run_training.sh of its tests
(d98e8a6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cost_models.package_files import table
from planner.frameworks import training_calls, yaml_files
from planner.frameworks.arguments import Arguments, known_arguments
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.megatron import attribute_names, forks
from planner.frameworks.read_results import Unreadable
from planner.frameworks.yaml_files import YamlFile

OPTION = "--yaml-cfg"
SECTIONS = ("language_model", "model_parallel")
MODEL_ARGS = "MODEL_ARGS"
# MODEL_ARGS of runs of NeMo 1, whose keys are dotted.
DOTTED = re.compile(r"^  model\.num_layers:", re.MULTILINE)
_MARK = re.compile(rf"^(?:{MODEL_ARGS}|language_model):[ \t]*(?:[#&].*)?$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
# Fields that no option of the parser sets -> the value without effect on a step's time or memory,
# or that other keys decide; None: any value.
_NO_EFFECT = table("planner.frameworks.megatron", "yaml_fields.json")["no_effect"]
# Activation -> the option that builds it.
_ACTIVATIONS = {"swiglu": "--swiglu", "squaredrelu": "--squared-relu", "gelu": ""}
# Options outside of the sections that its model is not built from.
_REPEATED = ("swiglu", "squared_relu", "openai_gelu", "group_query_attention")
_NESTED = {"num_moe_experts": "num_experts", "attention_variant": "experimental_attention_variant"}
_OF_OTHERS = re.compile(
    r"^--(bert|vocab-extra-ids|encoder-|decoder-(num|seq)|retro|vision|img|num-tokens-to-generate|"
    r"prompts?$|prompt-file|incoming-requests|export-)"
)
_OF_ENCODERS = re.compile(r"^--(bert|vocab-extra-ids|encoder-|decoder-(num|seq))")
_MASKED = re.compile(r"_text_sentence$|(^|[/_-])(bert|t5)[_-]")


@dataclass(frozen=True)
class Config:
    """A YAML file of settings, and the call that names it if the files include a script."""

    file: YamlFile
    call: training_calls.TrainingCall | None

    @property
    def plain(self) -> bool:
        """Whether it lists options of the command line (MODEL_ARGS)."""
        return MODEL_ARGS in self.file.values


def is_one(files: Mapping[str, str]) -> bool:
    """Whether some YAML file has one of these two forms."""
    return any(_marked(name, text) for name, text in files.items())


def _marked(name: str, text: str) -> bool:
    yaml = name.endswith((".yaml", ".yml"))
    return yaml and _MARK.search(text) is not None and not DOTTED.search(text)


def of_files(files: Mapping[str, str]) -> Config | None:
    """The first such YAML file; None if there is none.  Raises Unreadable."""
    name = next((name for name, text in files.items() if _marked(name, text)), None)
    if name is None:
        return None
    file = yaml_files.read(files[name], name)
    wanted = (MODEL_ARGS,) if MODEL_ARGS in file.values else SECTIONS
    for section in wanted:
        if not isinstance(file.values.get(section), dict):
            text = f"{section} must be a mapping of settings"
            raise Unreadable(text, name, file.lines.get(section, 0))
    return Config(file, _call(files))


def _call(files: Mapping[str, str]) -> training_calls.TrainingCall | None:
    """The call of a training program with --yaml-cfg."""

    def named(launch: ProgramCall) -> bool:
        return any(word.text.partition("=")[0] == OPTION for word in launch.arguments)

    try:
        return training_calls.training_call(files, named, "Megatron-LM")
    except Unreadable:
        return None


def launch(config: Config) -> ProgramCall:
    """The call that uses the file, without its arguments: the file is read in their place."""
    if config.call is not None:
        found = config.call.launch
        return replace(found, arguments=())
    values = config.file.values.get("ENV_VARS")
    said = values if config.plain and isinstance(values, dict) else {}
    environment = {str(name): str(value) for name, value in said.items()}
    program = Argument("pretrain_gpt.py", config.file.name, 1)
    return ProgramCall(program=program, environment=environment)


def arguments(config: Config, given: GivenValues) -> Arguments:
    """Its settings as options, with the user's given values.  Raises Unreadable."""
    document = known_arguments(attribute_names.PACKAGE)
    known = {**document["flags"], **forks.OPTIONS}
    args = Arguments("Megatron-LM", known, tuple(document["versions"]))
    for note in config.file.notes():
        args.assume(note)
    if config.plain:
        args.take(list(_words(config.file, given)))
        _decoder(args)
    else:
        _take_sections(config.file, args, given)
        if config.call is not None and len(config.call.launch.arguments) > 2:
            args.assume(
                f"with {OPTION} the other options of the call are ignored, as in Megatron-LM"
            )
    extra = (one for one in given.settings() if one.name.startswith("--"))
    for one in extra:
        value = [Argument(one.value, one.file, 0)] if isinstance(one.value, str) else []
        args.take([Argument(one.name, one.file, 0), *value])
    args.one_version()
    return args


# MODEL_ARGS: options by their names on the command line.


def _words(file: YamlFile, given: GivenValues) -> Iterator[Argument]:
    """The words of MODEL_ARGS, as the test runner of Megatron-LM makes them."""
    for name, value in file.values[MODEL_ARGS].items():
        line = file.lines.get(f"{MODEL_ARGS}.{name}", 0)
        yield Argument(str(name), file.name, line)
        if value is True or value is None or value == "":
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value).strip()
        text = _VARIABLE.sub(lambda one: given.variables.get(one[1], one[0]), text)
        listed = isinstance(value, list) or re.fullmatch(r"\[[^\]]+\]", text)
        parts = re.split(r"[\s,]+", text.strip("[] ")) if listed else [text]
        for part in parts:
            yield Argument(part.strip("\"'"), file.name, line, "${" not in part)


def _decoder(args: Arguments) -> None:
    """Raises Unreadable if the options are those of another program than pretrain_gpt.py."""
    for one in args.settings:
        text = one.value if isinstance(one.value, str) else " ".join(one.value or ())
        data = one.name == "--data-path" and _MASKED.search(text)
        if data or _OF_OTHERS.match(one.name):
            shown = f"{one.name} {text}".rstrip()
            what = "another program than pretrain_gpt.py"
            if data or _OF_ENCODERS.match(one.name):
                what = (
                    f"a program that trains an encoder (BERT, T5): {training_calls.DECODERS_ONLY}"
                )
            raise one.unreadable(f"{shown}: belongs to {what}")
    args.assume(f"the program is assumed to be pretrain_gpt.py: {MODEL_ARGS} does not name it")


# --yaml-cfg: attributes in sections.


def _take_sections(file: YamlFile, args: Arguments, given: GivenValues) -> None:
    """Sets the option of every attribute in the file; some have other names in the sections."""
    values = {key: one for key, one in file.values.items() if key not in SECTIONS}
    for key in _REPEATED:
        values.pop(key, None)
    places = {key: key for key in values}
    for section in SECTIONS:
        for key, value in file.values[section].items():
            name = _NESTED.get(key, key)
            values[name], places[name] = value, f"{section}.{key}"
    _activation(file, args, values)
    if values.get("num_query_groups") is not None:
        _set_option(file, args, "group_query_attention", True, places["num_query_groups"])
    variables = given.variables
    for key, value in values.items():
        if isinstance(value, str):
            value = _VARIABLE.sub(lambda one: variables.get(one[1], one[0]), value)
        if not _has_no_effect(key, value):
            _set_option(file, args, key, value, places[key])


def _has_no_effect(key: str, value: Any) -> bool:
    if key.startswith("_"):
        return True
    return key in _NO_EFFECT and (_NO_EFFECT[key] is None or value == _NO_EFFECT[key])


def _activation(file: YamlFile, args: Arguments, values: dict[str, Any]) -> None:
    """Sets the option for the kind of MLP, which activation_func alone decides."""
    place = "language_model.activation_func"
    kind, line = values.pop("activation_func", None), file.lines.get(place, 0)
    if kind not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise Unreadable(f"{place} is {kind!r}; it is one of {known}", file.name, line)
    if values.pop("gated_linear_unit", False) and kind != "swiglu":
        text = f"gated_linear_unit with {kind} is not supported: it changes the MLP's widths"
        raise Unreadable(text, file.name, file.lines.get("language_model.gated_linear_unit", 0))
    if option := _ACTIVATIONS[kind]:
        args.option(option, Argument(option, file.name, line), [], 0)


def _set_option(file: YamlFile, args: Arguments, key: str, value: Any, place: str) -> None:
    """Sets the option of one attribute; an unknown attribute becomes an unknown option."""
    line = file.lines.get(place, 0)
    if isinstance(value, dict):
        raise Unreadable(f"{place} is a mapping; a value is needed", file.name, line)
    option = attribute_names.options().get(key)
    if option is None:
        if value is not None and value is not False:
            name = "--" + str(key).replace("_", "-")
            args.option(name, Argument(name, file.name, line), [_argument(value, file, line)], "*")
        return
    attribute_names.take(args, option, value, place, file.name, line)


def _argument(value: Any, file: YamlFile, line: int) -> Argument:
    text = str(value)
    return Argument(text, file.name, line, "${" not in text)
