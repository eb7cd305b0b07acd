"""Options of transformers' Trainer in a JSON, as its argument parser reads them (Firefly).

ms-swift writes such a file beside its checkpoints.

Each key stands for an option of the call that names the file, or of a call that is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.documents.loading import parse_json
from planner.documents.problems import RequestError
from planner.frameworks.bash import Argument, ProgramCall, evaluate
from planner.frameworks.read_results import Unreadable
from planner.frameworks.training_calls import TRAINER_MARK, TrainingCall, scripts

MARK = TRAINER_MARK[2:]
_MODELS = ("model_name_or_path", "model", "model_id_or_path", "base_model")
# Keys of ms-swift's own dump of its arguments.
_OF_SWIFT = ("tuner_type", "train_type", "sft_type")


def of_files(files: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
    """The name and the keys of such a JSON; None if there is none."""
    for name, text in files.items():
        if not name.endswith(".json") or f'"{MARK}"' not in text:
            continue
        try:
            document = parse_json(text)
        except RequestError:
            continue
        if isinstance(document, dict) and MARK in document and document.keys() & set(_MODELS):
            return name, document
    return None


def call(files: Mapping[str, str]) -> TrainingCall | None:
    """The call with the options of the JSON; None without one."""
    found = of_files(files)
    if found is None:
        return None
    name, document = found
    base = _by_script(files, name)
    program = Argument(name, name, 1)
    launch = base.launch if base is not None else ProgramCall(program)
    if document.keys() & set(_OF_SWIFT):
        launch = replace(
            launch, program=Argument("sft", name, 1), before=(Argument("swift", name, 1),)
        )
    elif base is None:
        launch = replace(launch, program=program)
    words = (*launch.arguments, *_words(document, name, files[name]))
    script = base.script if base is not None else name
    notes = base.notes if base is not None else ()
    return TrainingCall(replace(launch, arguments=words), script, files, notes=notes)


def sections(files: Mapping[str, str]) -> dict[str, Any]:
    """The keys of the JSON that hold keys themselves, such as DeepSpeed's; empty without one."""
    found = of_files(files)
    document = {} if found is None else found[1]
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
        line = text.count("\n", 0, max(text.find(f'"{key}"'), 0)) + 1
        yield Argument(f"--{key}={shown}", name, line)
