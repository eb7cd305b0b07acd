"""Any training log to a RunLog: which code base it is of, what it ran, and its steady step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np

from planner.documents.problems import RequestError
from planner.inputs.logs import (
    bridge,
    deepspeed,
    launch,
    maxtext,
    megatron,
    mllog,
    nanotron,
    nemo,
    tensorboard,
    torchtitan,
    trainer,
)
from planner.inputs.logs.draft import STAMPS, Draft, Reader
from planner.inputs.logs.run_log import CodeBase, RunLog, StepTime, refused
from planner.inputs.logs.steps import steady, too_few
from planner.inputs.logs.stream import clean
from planner.inputs.logs.table import is_table, read_table

_WORD = re.compile(r"[A-Za-z_]\w+")
READERS: tuple[type[Reader], ...] = (
    megatron.Arguments,
    megatron.Iterations,
    bridge.Configuration,
    torchtitan.Torchtitan,
    nanotron.Nanotron,
    nemo.Nemo,
    maxtext.MaxText,
    mllog.MlLog,
    trainer.Trainer,
    deepspeed.DeepSpeed,
    tensorboard.TensorBoard,
)
# What tells most of a step first.
BASES = (
    megatron.ELAPSED,
    torchtitan.RATES,
    STAMPS,
    nanotron.ELAPSED,
    nemo.TIMING,
    maxtext.SECONDS,
    mllog.EVENTS,
    deepspeed.RATES,
    trainer.BAR,
    tensorboard.SECONDS,
    tensorboard.WALL,
)
# The block that a program prints says more of its code base than what it prints beside it.
ORDER: tuple[CodeBase, ...] = (
    "megatron-deepspeed", "mindspeed", "megatron-bridge", "mlperf", "megatron-lm", "torchtitan",
    "nanotron", "nemo", "maxtext", "accelerate", "trainer", "deepspeed",
    "tensorboard",
)  # fmt: skip
# What a prediction of the run needs.
NEEDED = (
    "accelerators", "model.num_layers", "model.hidden_size", "model.num_attention_heads",
    "model.vocab_size", "training.seq_length", "training.global_batch_size", "training.precision",
    "plan.tp", "plan.pp", "plan.dp", "plan.micro_batch_size", "plan.zero_stage", "plan.recompute",
    "plan.attention_kernel",
)  # fmt: skip


def read_log(lines: Iterable[str], name: str, files: Mapping[str, str] | None = None) -> RunLog:
    """What one log says.

    files: the launch scripts and configs of the run, by name; they fill what the log leaves open.
    Raises RequestError: /log where it is no log of one steady run, /files where they are of
    another run or cannot be read.
    """
    (run,) = _single(read_logs(lines, name, files), name)
    return run


def read_logs(
    lines: Iterable[str], name: str, files: Mapping[str, str] | None = None
) -> tuple[RunLog, ...]:
    """The runs of a log, which is one, or of a table, which has one a row."""
    rest = iter(lines)
    first = list(islice(rest, 1))
    everything = chain(first, rest)
    if first and is_table(first[0][:10_000]):
        return tuple(read_table((text for _, _, text in clean(everything, name)), name))
    return (_read_lines(everything, name, files or {}),)


def _single(runs: tuple[RunLog, ...], name: str) -> tuple[RunLog, ...]:
    if len(runs) != 1:
        raise refused("two_runs", f"{name} is a table of {len(runs):,} runs, not a log")
    return runs


def _tokens_of_a_step(values: Mapping[str, Any]) -> int | None:
    batch, length = (values.get(f"training.{f}") for f in ("global_batch_size", "seq_length"))
    return batch * length if isinstance(batch, int) and isinstance(length, int) else None


def _read_lines(lines: Iterable[str], name: str, files: Mapping[str, str]) -> RunLog:
    draft = Draft(name)
    readers = [kind(draft) for kind in READERS]
    total = _feed_readers(lines, name, readers)
    for reader in readers:
        reader.close()
    code_bases = [c for reader in readers if (c := reader.code_base) is not None]
    code_base = next((c for c in ORDER if c in code_bases), None)
    if code_base is None:
        raise _unknown(name, total)
    step = _step(draft)
    facts, both = launch.read(code_base, draft, files)
    values = {fact.field: fact.value for fact in facts}
    tokens = _tokens_of_a_step(values)
    return RunLog(
        name=name,
        code_base=code_base,
        facts=facts,
        reading=both,
        step=step,
        tokens_per_s=_median(draft, "tokens") if tokens is None else tokens / step.seconds,
        tflops_per_accelerator=_median(draft, "tflops"),
        memory=tuple(draft.memory[quantity] for quantity in sorted(draft.memory)),
        left_open=tuple(field for field in NEEDED if field not in values),
        assumed=tuple(dict.fromkeys((*draft.assumed, *(both.assumed if both else ())))),
    )


def _feed_readers(lines: Iterable[str], name: str, readers: list[Reader]) -> int:
    """Give every line to the readers that look for something in it; how many lines there are."""
    by_word: dict[str, list[Reader]] = {}
    for reader in readers:
        for word in reader.words:
            by_word.setdefault(word, []).append(reader)
    looked_for = frozenset(by_word)
    holder: Reader | None = None
    number = 0
    for number, process, text in clean(lines, name):
        if holder is not None and holder.take(number, process, text):
            continue
        holder = None
        words = _WORD.findall(text)
        if not looked_for.isdisjoint(words):
            interested = dict.fromkeys(r for word in words for r in by_word.get(word, ()))
            holder = _offer(interested, number, process, text)
    return number


def _offer(readers: Iterable[Reader], number: int, process: str, text: str) -> Reader | None:
    """Give a line to readers until one of them keeps the next ones for itself: that one."""
    return next((r for r in readers if r.take(number, process, text)), None)


def _unknown(name: str, total: int) -> RequestError:
    if not total:
        return refused("empty", f"{name} is empty")
    lines = "1 line" if total == 1 else f"{total:,} lines"
    detail = f"{name} ({lines}) is no training log of a code base known here"
    return refused("unknown_log", detail, allowed=(*ORDER, "table"))


def _step(draft: Draft) -> StepTime:
    """The steady step by the best series that has enough steps; else the mean over the run."""
    error: RequestError | None = None
    for basis in BASES:
        if basis in draft.series:
            try:
                return steady(draft.series[basis])
            except RequestError as problem:
                error = error or problem
    if draft.means:
        draft.assume("the time is a mean over the run: warm-up and evaluation are within it")
        return draft.means[0]
    raise error or too_few(0)


def _median(draft: Draft, name: str) -> float | None:
    values = draft.rates.get(name)
    return float(np.median(values)) if values else None
