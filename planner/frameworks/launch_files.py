"""The files of a launch, and the values that a user gives where the files leave them open."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cost_models.spec import ModelSpec
from planner.frameworks.read_results import Setting

# The pseudo-file of settings that the user gave.
SET = "--set"
# The given value that selects a config function in a Python file.
CONFIG = "--config"


@dataclass(frozen=True)
class GivenValues:
    """The values that a user gives for a launch in addition to its files.

    values: by name: variables of the environment (EP), positional parameters (10), options of the
    training program (--vocab-size) and keys of a config (tokens.micro_batch_size).
    arguments: of the script, in order.  model: the model, whatever the files say.  model_notes:
    what is assumed of it.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    model: ModelSpec | None = None
    model_notes: tuple[str, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The values whose names can be environment variables."""
        return {k: v for k, v in self.values.items() if re.fullmatch(r"[A-Za-z_]\w*", k, re.ASCII)}

    @property
    def positional(self) -> dict[int, str]:
        """The parameters of the script by their number, from 1."""
        numbered = dict(enumerate(self.arguments, 1))
        return numbered | {int(k): v for k, v in self.values.items() if re.fullmatch(r"\d{1,3}", k)}

    def settings(self) -> tuple[Setting, ...]:
        """The values as settings of the pseudo-file SET."""
        return tuple(
            Setting(name=name, value=value, file=SET, line=0) for name, value in self.values.items()
        )

    def unused(self, files: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
        """Given variables that no file uses, with the nearest names that a file uses.

        Names in capitals are variables of the environment; others may be keys with a default.
        """
        known = {
            name for text in files.values() for name in re.findall(r"\$\{?(\w+)", text, re.ASCII)
        }
        for name in filter(str.isupper, self.variables):
            if not any(re.search(rf"\b{name}\b", text) for text in files.values()):
                yield name, difflib.get_close_matches(name[:100], sorted(known), 1, 0.6)


class LaunchFiles(dict[str, str]):
    """The text of each file by its name, and the given values."""

    def __init__(self, files: Mapping[str, str], given: GivenValues | None = None) -> None:
        super().__init__(files)
        self.given = given or GivenValues()


def given_with(files: Mapping[str, str]) -> GivenValues:
    """The values given with the files."""
    return files.given if isinstance(files, LaunchFiles) else GivenValues()
