"""NeMo: the steps that its progress lines print, and what its recipe or config says by name.

A recipe prints only what differs from a model class, so the model is not read as a whole.
"""

from __future__ import annotations

import re
from typing import ClassVar

from planner.inputs.logs.draft import FIELDS, MOST_FACTS, Draft, Reader, number_of, whole
from planner.inputs.logs.run_log import CodeBase

_STEP = re.compile(r"global_step[:=]\s*(\d{1,12})")
_ITERATION = re.compile(r"iteration (\d{1,12})/\d+")
_TIME = re.compile(r"train_step_timing in s[:=]\s*([\d.e+-]+)")
_BATCH = re.compile(r"global_batch_size[:=]\s*(\d{1,12})")
_LOSS = re.compile(r"reduced_train_loss[:=]\s*([^\s|,\]]+)")
_FLOPS = re.compile(r"TFLOPS_per_GPU[:=]\s*([\d.e+]+)")
_PEAK = re.compile(r"peak_memory_usage[:=]\s*([\d.]+)")
_KEY = re.compile(r"[\s│]*(\w+)\s*[:=]\s*'?([\w.+-]+)'?[,)]*[\s│]*")
_RANKS = re.compile(r"data parallel group ranks with context parallel combined: (\[\[[\d, \]\[]+)")
_VALIDATES = re.compile(r"Validati|.*[Vv]alidation.*it[/,]")
TIMING = "train_step_timing in s"


class Nemo(Reader):
    """Progress lines of Lightning with NeMo's timing, and printed keys of its config."""

    words: ClassVar[tuple[str, ...]] = (
        "train_step_timing", "Validation", "Validating", "validation", "checkpoint",
        "ranks", "use_distributed_optimizer", "bf16", *FIELDS,
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.seen = False
        self.facts: list[tuple[str, int | str, int]] = []

    def take(self, number: int, process: str, text: str) -> bool:
        timing = _TIME.search(text)
        step = _STEP.search(text) or _ITERATION.search(text)
        if timing and step:
            if self.draft.first_process(TIMING, process):
                self._step(int(step[1]), number_of(timing[1]), number, text)
        elif (self.seen and _VALIDATES.match(text)) or re.search(r"[Ss]av\w+ .*checkpoint", text):
            self.draft.pause()
        elif len(self.facts) == MOST_FACTS:
            return False
        elif match := _RANKS.search(text):
            self.facts.append(("accelerators", len(re.findall(r"\d+", match[1])), number))
        elif match := _KEY.fullmatch(text):
            self._key(match[1], match[2], number)
        return False

    def _key(self, name: str, text: str, line: int) -> None:
        value = whole(text)
        if name in FIELDS and value:
            self.facts.append((FIELDS[name], value, line))
        elif name == "use_distributed_optimizer" and text.lower() == "true":
            self.facts.append(("plan.zero_stage", 1, line))
        elif name == "bf16" and text.lower() == "true":
            self.facts.append(("training.precision", "bf16", line))

    def _step(self, step: int, seconds: float, line: int, text: str) -> None:
        self.seen = True
        if loss := _LOSS.search(text):
            self.draft.loss(loss[1], line)
        if batch := _BATCH.search(text):
            self.draft.samples(int(batch[1]), line)
        self.draft.step(TIMING, step, seconds, line)
        if flops := _FLOPS.search(text):
            self.draft.rate("tflops", number_of(flops[1]))
        if peak := _PEAK.search(text):
            self.draft.report_memory("max allocated", number_of(peak[1]), line)

    def close(self) -> None:
        if self.seen:
            for field, value, line in self.facts:
                self.draft.set_fact(field, value, line)

    @property
    def code_base(self) -> CodeBase | None:
        return "nemo" if self.seen else None
