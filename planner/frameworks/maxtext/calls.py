"""Calls of MaxText's training: the config that they name, and the keys that they override."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from planner.frameworks import yaml_files
from planner.frameworks.arguments import to_set
from planner.frameworks.bash import Argument, ProgramCall, evaluate
from planner.frameworks.read_results import Setting, Unreadable
from planner.frameworks.training_calls import scripts

YAML = (".yml", ".yaml")
BASE = "base.yml"
_CALLED = re.compile(r"(?i:maxtext)[./](.*[./])?train(\.py)?$")
# Keys that decide a plan: one that a call leaves open is asked for.
_DECIDES = re.compile(
    r"model_name|max_target_length|per_device_batch_size|remat_policy|gradient_accumulation_steps|"
    r"(ici|dcn)_\w+_parallelism|(base_)?(num|emb|mlp)_\w+"
)


# A command in a variable.
_KEPT = re.compile(r"^ *\w+=\"(python3? [^\"]*axtext[^\"]*)\"", re.MULTILINE | re.IGNORECASE)


def calls(files: Mapping[str, str]) -> list[ProgramCall]:
    """The calls of MaxText's training in the first script that has some."""
    return _noted(files)[0]


def _noted(files: Mapping[str, str]) -> tuple[list[ProgramCall], Sequence[str]]:
    """The calls, and what is assumed of their script."""
    for name in scripts(files):
        if "axtext" not in files[name].lower():
            continue
        try:
            outcome = evaluate(files, name)
        except Unreadable:
            continue
        if found := [one for one in outcome.launches if _CALLED.search(one.program.text)]:
            return found, outcome.notes
        for kept in _KEPT.finditer(files[name]):  # and handed to a shell
            lines = "\n" * files[name].count("\n", 0, kept.start(1))
            inner = evaluate({**files, name: lines + kept[1]}, name)
            if found := [one for one in inner.launches if _CALLED.search(one.program.text)]:
                return found, inner.notes
    return [], ()


def settings(files: Mapping[str, str], assumed: list[str]) -> tuple[str, tuple[Setting, ...]]:
    """The file that holds the keys, and its keys with those that a call overrides.

    Raises Unreadable.
    """
    configs = [name for name in files if name.endswith(YAML)]
    found, notes = _noted(files)
    assumed += notes
    if not found:
        if not configs:
            raise Unreadable(f"there is no YAML (files: {', '.join(files) or 'none'})")
        beside = [one for one in scripts(files) if one == next(iter(files))]
        if configs[0].endswith(BASE) and beside:
            text = f"{beside[0]} has no call of MaxText's train.py: give the script that trains"
            raise Unreadable(text, beside[0])
        return configs[0], yaml_files.read(files[configs[0]], configs[0]).settings()
    if len({tuple(word.text for word in one.arguments) for one in found}) > 1:
        assumed.append(f"of {len(found)} calls of MaxText the last one is read")
    return _of_call(found[-1], files, configs, assumed)


def _of_call(
    call: ProgramCall, files: Mapping[str, str], configs: Sequence[str], assumed: list[str]
) -> tuple[str, tuple[Setting, ...]]:
    said = tuple(_overrides(call.arguments))
    _refuse_open(said)
    words = (word.text.rsplit("/", 1)[-1] for word in call.arguments)
    base = next((word for word in words if word.endswith(YAML)), BASE)
    name = next((one for one in configs if one.rsplit("/", 1)[-1] == base), None)
    if name is not None:
        return name, (*yaml_files.read(files[name], name).settings(), *said)
    if base != BASE:
        raise call.program.unreadable(f"{base} is not among the files: give it")
    assumed.append(f"{BASE} is not among the files: MaxText's own is taken")
    return call.program.file, said


def _overrides(words: Sequence[Argument]) -> Iterator[Setting]:
    """The words key=value."""
    for word in words:
        key, equals, value = word.text.partition("=")
        if equals and re.fullmatch(r"\w+", key):
            yield Setting(name=key, value=value.strip("\"'"), file=word.file, line=word.line)


def _refuse_open(said: Sequence[Setting]) -> None:
    """Raises Unreadable where a key that decides the plan has a variable without a value."""
    for one in said:
        if not one.value and one.name == "model_name":
            raise Unreadable("model_name is empty: give the model (--model)", one.file, one.line)
        if "$" in str(one.value) and _DECIDES.fullmatch(one.name):
            ask = to_set(str(one.value))
            text = f"{one.name} is {one.value}, which the files do not say: {ask}"
            raise Unreadable(text, one.file, one.line)
