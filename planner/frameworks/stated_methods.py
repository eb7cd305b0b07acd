"""Trainings on pairs or of adapters that a launch names and that its reading does not have.

It knows no reader: forks name their trainers, options and programs after the method, so what a
reader passes over without a word is said all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from planner.frameworks.read_results import COSTED_AS_TWICE, Reading, Setting

_METHOD = r"(?:dpo|ipo|kto|orpo|simpo|cpo|bco|rlhf|reward|preference)"
_METHODS = re.compile(
    rf"[\w.-]*?(?<![a-z]){_METHOD}(?![a-z])[\w.-]*|[a-z]{{1,5}}[dkc]po", re.IGNORECASE
)
# Options whose value is the method, and those that switch one on.
_CHOOSES = re.compile(r"(.*[._])?(task|stage|mode|method|algorithm|algo|objective|loss(_type)?)")
_SWITCH = re.compile(rf"(use_|do_|is_)?{_METHOD}(_training|_mode)?")
_COSTED = (
    "names a training on pairs: costed as one on single sequences, without pairs and without a "
    "reference model"
)
# What a reader says of it itself.
_TOLD = re.compile(rf"{re.escape(COSTED_AS_TWICE)}|\bpairs?\b|costed as training on the next token")
_ON = ("true", "yes", "1", "none", "")
# What stands between the words of a call, in a script.
_BETWEEN = re.compile(r"[\s\"'\\;&|()]+")
_LONGEST = 200  # characters of an option's value, or of a program's name
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".job", ".qsub")


_ADAPTS = re.compile(r"^[^#\n]*\b(get_peft_model|PeftModel\.from_pretrained)\(", re.MULTILINE)
_OFF = ("false", "no", "0", "none", "full")
_MOST_CALLS = 50
_FAR = 40  # lines above a call in which its condition is looked for
_DECIDES = re.compile(r"lora|peft|adapter(?!_name)|finetuning_type|tuner|train_type", re.IGNORECASE)


def unsaid(files: Mapping[str, str], reading: Reading) -> list[str]:
    """Sentences on the methods that the launch names, where neither plan nor notes have them."""
    return [*_pairs(files, reading), *_adapters(files, reading)]


def _adapters(files: Mapping[str, str], reading: Reading) -> list[str]:
    """Of a program that makes adapters, where no option decides whether it does."""
    said = (*reading.settings, *reading.unread, *reading.unknown)
    written = "\n".join(files.values())  # a reader adds options of its own
    off = (
        one.name
        for one in said
        if str(one.value).lower() in _OFF and one.name.lstrip("-") in written
    )
    told = any(_DECIDES.search(text) for text in (*off, *reading.assumed))
    if reading.training.lora_rank or told:
        return []
    programs = {one.file for one in said if one.file.endswith(".py")}
    found = ((name, _unswitched(files.get(name, ""))) for name in sorted(programs))
    return [
        f"{name} has {call}, which was not reached: all weights are taken to be trained"
        for name, call in found
        if call
    ]


def _unswitched(program: str) -> str:
    """A call that makes adapters, but none that an option for them decides; "" without one."""
    for call in islice(_ADAPTS.finditer(program), _MOST_CALLS):
        indent = len(call[0]) - len(call[0].lstrip())
        above = reversed(program[: call.start()].rsplit("\n", _FAR)[1:])
        outer = (line for line in above if line.strip() and _indent(line) < indent)
        if not _DECIDES.search(next(outer, "")):
            return call[1]
    return ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _pairs(files: Mapping[str, str], reading: Reading) -> list[str]:
    """A sentence on a training on pairs that an option or the program's name says."""
    if reading.training.loss != "next_token" or _TOLD.search(" ".join(reading.assumed)):
        return []
    named = next(iter((*_of_options(reading), *_of_programs(files))), None)
    return [f"{named} {_COSTED}"] if named is not None else []


def _of_options(reading: Reading) -> Iterator[str]:
    for one in (*reading.settings, *reading.unread, *reading.unknown):
        name = one.name.lstrip("-").replace("-", "_").lower()
        value = str(one.value).lower()[:_LONGEST]
        chosen = _CHOOSES.fullmatch(name) and _METHODS.fullmatch(value)
        if chosen or (_SWITCH.fullmatch(name) and value in _ON):
            yield _shown(one)


def _shown(setting: Setting) -> str:
    return f"{setting.name} {setting.value}" if setting.value is not None else setting.name


def _called(script: str) -> Iterator[str]:
    """The Python programs among the words of a script."""
    for line in script.splitlines():
        if not line.lstrip().startswith("#"):
            yield from (word for word in _BETWEEN.split(line) if word.endswith(".py"))


def _of_programs(files: Mapping[str, str]) -> Iterator[str]:
    """The file that was given, or of a script the program that it calls, if it is one alone."""
    first, text = next(iter(files.items()))
    called = list(_called(text)) if first.endswith(_SCRIPTS) else [first]
    names = {one.rsplit("/", 1)[-1] for one in called}
    if len(names) == 1 and _METHODS.fullmatch(next(iter(names)).removesuffix(".py")[:_LONGEST]):
        yield next(iter(names))
