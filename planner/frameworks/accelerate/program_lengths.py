"""The sequence length of a program that no option of its trainer states.

It stands in a constant of the program, in TRL's own script, or in the checkout of the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.frameworks.accelerate.trainer_keys import Trainer
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import Values
from planner.frameworks.named_files import FACTORY_FILE
from planner.frameworks.read_results import Setting
from planner.frameworks.training_calls import TrainingCall

_CUTOFF = re.compile(r"^\s*cutoff_len:\s*int\s*=\s*field\(\s*default\s*=\s*(\d+)", re.MULTILINE)
_TRL_SCRIPT = re.compile(r"(^|/)trl/(examples/)?scripts/(sft|dpo|reward_modeling)\.py$")
_TRL_USUAL = 1024
_CONSTANT = re.compile(
    r"^[ \t]*((?:MAX|max)_(?:(?:SEQ|seq)_)?(?:LEN|len|LENGTH|length)|CUTOFF_LEN|cutoff_len)\s*"
    r"(?::\s*int\s*)?=[ \t]*(\d{2,6})[ \t]*(?:#.*)?$",
    re.MULTILINE,
)


def of_checkout(files: Mapping[str, str]) -> int | None:
    """The default of cutoff_len in the checkout of LLaMA-Factory that a launch lies in."""
    found = _CUTOFF.search(files.get(FACTORY_FILE, ""))
    return int(found[1]) if found is not None else None


def take(values: Values, trainer: Trainer, call: TrainingCall) -> None:
    """Sets the trainer's option to the length that its program has, where nothing else says it."""
    if values.has(*trainer.length) or trainer.usual_length is not None:
        return
    if (found := _of_program(call.launch, call.files)) is not None:
        (length, whence), name = found, trainer.length[0]
        word = call.launch.program
        values.assume(f"{name} {length}: {whence}")
        said = Setting(name=f"--{name}", value=str(length), file=word.file, line=word.line)
        values.settings = {**values.settings, name: said}


def _of_program(call: ProgramCall, files: Mapping[str, str]) -> tuple[int, str] | None:
    """The length of a program, and where it is from; None where neither says one."""
    path = call.program.text
    if _TRL_SCRIPT.search(path):
        return _TRL_USUAL, "not set, as in TRL"
    name = path.rsplit("/", 1)[-1]
    stated = {(one[1], int(one[2])) for one in _CONSTANT.finditer(files.get(name, ""))}
    if len(stated) != 1:
        return None
    ((constant, length),) = stated
    return length, f"{constant} of {name}, its only length"
