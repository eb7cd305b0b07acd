"""The settings of a torchtitan configuration, from its module and the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.documents.answer import Reason
from planner.frameworks.bash import Argument
from planner.frameworks.python.static_values import Call, Unknown, Value
from planner.frameworks.read_results import Refusal, Setting, Unreadable
from planner.frameworks.torchtitan import registry

MAX_DEGREE = 1_000_000
# Sections and fields of Trainer.Config that do not affect a plan.
_OTHERS = frozenset(
    {*registry.SECTIONS, "model_spec", "hf_assets_path", "dump_folder"}
    - {"training", "parallelism", "compile"}
)
_CHECKPOINTS = {"full": "FullAC", "selective": "SelectiveAC", "memory-budget": "MemoryBudgetAC"}


@dataclass
class TrainerSettings:
    """The settings of a Trainer.Config with their places; asked: the names that were read."""

    config: Call
    file: str
    function: str = ""
    settings: list[Setting] = field(default_factory=list)
    unknown: list[Setting] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def refuse(self, text: str, name: str = "", code: str = "framework_unsupported") -> None:
        setting = next((one for one in reversed(self.settings) if one.name == name), None)
        self.refusals.append(Refusal(reason=Reason(code=code, text=text), setting=setting))

    def assume(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)

    def get(self, path: str) -> Any:
        """A field of a section; its default if it is not set.

        Raises Unreadable if its value is unknown or of another type.
        """
        self.asked.add(path)
        section, name = path.split(".")
        default = registry.document()["fields"][section][name]
        owner = self.config.kwargs.get(section)
        value = owner.kwargs.get(name, default) if isinstance(owner, Call) else default
        line = owner.lines.get(name, owner.line) if isinstance(owner, Call) else 0
        if isinstance(value, Unknown | Call):
            raise Unreadable(
                f"{path} is `{source_of(value)}`, which the files do not say: write the value out",
                self.file,
                line,
            )
        whole = isinstance(default, int) and not isinstance(default, bool)
        if whole and (not isinstance(value, int) or isinstance(value, bool)):
            raise Unreadable(f"{path} must be an integer, got {value!r}", self.file, line)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise Unreadable(f"{path} must be True or False, got {value!r}", self.file, line)
        return value

    def degree(self, name: str) -> int:
        """A parallel degree; an invalid one is refused and read as 1."""
        value = int(self.get(f"parallelism.{name}"))
        if not 1 <= value <= MAX_DEGREE:
            needed = "at least 1" if value < 1 else f"at most {MAX_DEGREE}"
            self.refuse(f"{name} is {value}, must be {needed}", f"parallelism.{name}")
            return 1
        return value


def source_of(value: Value) -> str:
    """A value that is not plain, as the file writes it."""
    return value.name if isinstance(value, Call) else str(getattr(value, "source", repr(value)))


def value_shown(value: Value) -> str:
    if isinstance(value, Call):
        return f"{value.short}(...)"
    return value.source if isinstance(value, Unknown) else str(value)


def gather_settings(trainer: TrainerSettings) -> None:
    """Record every setting of the config; those that torchtitan does not have are refused."""
    for section, owner in trainer.config.kwargs.items():
        line = trainer.config.lines.get(section, trainer.config.line)
        fields = registry.document()["fields"].get(section)
        known = section in _OTHERS or fields is not None
        if not known:
            note_unknown(trainer, section, value_shown(owner), line)
        elif fields is None or not isinstance(owner, Call):
            setting = Setting(name=section, value=value_shown(owner), file=trainer.file, line=line)
            trainer.settings.append(setting)
        else:
            for name, value in owner.kwargs.items():
                place = owner.lines.get(name, owner.line)
                path = f"{section}.{name}"
                if name not in fields:
                    note_unknown(trainer, path, value_shown(value), place)
                    continue
                setting = Setting(
                    name=path, value=value_shown(value), file=trainer.file, line=place
                )
                trainer.settings.append(setting)


def note_unknown(
    trainer: TrainerSettings, name: str, value: str, line: int, file: str = ""
) -> None:
    setting = Setting(name=name, value=value, file=file or trainer.file, line=line)
    trainer.settings.append(setting)
    trainer.unknown.append(setting)
    trainer.refuse(f"torchtitan 0.3.0 has no {name}", name)


def _typed(default: Any, text: str) -> Value:
    """The value of an option, converted to the type of its field."""
    if isinstance(default, bool):
        known = {"true": True, "false": False}
        if text.lower() not in known:
            raise ValueError("must be True or False")
        return known[text.lower()]
    if isinstance(default, int) or (default is None and re.fullmatch(r"-?\d{1,18}", text)):
        return int(text)
    if isinstance(default, float):
        return float(text)
    if isinstance(default, list):
        return text.split(",")
    return None if text == "None" else text


def apply_overrides(trainer: TrainerSettings, words: Sequence[Argument]) -> None:
    """Apply the options of the command line, which override the module."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        text = word.text.partition("=")[0]
        if text.startswith("activation-checkpoint:"):
            kind = text.partition(":")[2]
            made = None if kind == "none" else Call(f"{_CHECKPOINTS.get(kind, kind)}.Config", 0)
            trainer.config.set("activation_checkpoint", made, word.line)
            trainer.settings.append(
                Setting(name="activation_checkpoint", value=kind, file=word.file, line=word.line)
            )
        elif text.startswith("--"):
            place += _override(trainer, word, words[place : place + 1])
        elif word.known:
            trainer.refuse(f"{text!r} does not belong to an option: unrecognized arguments")
        else:
            trainer.assume(f"{word.file}:{word.line}: {text} is taken to hold no options")


def _override(trainer: TrainerSettings, word: Argument, following: Sequence[Argument]) -> bool:
    """Applies one option; whether it takes the following word, if there is one, as its value."""
    text, equals, value = word.text.partition("=")
    path = text.removeprefix("--").replace("-", "_")
    section, _, name = path.partition(".")
    fields = registry.document()["fields"].get(section)
    negated = fields is not None and name not in fields and name.startswith("no_")
    name = name.removeprefix("no_") if negated else name
    path = f"{section}.{name}" if name else section
    default = fields.get(name) if fields is not None else None
    taken = not equals and _has_value(following, default)
    if taken:
        value, equals = following[0].text, "="
        if not following[0].known:
            raise word.unreadable(f"{text} is {value}, which the files do not say")
    if section not in _OTHERS and (fields is None or name not in fields):
        note_unknown(trainer, text, value, word.line, word.file)
        return taken
    shown = value if equals else str(not negated)
    trainer.settings.append(Setting(name=path, value=shown, file=word.file, line=word.line))
    if fields is not None:
        try:
            _set(trainer, section, name, _typed(default, shown), word.line)
        except ValueError as error:
            trainer.refuse(f"{text} cannot be {shown!r}: {error}", path)
    return taken


def _set(trainer: TrainerSettings, section: str, name: str, value: Value, line: int) -> None:
    owner = trainer.config.kwargs.get(section)
    if not isinstance(owner, Call):
        owner = Call(registry.SECTIONS[section], line)
        trainer.config.set(section, owner, line)
    owner.set(name, value, line)


def _has_value(following: Sequence[Argument], default: Any) -> bool:
    """Whether the word after an option is its value; a switch takes only true or false."""
    if not following or following[0].text.startswith("--"):
        return False
    return not isinstance(default, bool) or following[0].text.lower() in ("true", "false")
