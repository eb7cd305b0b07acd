"""Batches, lengths and degrees that a launch's documents state and that its reading does not hold.

It knows no reader: it compares the text with what was read, so that a value that a reader passes
over without a word is said all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from planner.frameworks import yaml_files
from planner.frameworks.read_results import COSTED_AS_TWICE, Reading, Setting, Unreadable

DOCUMENTS = (".yaml", ".yml", ".json")


def _of_batch(reading: Reading) -> set[int]:
    batch, micro, dp = (
        reading.training.global_batch_size, reading.plan.micro_batch_size, reading.plan.dp
    )  # fmt: skip
    single = reading.training.loss == "next_token"
    pairs = 1 if single and COSTED_AS_TWICE not in " ".join(reading.assumed) else 2
    return {micro, micro // pairs, batch, batch // pairs, batch // dp, batch // max(dp * micro, 1)}


# Names, dotted, that say the same in every trainer -> the numbers of a reading that they may be.
_MEANT: tuple[tuple[re.Pattern[str], Callable[[Reading], set[int]]], ...] = (
    (
        re.compile(
            r"(^|\.)(per_device_train_batch_size|(train_)?micro_batch_size(_per_gpu)?|"
            r"gradient_accumulation_steps|(train_)?global_batch_size)$"
        ),
        _of_batch,
    ),
    (
        re.compile(r"(^|\.)(max_seq_length|sequence_len|cutoff_len|seq_length)$"),
        lambda reading: {reading.training.seq_length},
    ),
    (
        re.compile(r"(^|\.)(lora_(r|rank)|(\w+_)?(lora|peft)\w*\.r(ank)?)$"),
        lambda reading: {reading.training.lora_rank},
    ),
    (
        re.compile(r"(^|\.)(tensor|pipeline|context|expert)(_model)?_parallel_size$"),
        lambda reading: {
            reading.plan.tp, reading.plan.pp, reading.plan.cp, reading.plan.ep, reading.plan.etp
        },
    ),
)  # fmt: skip
# Parts of a launch that are not what it trains.
_ASIDE = re.compile(
    r"eval|val(id|_|\.)|test|infer|generat|rollout|vllm|(^|\.)ref|critic|reward|teacher|draft|"
    r"megatron|dtensor|automodel",
    re.IGNORECASE,
)
# What decides whether there are adapters, whatever their sizes.
_SWITCHED = re.compile(r"use_(peft|lora)|finetuning_type|(train|tuner|sft)_type|adapter")
_NUMBER = re.compile(r"\d{1,9}")
_MOST_NAMED = 5


def left_out(files: Mapping[str, str], reading: Reading) -> list[str]:
    """A sentence on such values of the files that are nowhere in a reading; empty without any.

    A name that stands elsewhere with another value is overridden.
    """
    others = {(_last(one.name), one.file) for one in reading.settings if _overrides(one, files)}
    stated = [(one, held(reading)) for one, held in _stated(files)]
    taken = {one.name for one, held in stated if int(str(one.value)) in held}
    found = [
        f"{one.name} {one.value} ({one.file}:{one.line})"
        for one, _ in stated
        if one.name not in taken
        and not _ASIDE.search(one.file)
        and not any(key == _last(one.name) and file != one.file for key, file in others)
    ]
    return [f"stated and not read: {', '.join(found[:_MOST_NAMED])}"] if found else []


def _overrides(setting: Setting, files: Mapping[str, str]) -> bool:
    """Whether a setting overrides what a document states: of a program, where it writes it out.

    Else it may be a default that the document is there to change.
    """
    if not setting.file.endswith((".py", ".ipynb")):
        return True
    lines = files.get(setting.file, "").splitlines()[setting.line - 1 : setting.line]
    written = rf"{re.escape(_last(setting.name))}\s*=\s*[\"']?{re.escape(str(setting.value))}\b"
    return any(re.search(written, one) for one in lines)


def _stated(files: Mapping[str, str]) -> Iterator[tuple[Setting, Callable[[Reading], set[int]]]]:
    """Such values, with what they may be of a reading."""
    for name, text in files.items():
        if not name.endswith(DOCUMENTS):
            continue
        try:
            settings = yaml_files.read(text, name).settings()
        except Unreadable:
            continue
        switched = _SWITCHED.search(text)
        for one in settings:
            held = next((held for match, held in _MEANT if match.search(one.name)), None)
            aside = _ASIDE.search(one.name) or (switched and "lora" in one.name)
            if held is not None and not aside and _NUMBER.fullmatch(str(one.value)):
                yield one, held


def _last(name: str) -> str:
    return name.lstrip("-").replace("-", "_").rpartition(".")[2]
