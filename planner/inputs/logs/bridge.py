"""Megatron-Bridge: the configuration that it prints as YAML before it trains.

Its keys are those of Megatron's arguments, so they are read by the same table.
"""

from __future__ import annotations

import re
from typing import ClassVar

from planner.inputs.logs.draft import Draft, Reader
from planner.inputs.logs.run_log import CodeBase

_SECTION = re.compile(r"(\w+):\s*(\S*)$")
_KEY = re.compile(r"  (\w+): ?(\S.*)$")
_YAML = re.compile(r"\s+\S|- |[\w.]+:\s*\S*$")
_MAX_LINES = 5_000  # lines of a printed configuration
SECTIONS = ("dataset", "model", "train", "ddp", "optimizer", "logger")
RENAMED = {
    "sequence_length": "seq_length",
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
}
# Sections repeat what others decide.
ONLY = {"dataset": ("sequence_length", "seq_length"), "logger": ("log_interval",)}


class Configuration(Reader):
    """The lines after a rule that are YAML; a section's own keys are indented by two blanks."""

    words: ClassVar[tuple[str, ...]] = (
        "Configuration",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.lines = 0
        self.section = ""
        self.seen = False
        self.begun = 0

    def take(self, number: int, process: str, text: str) -> bool:
        if not self.lines:
            if not self.draft.first_process("configuration", process):
                return False
            self.begun, self.lines = number, 1
            return True
        self.lines += 1
        if not _YAML.match(text) or self.lines > _MAX_LINES:
            self.lines = 0
            return False
        if match := _SECTION.fullmatch(text):
            self.section = match[1]
        elif self.section in SECTIONS and (match := _KEY.fullmatch(text)):
            self._key(match[1], match[2], number)
        return True

    def _key(self, name: str, text: str, line: int) -> None:
        if name not in ONLY.get(self.section, (name,)):
            return
        self.draft.start("the configuration", self.begun)  # others print no such section
        self.seen = True
        value = {"true": "True", "false": "False", "null": "None"}.get(text, text)
        if value != "None":
            # The first section to say it stands: the data set's length, then the model's.
            self.draft.options.setdefault(RENAMED.get(name, name), (value, line))

    @property
    def code_base(self) -> CodeBase | None:
        return "megatron-bridge" if self.seen else None
