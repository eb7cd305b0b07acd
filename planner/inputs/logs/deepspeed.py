"""DeepSpeed's engine: its throughput timer, the config that it prints, and the command line."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from typing import ClassVar

from cost_models.package_files import table
from planner.inputs.logs.draft import GIB, Block, Draft, Reader, Stamps, number_of, whole
from planner.inputs.logs.run_log import CodeBase
from planner.inputs.logs.steps import Rates

_STEP = re.compile(r"(?:global_step=|stop\] \d+/)(\d{1,12}), ")
_CURRENT = re.compile(r"CurrSamplesPerSec=([\d.]+)")
_MEMORY = re.compile(r"MaxMemAllocated=([\d.]+)GB")
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{1,6})\]")
_WORLD = re.compile(r"  world_size \.{2,} (\d{1,12})")
_COMMAND = re.compile(r"cmd = (.*)")
RATES = "CurrSamplesPerSec"

# Option of the examples' programs -> field.
OPTIONS: dict[str, str] = table("planner.inputs.logs", "names.json")["deepspeed"]


class DeepSpeed(Reader):
    """Timer lines are steps; the JSON gives ZeRO, precision and batch."""

    words: ClassVar[tuple[str, ...]] = (
        "CurrSamplesPerSec", "json", "world_size", "cmd", "Evaluating", "Checkpoint",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.block = Block("{", "}")
        self.rates = Rates()
        self.stamps = Stamps(draft)
        self.configured = False

    def take(self, number: int, process: str, text: str) -> bool:
        if self.block.lines:
            return self._take_block(text, number)
        if "CurrSamplesPerSec=" in text and (step := _STEP.search(text)):
            if self.draft.first_process(RATES, process):
                self._step(int(step[1]), number, text)
        elif "json = {" in text and not self.configured:
            return self.block.add("{", number)
        elif match := _WORLD.search(text):
            self.draft.set_fact("plan.dp", int(match[1]), number)
        elif match := _COMMAND.search(text):
            self._command(match[1], number)
        elif "Evaluating" in text or "Checkpoint" in text:
            self.stamps.last = None
            self.draft.pause()
        return False

    def _step(self, step: int, line: int, text: str) -> None:
        current = _CURRENT.search(text)
        if current is None or step == self.rates.last:
            return
        self.draft.step("DeepSpeed steps", step, 1.0, line)
        self.rates.take(step, number_of(current[1]), line)
        if memory := _MEMORY.search(text):
            self.draft.report_memory("max allocated", number_of(memory[1]) * GIB, line)
        self.stamps.take(step, _TIME.search(text), line)

    def _take_block(self, text: str, number: int) -> bool:
        if self.block.add(text, number):
            return True
        source, lines = self.block.taken()
        try:
            tree = json.loads(source)
        except (ValueError, RecursionError):
            return False
        self.configured = True
        self._config(tree, lines[0])
        return False

    def _config(self, tree: dict[str, object], line: int) -> None:
        zero = tree.get("zero_optimization")
        stage = zero.get("stage") if isinstance(zero, dict) else None
        values: dict[str, object] = {
            "plan.zero_stage": stage if type(stage) is int else None,
            "training.global_batch_size": tree.get("train_batch_size"),
            "plan.micro_batch_size": tree.get("train_micro_batch_size_per_gpu"),
        }
        for precision in ("bf16", "fp16"):
            part = tree.get(precision)
            if isinstance(part, dict) and part.get("enabled") is True:
                values["training.precision"] = precision
        for field, value in values.items():
            if isinstance(value, str) or (type(value) is int and value >= 0):
                self.draft.set_fact(field, value, line)

    def _command(self, text: str, line: int) -> None:
        try:
            arguments = shlex.split(text)
        except ValueError:
            return
        for name, value in pairwise(arguments):
            if name in OPTIONS:
                number = whole(value)
                self.draft.set_fact(OPTIONS[name], value if number is None else number, line)

    def close(self) -> None:
        self.draft.series.pop("DeepSpeed steps", None)
        batch = self.draft.number("training.global_batch_size")
        if batch:
            for step, rate, line in self.rates:
                if rate > 0:
                    self.draft.step(RATES, step, batch / rate, line)

    @property
    def code_base(self) -> CodeBase | None:
        return "deepspeed" if self.rates or self.configured else None
