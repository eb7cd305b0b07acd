"""Hugging Face's Trainer and accelerate: progress bars, closing metrics, trainer_state.json.

LLaMA-Factory's trainer_log.jsonl says the same as its bar.

Their clock has whole seconds, so that a report is made of as many steps as take 100 s.  Where only
the closing metrics are there, the time is their mean over the run, warm-up and evaluation within.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, ClassVar

from cost_models.package_files import table
from planner.huggingface import ModelImportError, model_from_config
from planner.inputs.logs.draft import Block, Draft, Reader, number_of, whole
from planner.inputs.logs.run_log import CodeBase, StepTime
from planner.inputs.logs.steps import LONGEST_S, MOST, SHORTEST_S

_BAR = re.compile(r"\s(\d{1,12})/(\d{1,12}) \[(?:(\d{1,12}):)?(\d{1,12}):(\d\d)<")
# A line of LLaMA-Factory's trainer_log.jsonl.
_LOGGED = re.compile(
    r'"current_steps": (\d{1,12}), "total_steps": (\d{1,12}),.*'
    r'"elapsed_time": "(?:(\d{1,4}) days?, )?(\d{1,4}):(\d\d):(\d\d)"'
)
_SAID = re.compile(
    r"(Num examples|Instantaneous batch size per device|Total train batch size|Num processes"
    r"|Gradient Accumulation steps|Total optimization steps|Mixed precision type)"
    r"[^=:]*[=:] ?([\w,]+)"
)
_METRIC = re.compile(
    r"(?:[\"']|^\s*)(train_runtime|train_steps_per_second|train_samples_per_second|global_step"
    r"|num_input_tokens_seen|train_batch_size|max_steps)(?:[\"']: ?[\"']?| +[:=] +)([\d.e+:-]+)"
)
_LOSS = re.compile(r"[\"']loss[\"']: ?[\"']?(NaN|nan|inf|Infinity)")
# A report of the Trainer, and what ms-swift adds to it.
_REPORT = re.compile(r"""\{["']loss["']:.*["']learning_rate["']:""")
_STEPS = re.compile(r"""["']global_step/max_steps["']: ["']\d{1,12}/(\d{1,12})["']""")
_OVERRIDES = re.compile(r"Overriding config: (.*)|config_overrides[ =]([\w=,.]+)")
TICKS_S = 100.0  # one tick is then 1 %
BAR = "progress bar"
FIELDS: dict[str, str] = table("planner.inputs.logs", "names.json")["trainer"]


def _seconds(text: str) -> float:
    """A number, or hours, minutes and seconds, as Trainer.log_metrics prints a time."""
    parts = [number_of(part) for part in text.split(":")]
    return sum(part * 60.0**power for power, part in enumerate(reversed(parts)))


class Trainer(Reader):
    """Lines of the Trainer, of accelerate's examples, and of the state that the Trainer saves."""

    words: ClassVar[tuple[str, ...]] = (
        "it", "batch", "Num", "optimization", "Accumulation", "train_runtime",
        "train_steps_per_second", "train_batch_size", "global_step", "max_steps", "loss", "Model",
        "current_steps", "Overriding", "config_overrides", "num_input_tokens_seen", "precision",
        "environment",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.block = Block("{", "}")
        self.first = self.total = self.bar = 0
        self.last: tuple[int, float] | None = None
        self.marked: tuple[int, float] | None = None
        self.done = self.accelerate = False
        self.metrics: dict[str, tuple[float, int]] = {}
        self.config: dict[str, Any] | None = None
        self.overrides = ""
        self.accumulated = 1

    def take(self, number: int, process: str, text: str) -> bool:
        if self.block.lines:
            return self._take_block(text, number)
        if "Model config " in text and text.rstrip().endswith("{"):
            return self.block.add("{", number)
        for bar in _BAR.finditer(text):  # carriage returns may have gone
            self.bar = int(bar[2])
            self._progress(bar, number)
        self.total = self.total or self._total(text)
        if logged := _LOGGED.search(text):
            self._logged(logged, number)
        if match := _SAID.search(text):
            self._take_banner(match[1], match[2], number)
        for name, value in _METRIC.findall(text):
            self.metrics.setdefault(name, (_seconds(value), number))
        if match := _LOSS.search(text):
            self.draft.loss(match[1], number)
        if match := _OVERRIDES.search(text):
            self.overrides = match[1] or match[2] or ""
        self.accelerate = self.accelerate or "Distributed environment" in text
        return False

    def _total(self, text: str) -> int:
        """The steps of the run, by ms-swift's report or by the bar at which a loss is reported."""
        if match := _STEPS.search(text):
            return int(match[1])
        return self.bar if _REPORT.search(text) else 0

    def _take_banner(self, name: str, text: str, line: int) -> None:
        value: int | str | None = (
            whole(text.rstrip(",")) if name != "Mixed precision type" else text
        )
        if name == "Total optimization steps" and value:
            self.total = self.total or int(value)
        elif name == "Gradient Accumulation steps" and value:
            self.accumulated = int(value)
        elif name in FIELDS and value:
            self.draft.set_fact(FIELDS[name], value, line)

    def _progress(self, bar: re.Match[str], number: int) -> None:
        if int(bar[2]) == self.total and not self.done:
            hours, minutes, seconds = (int(part or 0) for part in bar.groups()[2:])
            self._bar(int(bar[1]), hours * 3600.0 + minutes * 60.0 + seconds, number)

    def _logged(self, line: re.Match[str], number: int) -> None:
        days, hours, minutes, seconds = (int(part or 0) for part in line.groups()[2:])
        self.total = self.total or int(line[2])
        elapsed = ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds
        self._bar(int(line[1]), elapsed, number)

    def _bar(self, step: int, elapsed: float, line: int) -> None:
        if self.last is not None and step < self.last[0]:
            self.done = True  # the bar of another process
            return
        self.last = step, elapsed
        if self.marked is None:
            self.marked = step, elapsed
            return
        steps, seconds = step - self.marked[0], elapsed - self.marked[1]
        if steps > 0 and seconds >= TICKS_S:
            # The basis numbers single steps: a report of many stands for as many of them.
            self.draft.step(BAR, step, seconds / steps, line)
            self.marked = step, elapsed

    def _take_block(self, text: str, number: int) -> bool:
        if self.block.add(text, number):
            return True
        source, lines = self.block.taken()
        with suppress(ValueError, RecursionError):
            self.config, self.first = json.loads(source), lines[0]
        return False

    def close(self) -> None:
        self._model()
        if "gradient_checkpointing=true" in self.overrides.lower():
            self.draft.set_fact("plan.recompute", "full", 0)
        runtime, line = self.metrics.get("train_runtime", (0.0, 0))
        printed = self.metrics.get("global_step", (0.0, 0))[0]
        steps = int(printed) if 1 <= printed < MOST else self.total
        micro, where = self.metrics.get("train_batch_size", (0.0, 0))
        if 1 <= micro < MOST:
            self.draft.set_fact("plan.micro_batch_size", int(micro), where)
        each = (self.draft.number("plan.micro_batch_size") or 0) * self.accumulated
        batch = self.draft.number("training.global_batch_size") or 0
        if self.code_base and each and batch and batch % each == 0:
            self.draft.set_fact("plan.dp", batch // each, 0)
        rate = self.metrics.get("train_steps_per_second", (0.0, 0))[0]
        if not steps and 0 < rate * runtime < MOST:
            steps = round(rate * runtime)
        if steps > 0 and SHORTEST_S <= runtime / steps <= LONGEST_S:
            self.draft.means.append(
                StepTime(
                    seconds=runtime / steps,
                    steps=steps,
                    basis=f"train_runtime over all steps (line {line})",
                )
            )
            tokens = self.metrics.get("num_input_tokens_seen", (0.0, 0))[0]
            if tokens > 0:
                self.draft.rate("tokens", tokens / runtime)

    def _model(self) -> None:
        if self.config is None:
            return
        config = dict(self.config)
        for pair in self.overrides.split(","):
            name, _, value = pair.partition("=")
            if name in config and (number := whole(value)) is not None:
                config[name] = number
        try:
            model = model_from_config(config).model
        except ModelImportError as error:
            self.draft.assume(f"its model config is not read: {error}")
            return
        for name, value in model.model_dump(mode="json", exclude_defaults=True).items():
            plain = isinstance(value, (bool, int, float, str))
            text = value if plain else json.dumps(value)
            self.draft.set_fact(f"model.{name}", text, self.first)

    @property
    def code_base(self) -> CodeBase | None:
        if self.accelerate:
            return "accelerate"
        return "trainer" if self.total or self.metrics else None
