"""A YAML as OmegaConf merges it: with its own references, and the words of a call over it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.frameworks import yaml_files
from planner.frameworks.given_values import Values
from planner.frameworks.launch_files import given_with
from planner.frameworks.read_results import Setting
from planner.frameworks.training_calls import TrainingCall

YAML = (".yaml", ".yml")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*(?:,\s*([^${}]*))?\}")
_MOST_REFERENCES = 8  # one after the other


def configurations(files: Mapping[str, str], marks: Iterable[re.Pattern[str]]) -> list[str]:
    """The names of the YAMLs that have all of these marks."""
    marks = tuple(marks)
    return [
        name
        for name, text in files.items()
        if name.endswith(YAML) and all(mark.search(text) for mark in marks)
    ]


def named_or_first(names: Sequence[str], path: str) -> str | None:
    """The one that a call names by its path, else the first; None without any."""
    last = path.rsplit("/", 1)[-1]
    named = (one for one in names if one.rsplit("/", 1)[-1] == last)
    return next(named, next(iter(names), None))


def say_fork_keys(values: Values, unknown: Iterable[Setting], title: str) -> None:
    """That these keys, which only a fork of the trainer has, are not read."""
    if names := ", ".join(f"{one.name} {one.value}"[:60] for one in unknown):
        values.assume(f"keys of a fork of {title}, not read: {names}")


def words_of(call: TrainingCall) -> dict[str, Setting]:
    """The words of a call that set a key: `data.batch_size=2`."""
    pairs = ((word, *word.text.partition("=")) for word in call.launch.arguments)
    return {
        name: Setting(name=name, value=value, file=word.file, line=word.line)
        for word, name, equals, value in pairs
        if equals and not name.startswith("-")
    }


def merged(
    files: Mapping[str, str], name: str, call: TrainingCall | None, inside: str = ""
) -> tuple[dict[str, Setting], list[str]]:
    """The keys of a file, those of its call and of the user over them; and notes on the file.

    inside: a key below which a job's file has the configuration, whose keys lose it.
    """
    config = yaml_files.read(files[name], name)
    settings = {one.name: one for one in config.settings()}
    if inside:
        keys = {one: one.removeprefix(f"{inside}.") for one in settings}
        settings = {
            keys[one]: said.model_copy(update={"name": keys[one]}) for one, said in settings.items()
        }
    if call is not None:
        settings.update(words_of(call))
    settings.update({one.name: one for one in given_with(files).settings()})
    environment = {
        **(call.launch.environment if call is not None else {}), **given_with(files).variables
    }  # fmt: skip
    notes = [*config.notes(), *(call.notes if call is not None else ())]
    notes += _defaults(settings.values(), environment)
    return dict(_resolved(settings, environment)), notes


def _defaults(settings: Iterable[Setting], environment: Mapping[str, str]) -> list[str]:
    """A sentence on the variables that have the defaults of their references."""
    read = (_VARIABLE.fullmatch(str(one.value)) for one in settings)
    names = [one[1] for one in read if one and one[2] is not None and one[1] not in environment]
    listed = ", ".join(dict.fromkeys(names))
    return [f"variables that the environment could set have their defaults: {listed}"] * bool(names)


def _resolved(
    settings: Mapping[str, Setting], environment: Mapping[str, str]
) -> Iterator[tuple[str, Setting]]:
    """The settings with values in place of references to variables and to other keys."""
    for name, one in settings.items():
        said = one
        if variable := _VARIABLE.fullmatch(str(said.value)):
            value = environment.get(variable[1], variable[2])
            if value is not None:
                said = said.model_copy(update={"value": value.strip().strip("'\"")})
        for _ in range(_MOST_REFERENCES):
            about = _REFERENCE.fullmatch(str(said.value))
            if about is None or about[1] not in settings:
                break
            said = said.model_copy(update={"value": settings[about[1]].value})
        yield name, said
