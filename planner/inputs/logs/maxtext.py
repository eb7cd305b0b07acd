"""MaxText: the lines of its steps, and the settings that it prints at the start.

Source: src/maxtext/common/metric_logger.py and docs/guides/monitoring_and_debugging (e591f30).
"""

from __future__ import annotations

import re
from typing import ClassVar

from cost_models.package_files import table
from planner.inputs.logs.draft import Draft, Reader, number_of, whole
from planner.inputs.logs.run_log import CodeBase

_STEP = re.compile(r"completed step: (\d{1,12}), seconds: ([\d.e+-]+)")
_FLOPS = re.compile(r"TFLOP/s/device: ([\d.e+]+)")
_LOSS = re.compile(r"\bloss: ([^\s,]+)")
_CONFIG = re.compile(r"Config param (\w+): (\S+)")
SECONDS = "completed step, seconds"
FIELDS: dict[str, str] = table("planner.inputs.logs", "names.json")["maxtext"]


class MaxText(Reader):
    """Lines of the first process."""

    words: ClassVar[tuple[str, ...]] = ("completed", "Config")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.seen = False

    def take(self, number: int, process: str, text: str) -> bool:
        if (match := _CONFIG.search(text)) and match[1] in FIELDS:
            if value := whole(match[2].removesuffix(".0")):
                self.draft.set_fact(FIELDS[match[1]], value, number)
        elif (step := _STEP.search(text)) and self.draft.first_process(SECONDS, process):
            self.seen = True
            if loss := _LOSS.search(text):
                self.draft.loss(loss[1], number)
            if self.draft.step(SECONDS, int(step[1]), number_of(step[2]), number) and (
                flops := _FLOPS.search(text)
            ):
                self.draft.rate("tflops", number_of(flops[1]))
        return False

    @property
    def code_base(self) -> CodeBase | None:
        return "maxtext" if self.seen else None
