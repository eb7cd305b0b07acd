"""Reads a recipe of one's own: a Python file that makes a whole ConfigContainer.

Each setting goes back to the option of Megatron-LM that the writer translates to it (settings), so
what is written here is read by the same rows.  A model that is no GPTModelProvider, but made from
a name, is that of the name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.frameworks.arguments import Arguments, known_arguments
from planner.frameworks.bash import Argument
from planner.frameworks.megatron import attribute_names
from planner.frameworks.megatron.options import OPTIONS
from planner.frameworks.megatron_bridge.attributes import PRECISIONS
from planner.frameworks.megatron_bridge.settings import DTYPES, settings_of
from planner.frameworks.python.static_evaluation import Program
from planner.frameworks.python.static_values import Call, Unknown
from planner.frameworks.read_results import StatedValue, Unreadable

CONTAINER = "ConfigContainer"
_MARK = re.compile(rf"\b{CONTAINER}\(\s*\w+\s*=")
_PROVIDERS = ("GPTModelProvider", "MLAModelProvider", "HybridModelProvider")
_VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
_LAYOUT = "model.pipeline_model_parallel_layout"
_NAMED = re.compile(r"from_hf_\w+$")
# Settings of a model that its options have no word for, since Megatron-LM's parser decides them.
NO_EFFECT = frozenset(
    f"model.{name}"
    for name in (
        "transformer_layer_spec", "apply_rope_fusion", "bias_activation_fusion", "vocab_size",
        "bias_dropout_fusion", "persist_layer_norm", "masked_softmax_fusion", "init_method_std",
        "attention_softmax_in_fp32", "deallocate_pipeline_outputs", "cross_entropy_loss_fusion",
        "should_pad_vocab", "make_vocab_size_divisible_by", "autocast_dtype", "bf16", "fp16",
        "params_dtype", "pipeline_dtype", "perform_initialization",
    )
)  # fmt: skip
_TEXT = {
    "{}": "(.+)", "{list}": "(.+)", "{slashes}": r"\d+",
    "{dtype}": "(" + "|".join(map(re.escape, DTYPES.values())) + ")",
}  # fmt: skip


@dataclass(frozen=True)
class Own:
    """The settings of a container by their names; model: the name of its model, if it has one."""

    file: str
    line: int
    values: dict[str, StatedValue]
    model: str


def file_of(files: Mapping[str, str]) -> str | None:
    """The Python file that makes a container; None without one."""
    named = (name for name, text in files.items() if name.endswith(".py")
             and "megatron.bridge" in text and _MARK.search(text))  # fmt: skip
    return next(named, None)


def of_files(files: Mapping[str, str], file: str) -> Own:
    """The last container that the file makes.  Raises Unreadable."""
    container, model = _last_made(files[file], file), ""
    values: dict[str, StatedValue] = {}
    for section, part in container.kwargs.items():
        line = container.lines.get(section, container.line)
        if section == "mixed_precision" and isinstance(part, str):
            part = Call(part, line)
        if isinstance(part, Call):
            values |= _settings(section, part, file, line)
            if section == "model" and part.short not in _PROVIDERS:
                model = _name(part)
    return Own(file, container.line, values, model)


def _last_made(text: str, file: str) -> Call:
    made: list[Call] = []

    def library(call: Call) -> Any:
        if call.short == CONTAINER:
            made.append(call)
        return call

    program = Program(text, file, library)
    for function in program.functions.values():
        if not made:
            program.invoke(function, [], {})
    if not made:
        raise Unreadable(f"no {CONTAINER} can be followed in it: write its sections out", file)
    return made[-1]


def _settings(section: str, part: Call, file: str, line: int) -> dict[str, StatedValue]:
    """What one section of a container says."""
    said = {f"mixed_precision.{name}": one for name, one in PRECISIONS.get(part.short, {}).items()}
    said |= {"peft": part.short} if section == "peft" else {}
    found = {name: StatedValue(one, file, line) for name, one in said.items()}
    for name, value in part.kwargs.items():
        found[f"{section}.{name}"] = StatedValue(value, file, part.lines.get(name, line))
    return found


def _name(provider: Call) -> str:
    """The name of a model that a provider is made from: AutoBridge.from_hf_pretrained(NAME)."""
    part: Any = provider
    while isinstance(part, Call):
        named = next(iter(part.args), None)
        if _NAMED.search(part.name) and isinstance(named, str):
            return named
        part = part.owner
    return provider.short


def arguments(own: Own, title: str) -> Arguments:
    """The settings as Megatron-LM's options.  Raises Unreadable at one that is not understood."""
    document = known_arguments(attribute_names.PACKAGE)
    args = Arguments(title, document["flags"], (max(document["versions"]),))
    used = set[str]()
    for option in OPTIONS:
        wanted = settings_of(option)
        words, line = _words(option, wanted, own.values)
        if words is not None and not (option == _VIRTUAL and _LAYOUT in own.values):
            used.update(name for name, _ in wanted)
            _take(args, option, words, own.file, line)
    for name, one in own.values.items():
        if name.startswith("mixed_precision.") and name not in used:
            attribute = attribute_names.of_core(name.partition(".")[2])
            row = attribute_names.options().get(attribute)
            if row is not None and row not in args.given and isinstance(one.value, bool | str):
                attribute_names.take(args, row, one.value, name, one.file, one.line)
    _as_the_parser_asks(args, own)
    _refuse_unknown(own, used)
    return args


def _refuse_unknown(own: Own, used: set[str]) -> None:
    """Raises Unreadable at a setting of the model that no option stands for."""
    spoken = {name for option in OPTIONS for name, _ in settings_of(option)}
    for name, one in own.values.items():
        if name.startswith("model.") and name not in used | spoken | NO_EFFECT:
            text = f"{name} {_text(one.value)[:60]} is not understood, and may change the model"
            raise Unreadable(text, one.file, one.line)


def _take(args: Arguments, option: str, words: list[str], file: str, line: int) -> None:
    said = [Argument(one, file, line) for one in words]
    several = 0 if attribute_names.is_switch(option) else args.known[option].get("nargs", 1)
    args.option(option, Argument(option, file, line), said, several)


def _as_the_parser_asks(args: Arguments, own: Own) -> None:
    """Options of which Bridge needs none: they follow from other settings."""
    groups, length = (own.values.get(f"model.{one}") for one in ("num_query_groups", "seq_length"))
    if groups is not None and groups.value is not None:
        _take(args, "--group-query-attention", [], own.file, groups.line)
    if length is not None:
        _take(args, "--max-position-embeddings", [_text(length.value)], own.file, length.line)


def _words(
    option: str, wanted: tuple[tuple[str, str], ...], values: Mapping[str, StatedValue]
) -> tuple[list[str] | None, int]:
    """The words of an option if the settings are those that it is translated to, and the line.

    Only settings of the model must all be there: other sections repeat each other.
    """
    said = [(name, source) for name, source in wanted if name in values]
    if not said or any(name.startswith("model.") and name not in values for name, _ in wanted):
        return None, 0
    words: list[str] = []
    for name, source in said:
        found = _said(option, source, values[name].value)
        if found is None:
            return None, 0
        words = found or words
    return words, values[said[0][0]].line


def _said(option: str, source: str, value: Any) -> list[str] | None:
    """The words of an option that a setting's value has; None if it is not what the option sets."""
    if "{" in source:
        return _fitted(source, value)
    if source:
        return [] if f".{_text(value)}".endswith(f".{source}") else None
    if attribute_names.is_switch(option):
        return [] if value is not attribute_names.turns_off(option) and value in (0, 1) else None
    if isinstance(value, list):
        return [str(value).replace(" ", "")]
    return None if value is None else [_text(value)]


def _fitted(source: str, value: Any) -> list[str] | None:
    """The words that fill the places of a source, so that it is the value; None if none do."""
    if source == "{list}" and isinstance(value, list):
        return [str(one) for one in value]
    pattern = re.escape(source)
    for place, text in _TEXT.items():
        pattern = pattern.replace(re.escape(place), text)
    found = re.fullmatch(rf"(?:[a-z][\w.]*\.)?{pattern}", _text(value))
    if found is None:
        return None
    short = {torch: name for name, torch in DTYPES.items()}
    return [short.get(one, one).replace(", ", ",") for one in found.groups()]


def _text(value: Any) -> str:
    """A value as the source that the writer has for it."""
    if isinstance(value, Unknown):
        return value.source
    if isinstance(value, Call):
        return value.name
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, list) else str(value)
