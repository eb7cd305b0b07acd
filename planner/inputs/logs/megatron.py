"""Megatron-LM, and what prints as it does: Megatron-DeepSpeed, MindSpeed, Megatron-Bridge.

Its argument block becomes the options that would have been given, and its iteration lines steps.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import ClassVar

import numpy as np

from planner.frameworks.arguments import known_arguments
from planner.frameworks.megatron.reader import MINDSPEED_OPTIONS
from planner.inputs.logs.draft import MIB, MOST_LINES, Draft, Reader, number_of, whole
from planner.inputs.logs.run_log import CodeBase, refused
from planner.inputs.logs.steps import MOST

_ARGUMENT = re.compile(r"\s{0,8}(\w+) \.{2,}\s?(.*?)\s*$")
_WORLD = re.compile(
    r"using world size: (\d{1,12})(?:,| and) .*?(?:tensor-)?model-parallel[ -]size: (\d{1,12})"
)
_VOCABULARY = re.compile(r"> padded vocab \(size: (\d{1,12})\)")
_MICRO_BATCHES = re.compile(r"setting number of micro-?batches to constant (\d{1,12})")
_ITERATION = re.compile(r"iteration[ =]\s*(\d{1,12})/\s*(\d{1,12})\s*\|")
_ELAPSED = re.compile(
    r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?(ms|s)\)?[:=]\s*([\d.,eE+]+|nan|inf)"
)
_BATCH = re.compile(r"glob?al[ _]batch[ _]size[:=]\s*(\d{1,12})")
_LENGTH = re.compile(r"actual[ _]seqlen[:=]\s*(\d{1,12})")
_RATE = re.compile(
    r"tokens[-_]per[-_](?:gpu[-_]per[-_]second|second[-_]per[-_]gpu)\w*[:=]\s*([\d.]+)"
)
_LOSS = re.compile(r"\blm[- ]loss[:=]\s*([^\s|]+)|\|\s*loss[:=]\s*([^\s|]+)")
_BAD = re.compile(r"number[ _]of[ _](skipped|nan)[ _]iterations[:=]\s*(\d{1,12})")
_FLOPS = re.compile(
    r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs|tflops)[:=]\s*([\d.]+)"
    r"|GPU utilization:\s*([\d.]+)\s*MODEL_TFLOP/s/GPU"
)
_MEMORY = re.compile(
    r"\(after \d+ iterations\) memory \((MB|GB)\)|max (allocated|reserved):\s*([\d.]+)"
)
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[\].,]")
# Evaluations and checkpoints take their part of the clock; another unit is a thousand times off.
_UNIT_FACTOR = 30.0
_PAUSES = (
    "validation loss at",
    "saving checkpoint at",
    "successfully saved checkpoint",
    "validation at iteration",
)
BLOCK = "the argument block"
_SIZES = ("global_batch_size", "seq_length")
ELAPSED = "elapsed time per iteration"


@cache
def _known_options() -> frozenset[str]:
    """Options that Megatron-LM has too, of today or of old."""
    known = known_arguments("planner.frameworks.megatron")["flags"]
    return frozenset({"--variable-seq-lengths", *known})


class Arguments(Reader):
    """The argument block, one option a line between two rules."""

    words: ClassVar[tuple[str, ...]] = (
        "arguments", "world", "padded", "microbatches", "micro",
        "mindspeed", "MindSpeed", "mindspeed_llm",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.open = self.mindspeed = False

    def take(self, number: int, process: str, text: str) -> bool:
        if self.open:
            return self._argument(number, text)
        if "-- arguments --" in text:
            if self.draft.first_process("arguments", process):
                self.draft.start(BLOCK, number)
                self.open = True
            return self.open
        if match := _WORLD.search(text):
            self.draft.set_fact("accelerators", int(match[1]), number)
            self.draft.set_fact("plan.tp", int(match[2]), number)
        elif match := _VOCABULARY.search(text):
            self.draft.options.setdefault("vocab_size", (match[1], number))
            if self.draft.options["vocab_size"][0] == "None":
                self.draft.options["vocab_size"] = match[1], number
        elif match := _MICRO_BATCHES.search(text):
            self.draft.micro_batches = int(match[1])
        self.mindspeed = self.mindspeed or "indspeed" in text.replace("S", "s")
        return False

    def _argument(self, number: int, text: str) -> bool:
        match = _ARGUMENT.fullmatch(text)
        if match:
            self.draft.options.setdefault(match[1], (match[2], number))
        ends = "end of arguments" in text or _ITERATION.search(text)
        self.open = not ends and number < self.draft.started[BLOCK] + MOST_LINES
        return self.open

    def close(self) -> None:
        interval, _ = self.draft.options.get("log_interval", ("0", 0))
        if ELAPSED in self.draft.series:
            self.draft.series[ELAPSED].interval = whole(interval) or 0
        size, line = self.draft.options.get("world_size", ("", 0))
        if whole(size):
            self.draft.set_fact("accelerators", int(size), line)

    @property
    def code_base(self) -> CodeBase | None:
        options = self.draft.options
        if options.get("deepspeed", ("False", 0))[0] == "True":
            return "megatron-deepspeed"
        named = {f"--{name.replace('_', '-')}" for name in options}
        if self.mindspeed or named & MINDSPEED_OPTIONS - _known_options():
            return "mindspeed" if ELAPSED in self.draft.series else None
        return "megatron-lm" if BLOCK in self.draft.started else None


class Iterations(Reader):
    """Iteration lines, memory reports, evaluations and checkpoints."""

    words: ClassVar[tuple[str, ...]] = (
        "iteration", "GPU", "allocated", "validation", "saving",
        "successfully",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.seen = self.bridge = self.deepspeed = False
        self.stamps: list[tuple[int, datetime, int]] = []  # of the first and the last step

    def take(self, number: int, process: str, text: str) -> bool:
        match = _ITERATION.search(text)
        elapsed = _ELAPSED.search(text)
        if match and elapsed:
            if self.draft.first_process(ELAPSED, process):
                self._step(int(match[1]), elapsed, text, number)
        elif "max allocated" in text:
            self._memory(text, number)
        elif any(mark in text for mark in _PAUSES):
            self.draft.pause()
        elif "MODEL_TFLOP" in text and (flops := _FLOPS.search(text)):
            self.bridge = True
            self.draft.rate("tflops", number_of(flops[2] or flops[1]))
        return False

    def _step(self, step: int, elapsed: re.Match[str], text: str, line: int) -> None:
        self.seen = True
        # Only Megatron-DeepSpeed counts tokens there, and tells the length of the curriculum.
        self.deepspeed = self.deepspeed or "consumed_tokens" in text or "consumed tokens" in text
        if length := _LENGTH.search(text):
            self.draft.set_fact("training.seq_length", int(length[1]), line)
        if stamp := _STAMP.search(text):
            with suppress(ValueError):
                self.stamps[1:] = [(step, datetime.fromisoformat(stamp[1]), line)]
        bad = any(int(count) for _, count in _BAD.findall(text))
        seconds = number_of(elapsed[2].rstrip(".")) * (1e-3 if elapsed[1] == "ms" else 1.0)
        loss = _LOSS.search(text)
        if loss:
            self.draft.loss(loss[1] or loss[2], line)
        if batch := _BATCH.search(text):
            self.draft.samples(int(batch[1]), line)
        self._ranks(text, seconds, line)
        if self.draft.step(ELAPSED, step, seconds, line, bad) and (flops := _FLOPS.search(text)):
            self.draft.rate("tflops", number_of(flops[1] or flops[2]))

    def _ranks(self, text: str, seconds: float, line: int) -> None:
        """The number of accelerators, from the tokens of a step and the rate of one of them."""
        batch, length = (self.draft.number(f"training.{f}") for f in _SIZES)
        rate = _RATE.search(text)
        if rate and batch and length and seconds > 0 and number_of(rate[1]) > 0:
            ranks = batch * length / seconds / number_of(rate[1])
            if 1 <= ranks < MOST:
                self.draft.set_fact("accelerators", round(ranks), line)

    def close(self) -> None:
        """Raise RequestError where the clock of the lines says another unit than their times."""
        series = self.draft.series.get(ELAPSED)
        if series is None or len(self.stamps) < 2:
            return
        (first, start, _), (last, end, line) = self.stamps
        seconds, step = (end - start).total_seconds(), float(np.median(series.seconds))
        if last <= first or seconds < 10.0 or step <= 0.0:
            return
        wall = seconds / (last - first)
        if not 1 / _UNIT_FACTOR < wall / step < _UNIT_FACTOR:
            detail = f"line {line}: a step takes {step:g} s by its time and {wall:g} s by the time "
            raise refused("unit", detail + "stamps: one of them is in another unit", step)

    def _memory(self, text: str, line: int) -> None:
        unit = MIB
        for scale, quantity, amount in _MEMORY.findall(text):
            if scale:
                unit = MIB if scale == "MB" else 1024 * MIB
            else:
                self.draft.report_memory(f"max {quantity}", number_of(amount) * unit, line)

    @property
    def code_base(self) -> CodeBase | None:
        if not self.seen:
            return None
        if self.deepspeed:
            return "megatron-deepspeed"
        return "megatron-bridge" if self.bridge else "megatron-lm"


def words_of(text: str) -> tuple[str, ...]:
    """A printed value as the words of an option: lists open, enumerations by their member."""
    if text[:1] in "[(" and text[-1:] in "])":
        try:
            listed = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return (text,)
        return tuple(str(item) for item in listed)
    match = re.fullmatch(r"<?([A-Za-z_]\w*)\.([A-Za-z_]\w*)(?:: .*>)?", text)
    if match:
        types = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
        return (types.get(match[2], match[2]),)
    return (text,)
