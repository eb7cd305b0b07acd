"""Trainers whose launches are known by their marks and not read, and what helps instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from cost_models.catalog.names import UnknownName
from cost_models.package_files import table
from planner.frameworks.bash import Outcome, ProgramCall, evaluate
from planner.frameworks.read_results import Unreadable
from planner.frameworks.training_calls import scripts
from planner.huggingface.named_models import find

YAML = (".yaml", ".yml")
# Files of samples and of words, in which any mark may stand.
DATA = (".json", ".jsonl", ".txt", ".md", ".csv")
CONFIGS = (*YAML, ".json", ".toml")
_MOST_WORDS = 6


def known_trainer(files: Mapping[str, str], first: bool = False) -> str:
    """The trainer whose files these are, why it is not read and what helps; "" if unknown.

    first: only those whose files have the keys of a framework that is read.
    """
    known: list[dict[str, Any]] = table("planner.frameworks", "unread_trainers.json")["trainers"]
    for one in known:
        if first and "first" not in one:
            continue
        for name, text in files.items():
            if name.endswith(DATA):
                continue
            marks = one.get("yaml" if name.endswith(YAML) else "script", ())
            if marks and all(re.search(mark, text, re.MULTILINE) for mark in marks):
                return (
                    f"{name} is of {one['title']}, which is not read: {one['why']}; {one['help']}"
                )
    return ""


# Options that name a file of what a program reads or writes beside its configuration.
_OF_DATA = re.compile(r"data|file|summary|manifest|output|result|report|gate|schedule|log|path")

# Scripts that set up a machine or a shell, and hold no options.
_SETS_UP = re.compile(
    r"(^|/)(conda|modules?|nvm|cuda|bashrc|profile|activate|\.\w+)(\.\w+)?$|(^|/)(set(up)?_?)?env"
    r"(ironment)?(_?vars?)?(\.sh)?$|/(bin/activate|etc/profile)|^/(usr|etc)/"
)


_TRAINS_NOTHING = re.compile(
    r"(^|[/_.])(generat(e|ion)|predict(ion)?|infer(ence)?|serve|server|eval(uate|uation)?|"
    r"(pre)?process(ing)?|convert|merge|decod(e|ing)|benchmark|pip|venv|"
    r"(create|download|upload|export|tokenize|prepare)(?!\w*(train|tune)))([_.]|$)"
)
# Option of the command that completes a launch -> programs' own names for it.
_OPTIONS = {
    "--model": re.compile(
        r"((base|llm|lm|student|pretrained)_)?model(_name|_path|_id|_name_or_path)?|pretrain(ed)?|"
        r"(config_)?path"
    ),
    "--seq-length": re.compile(
        r"(max_)?(seq|sequence|context|model_max|input|target)_?(len|length)|max_len(gth)?|"
        r"block_size|cutoff_len"
    ),
    "--global-batch-size": re.compile(r"(global|total|train|effective)_(train_)?(batch_size|bs)"),
}


_OPEN = "..."  # a value that is to be given
# A key of a configuration, or a name of a program, with its value.
_SAYS = re.compile(
    r"""^[ \t]*["']?([A-Za-z]\w*)["']?(?:[ ]*:[ ]*\w+)?[ ]*[:=][ ]*["']?([\w./-]+)""", re.MULTILINE
)


def _configs(call: ProgramCall) -> Iterator[str]:
    """The names of the files that may hold the options of a program."""
    option = ""
    for word in call.arguments:
        before, equals, value = word.text.rpartition("=")
        key, path = (before, value) if equals else (option, word.text)
        name = path.rsplit("/", 1)[-1]
        if key == "--config-name" and not name.endswith(CONFIGS):  # Hydra's
            name += ".yaml"
        if name.endswith(CONFIGS) and not _OF_DATA.search(key):
            yield name
        option = word.text if word.text.startswith("-") and not equals else ""


def _with_options(paths: Iterable[str]) -> Iterator[str]:
    """The scripts that may hold options: not those that set up a machine or a shell."""
    return (path for path in paths if not _SETS_UP.search(path))


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _command(pairs: Iterable[tuple[str, str]]) -> str:
    """The shortest command that plans what these names and values say, the last of each."""
    said = dict.fromkeys(_OPTIONS, _OPEN)
    for option, value in pairs:
        for asked, pattern in _OPTIONS.items():
            if pattern.fullmatch(option) and _is_value(asked, value):
                said[asked] = value
    return "planner plan " + " ".join(
        f"{asked} {value if value == _OPEN else shlex.quote(value)}"
        for asked, value in said.items()
    )


def _pairs(call: ProgramCall) -> Iterator[tuple[str, str]]:
    """The options of a call, without dashes and groups, and their values."""
    words = [word.text if word.known else "" for word in call.arguments]
    for word, after in zip(words, [*words[1:], ""], strict=False):
        option, equals, value = word.partition("=")
        name = option.lstrip("-").replace("-", "_").rpartition(".")[2].lower()
        if equals or word.startswith("-"):
            yield name, value if equals else after


def _is_value(asked: str, value: str) -> bool:
    """Whether a value is a number, or for the model a name that is known."""
    if asked != "--model":
        return bool(re.fullmatch(r"[1-9]\d{0,8}", value))
    try:
        find(value, [])
    except UnknownName:
        return False
    return True


# Options that a script keeps in variables, for another that sources it.
_KEPT = re.compile(r"^[ \t]*(\w+)\+?=[(\"'][^\n\"')]*\n?\s*--\w", re.MULTILINE)
# A step of training that a script takes itself.
OWN_LOOP = re.compile(r"\.backward\(")


def stated(files: Mapping[str, str]) -> str:
    """What a configuration or a program of no known trainer says; "" if it says nothing."""
    for name, text in files.items():
        if name in scripts([name]) and (kept := dict.fromkeys(_KEPT.findall(text))):
            names = ", ".join(list(kept)[:_MOST_WORDS])
            return f"{name} starts nothing: give the script that sources it and calls with {names}"
        if name.endswith(".py") and OWN_LOOP.search(text):
            command = _command((key.lower(), value) for key, value in _SAYS.findall(text))
            own = "trains in a loop of its own, which is not followed"
            return f"{name} {own}; complete what it says: {command}"
        if name.endswith((*CONFIGS, ".py")):
            command = _command((key.lower(), value) for key, value in _SAYS.findall(text))
            if command != _command(()):
                return f"{name} is of no known trainer; complete what it says: {command}"
    return ""


def _outcomes(files: Mapping[str, str]) -> Iterator[Outcome]:
    """What comes of each script that can be followed."""
    for name in scripts(files):
        with suppress(Unreadable):
            yield evaluate(files, name)


def idle(files: Mapping[str, str]) -> str:
    """Why there is no training where all programs that the scripts call are others; else ""."""
    found = list(_outcomes(files))
    programs = {call.program.text for one in found for call in one.launches}
    handed = any(_with_options(path for one in found for path in one.missing))
    own = [_last(one) if one.endswith(".py") else one for one in programs]
    if handed or not programs or not all(map(_TRAINS_NOTHING.search, own)):
        return ""
    names = ", ".join(_last(one)[:80] for one in sorted(programs)[:_MOST_WORDS])
    return f"{names} trains nothing, by its name: give the script of a training"


def called(files: Mapping[str, str]) -> str:
    """The programs that the scripts call, if none is that of a known trainer; "" without any."""
    outcomes = tuple(_outcomes(files))
    handed = _listed(_last(one) for outcome in outcomes for one in _with_options(outcome.missing))
    if handed:
        return f"the script hands on to {handed}, which is not among the files: give it"
    calls = [call for outcome in outcomes for call in outcome.launches]
    if not calls:
        return ""
    names = _listed(_last(call.program.text) for call in calls)
    configs = [one for call in calls for one in _configs(call)]
    if missing := _listed(one for one in configs if one not in files):
        return (
            f"the script calls {names}, whose options may be in {missing}, which is not among the "
            "files: give it"
        )
    of_files = ((key.lower(), said) for one in configs for key, said in _SAYS.findall(files[one]))
    return (
        f"the script calls {names}, whose options are those of no known trainer; complete what "
        f"was read: {_command(chain(of_files, chain.from_iterable(map(_pairs, calls))))}"
    )


def _listed(names: Iterable[str]) -> str:
    """The first of them, each once."""
    return ", ".join(one[:80] for one in list(dict.fromkeys(names))[:_MOST_WORDS])
