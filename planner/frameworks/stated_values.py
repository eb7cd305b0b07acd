"""Batches, lengths and degrees that a document of a launch states and that its reading does not hold.

It knows no reader: it compares the text with what was read, so that a value that a reader passes
over without a word is said all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from planner.frameworks import yaml_files
from planner.frameworks.read_results import Reading, Setting, Unreadable

DOCUMENTS = (".yaml", ".yml", ".json")
# Keys, without those before them, that say the same in every trainer.
_KEYS = re.compile(
    r"per_device_train_batch_size|(train_)?micro_batch_size(_per_gpu)?|gradient_accumulation_steps|"
    r"(train_)?global_batch_size|max_seq_length|sequence_len|cutoff_len|seq_length|lora_(r|rank)|"
    r"(tensor|pipeline|context|expert)(_model)?_parallel_size"
)
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

    A key that stands elsewhere with another value is overridden.
    """
    others = {(_last(one.name), one.file) for one in reading.settings}
    held, stated = set(_held(reading)), list(_stated(files))
    taken = {one.name for one in stated if int(str(one.value)) in held}  # of several documents
    found = [
        f"{one.name} {one.value} ({one.file}:{one.line})"
        for one in stated
        if one.name not in taken
        and not any(key == _last(one.name) and file != one.file for key, file in others)
    ]
    return [f"stated and not read: {', '.join(found[:_MOST_NAMED])}"] if found else []


def _stated(files: Mapping[str, str]) -> Iterator[Setting]:
    for name, text in files.items():
        if not name.endswith(DOCUMENTS) or not _KEYS.search(text) or _ASIDE.search(name):
            continue
        try:
            settings = yaml_files.read(text, name).settings()
        except Unreadable:
            continue
        switched = _SWITCHED.search(text)
        for one in settings:
            if switched and _last(one.name).startswith("lora"):
                continue
            known = _KEYS.fullmatch(_last(one.name)) and not _ASIDE.search(one.name)
            if known and _NUMBER.fullmatch(str(one.value)):
                yield one


def _held(reading: Reading) -> Iterator[int]:
    """The numbers of a reading that such a key may stand for."""
    plan, training = reading.plan, reading.training
    replicas, micro = plan.dp, plan.micro_batch_size
    pairs = 1 if training.loss == "next_token" else 2
    yield from (plan.tp, plan.pp, plan.cp, plan.ep, training.seq_length, training.lora_rank)
    yield from (micro, micro // pairs, training.global_batch_size)
    yield from (training.global_batch_size // pairs, training.global_batch_size // replicas)
    yield training.global_batch_size // max(replicas * micro, 1)


def _last(name: str) -> str:
    return name.lstrip("-").replace("-", "_").rpartition(".")[2]
