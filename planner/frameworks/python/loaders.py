"""Which library loads the model of a script that has the calls of several."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.frameworks.python.scripts import Script
from planner.frameworks.python.static_values import Call
from planner.frameworks.read_results import Unreadable
from planner.frameworks.training_calls import start_of

UNSLOTH = re.compile(r"\bFast(?:\w*)Model\.from_pretrained\b")
_PLAIN = re.compile(r"\bAutoModel\w*\.from_pretrained\b")

_TRAINS = re.compile(r"Trainer\b|TrainingArguments")


def by_unsloth(files: Mapping[str, str], name: str) -> bool:
    """Whether a Python script loads a model with Unsloth.

    One that has transformers' call too is followed on its main path, with the options of what
    starts it among the files.
    """
    text = files[name]
    if UNSLOTH.search(text) is None:
        return False
    if _PLAIN.search(text) is None or _TRAINS.search(text) is None:
        return True
    loads: list[str] = []

    def seen(call: Call) -> None:
        if UNSLOTH.search(call.name) or _PLAIN.search(call.name):
            loads.append(call.name)

    start = start_of(files, name)
    words = [] if start is None else [word.text for word in start.arguments]
    try:
        Script(files, name, seen, words)
    except Unreadable:
        return True
    return not loads or UNSLOTH.search(loads[-1]) is not None
