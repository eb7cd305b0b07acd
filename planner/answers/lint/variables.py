"""Environment variables of a launch that are out of date, left over from debugging, or harmful.

From torch 2.13's ProcessGroupNCCL, NCCL's manual (its variables under "Debugging" are not to stay
in scripts), CUDA's programming guide, and `LanguageModule._set_attention_backend` of Megatron-Core.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cost_models.package_files import table
from planner.answers.lint.findings import Severity
from planner.answers.lint.linted_launch import Place
from planner.frameworks import training_calls
from planner.frameworks.bash import evaluate
from planner.frameworks.read_results import Reading, Unreadable


@dataclass(frozen=True)
class Stale:
    """A variable that should not be set; values: if not empty, only these (in lower case)."""

    name: str
    why: str
    severity: Severity
    values: frozenset[str] = frozenset()


STALE = tuple(
    Stale(row["name"], row["why"], row["severity"], frozenset(row.get("values", ())))
    for row in table(__package__ or "", "option_facts.json")["stale_variables"]
)
# Transformer Engine's switches, and the values that each attention backend of Megatron-Core needs.
_KERNELS: dict[str, tuple[str, str, str]] = {
    "flash": ("1", "0", "0"),
    "fused": ("0", "1", "0"),
    "unfused": ("0", "0", "1"),
    "local": ("0", "0", "0"),
    "auto": ("1", "1", "1"),
}
_SWITCHES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")


@dataclass(frozen=True)
class Variable:
    """A variable that a launch sets, of a script and the files that it may read."""

    name: str
    value: str
    script: str
    files: Mapping[str, str] = field(repr=False)

    def place(self) -> Place:
        """The last line that sets it, in the script or in a file that it reads; 0: none alone."""
        sets = re.compile(rf"^[^#\n]*(?<![\w$]){self.name}=", re.MULTILINE)
        others = (one for one in self.files if one != self.script)
        for file in (self.script, *others):
            text = self.files[file]
            if places := [match.end() for match in sets.finditer(text)]:
                return Place(file, text.count("\n", 0, places[-1]) + 1, self.name)
        return Place(self.script, 0, self.name)


def variables(files: Mapping[str, str]) -> Iterator[Variable]:
    """The environment of the launches of the scripts among the files.

    Files that are not valid bash are skipped: their readers found the launch in another way.
    """
    for name in training_calls.scripts(files):
        found: dict[str, str] = {}
        try:
            launches = evaluate(files, name).launches
        except Unreadable:
            continue
        for launch in launches:
            found |= launch.environment
        for variable, value in found.items():
            yield Variable(variable, value, name, files)


def stale(variable: Variable) -> Stale | None:
    """The row of STALE that the variable falls under."""
    for row in STALE:
        if row.name == variable.name and (not row.values or variable.value.lower() in row.values):
            return row
    return None


def refused(variable: Variable, reading: Reading, core: bool) -> str:
    """Why the framework stops at the variable; empty where it does not.

    core: the framework runs on Megatron-Core 0.10 or later.
    """
    if not core or variable.name not in _SWITCHES or not reading.written:
        return ""
    option = reading.find("--attention-backend") or reading.find("attention_backend")
    backend = str(option.value) if option is not None else "auto"
    if backend not in _KERNELS:
        return ""
    wanted = _KERNELS[backend][_SWITCHES.index(variable.name)]
    if variable.value == wanted:
        return ""
    return (
        f"--attention-backend {backend} asserts {variable.name}={wanted}, and it is "
        f"{variable.value}: leave it to the option"
    )
