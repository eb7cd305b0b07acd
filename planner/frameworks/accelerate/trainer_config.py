"""Options of transformers' Trainer in a file: JSON, or YAML with sections of a program's own.

Its argument parser reads such a JSON (Firefly), and ms-swift writes one beside its checkpoints;
many programs pass on the keys of their YAML, some of them in sections.  Each key stands for an
option of the call that names the file, or of a call that is not here.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from planner.frameworks import unread_trainers
from planner.frameworks.bash import Argument, ProgramCall, evaluate
from planner.frameworks.config_files import json_value
from planner.frameworks.python import hydra
from planner.frameworks.read_results import Unreadable
from planner.frameworks.training_calls import TRAINER_MARK, TrainingCall, scripts

MARK = TRAINER_MARK[2:]
YAML = (".yaml", ".yml")
_MODELS = ("model_name_or_path", "model", "model_id_or_path", "base_model")
# Keys of ms-swift's own dump of its arguments.
_OF_SWIFT = ("tuner_type", "train_type", "sft_type")
# Section of a YAML -> the names of its keys there, and as options.
_SECTIONS = (
    (
        re.compile(r"(base_?)?model(_config|_args|_arguments)?"),
        dict.fromkeys(
            ("name", "path", "id", "name_or_path", "model_name", "model_id", "base", "base_model",
             "pretrained_model_name_or_path", "pretrained"),
            "model_name_or_path",
        ),
    ),
    (
        re.compile(r"(p|q)?_?(lora|peft|adapter)(_config|_args|_arguments)?"),
        {"r": "lora_r", "rank": "lora_r", "alpha": "lora_alpha", "dropout": "lora_dropout",
         "enabled": "use_lora", "enable": "use_lora", "use": "use_lora",
         "target_modules": "lora_target_modules"},
    ),
)  # fmt: skip
# Keys of a model's configuration that are other things as options of a Trainer.
_OF_MODEL = ("max_length", "_name_or_path", "model", "_wandb", "hidden_size", "num_hidden_layers",
             "vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
             "head_dim", "model_type", "architectures", "task_specific_params", "seq_length",
             "max_sequence_length", "quantization_config", "pre_seq_len", "num_layers")  # fmt: skip
_METHODS = ("training_type", "training_method", "trainer_type", "algorithm")
_DEEPEST = 3


class TrainerFile(NamedTuple):
    """The name and the keys of such a file; trainings: its sections that have a training each."""

    name: str
    keys: dict[str, Any]
    trainings: tuple[str, ...] = ("",)


def of_files(files: Mapping[str, str]) -> TrainerFile | None:
    """The first such file; None if there is none."""
    for name, text in files.items():
        if MARK not in text or "distributed_type:" in text:
            continue
        if name.endswith(YAML) and not unread_trainers.known_trainer({name: text}):
            try:
                document = _of_run(hydra.composed(files, name))
            except Unreadable:
                continue
            if places := tuple(_trainings(document, "")):
                return TrainerFile(name, _flat(document), places)
        if name.endswith(".json") and f'"{MARK}"' in text:
            try:
                document = json_value(text, name)
            except Unreadable:
                continue
            if isinstance(document, dict) and MARK in document and document.keys() & set(_MODELS):
                return TrainerFile(name, document)
    return None


def _of_run(document: dict[str, Any]) -> dict[str, Any]:
    """The options of a run as Weights & Biases keeps them, with the model's; others as they are."""
    if "_wandb" not in document:
        return document
    held = {key: _plain(one["value"]) for key, one in document.items()
            if isinstance(one, dict) and "value" in one}  # fmt: skip
    options = {key: one for key, one in held.items() if key not in _OF_MODEL and one is not None}
    if isinstance(held.get("_name_or_path"), str):
        options.setdefault("model_name_or_path", held["_name_or_path"])
    if isinstance(frozen := held.get("quantization_config"), dict):
        options |= {key: True for key in ("load_in_4bit", "load_in_8bit") if frozen.get(key)}
    adapters = held.get("peft_config")
    if isinstance(adapters, dict):
        options["peft_config"] = next(iter(adapters.values()), {})
    return options


def _plain(value: Any) -> Any:
    """A value that an older transformers wrote as Python's text, None and [] of it too."""
    if isinstance(value, str) and (value == "None" or value[:1] in ("[", "{")):
        with contextlib.suppress(ValueError, SyntaxError):
            return ast.literal_eval(value)
    return value


def _trainings(document: Mapping[str, Any], place: str, depth: int = 0) -> Iterator[str]:
    """The sections that have the options of a training."""
    if MARK in document:
        yield place
    for key, value in document.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _trainings(value, f"{place}.{key}".lstrip("."), depth + 1)


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a YAML without their sections, those of a model or of LoRA as options."""
    found: dict[str, Any] = {}

    def add(section: str, values: Mapping[str, Any], depth: int) -> None:
        names = next((names for match, names in _SECTIONS if match.fullmatch(section)), {})
        for key, value in values.items():
            if isinstance(value, dict) and key not in ("deepspeed", "fsdp_config"):
                if depth < _DEEPEST:
                    add(str(key).lower(), value, depth + 1)
            elif not isinstance(value, list) or not any(isinstance(one, dict) for one in value):
                found.setdefault(names.get(str(key), str(key)), value)

    add("", document, 0)
    if "model_name_or_path" not in found and isinstance(found.get("model_name"), str):
        found["model_name_or_path"] = found.pop("model_name")
    return found


def call(files: Mapping[str, str]) -> TrainingCall | None:
    """The call with the options of the file; None without one.

    Raises Unreadable where it has several trainings.
    """
    found = of_files(files)
    if found is None:
        return None
    name, document, trainings = found
    if len(trainings) > 1:
        each = ", ".join(place or "the file itself" for place in trainings[:5])
        raise Unreadable(f"{MARK} stands in several sections: {each}; give one", name)
    base = _by_script(files, name)
    program = Argument(_program(name, document), name, 1)
    launch = base.launch if base is not None else ProgramCall(program)
    if _is_of_swift(document, name) and (base is None or name.endswith(".json")):
        launch = replace(
            launch, program=Argument("sft", name, 1), before=(Argument("swift", name, 1),)
        )
    elif base is None:
        launch = replace(launch, program=program)
    words = (*launch.arguments, *_words(document, name, files[name]))
    script = base.script if base is not None else name
    notes = base.notes if base is not None else ()
    if name.endswith(YAML):
        notes = (*notes, f"the keys of {name} are taken as options of transformers' Trainer")
    return TrainingCall(replace(launch, arguments=words), script, files, notes=notes)


def _is_of_swift(document: Mapping[str, Any], name: str) -> bool:
    """Whether a file has ms-swift's own keys; a YAML, more than one of them."""
    own = document.keys() & {*_OF_SWIFT, "torch_dtype", "attn_impl", "template"}
    return bool(document.keys() & {*_OF_SWIFT}) and (len(own) > 1 or name.endswith(".json"))


def _program(name: str, document: Mapping[str, Any]) -> str:
    """What the program is called: a JSON as it is, a YAML with the method that it names."""
    if name.endswith(".json"):
        return name
    stem = name.rpartition(".")[0]
    said = [str(document[key]).lower() for key in _METHODS if isinstance(document.get(key), str)]
    return "_".join([stem, *(one for one in said[:1] if one not in stem)])


def sections(files: Mapping[str, str]) -> dict[str, Any]:
    """The keys of the file that hold keys themselves, such as DeepSpeed's; empty without one."""
    found = of_files(files)
    document = {} if found is None else found.keys
    return {key: value for key, value in document.items() if isinstance(value, dict) and value}


def _by_script(files: Mapping[str, str], config: str) -> TrainingCall | None:
    """The call of a script that names the file."""
    for name in scripts(files):
        try:
            outcome = evaluate(files, name)
        except Unreadable:
            continue
        for one in outcome.launches:
            words = (word.text.rpartition("=")[2] for word in one.arguments)
            if any(word.rsplit("/", 1)[-1] == config.rsplit("/", 1)[-1] for word in words):
                return TrainingCall(one, name, files, notes=tuple(outcome.notes))
    return None


def _words(document: Mapping[str, Any], name: str, text: str) -> Iterator[Argument]:
    """--key=value of each key with a value, where it stands."""
    for key, value in document.items():
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        if shown is None or isinstance(shown, dict):
            continue
        place = max(text.find(f'"{key}"'), text.find(f"{key}:"), 0)
        yield Argument(f"--{key}={shown}", name, text.count("\n", 0, place) + 1)
