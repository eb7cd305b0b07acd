"""MLPerf training logs: events of `:::MLLOG`, one JSON object a line.

Events count samples (or tokens); the time between two of them gives the time of a step by the
global batch.  Where no event separates them, the time of a block includes its evaluation.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from cost_models.package_files import table
from planner.documents.problems import shown
from planner.inputs.logs.draft import Draft, Reader
from planner.inputs.logs.run_log import CodeBase

MARK, SYSTEM = ":::MLLOG", ":::SYSJSON"
MOST, MAX_EVENTS = 10**12, 100_000
EVENTS = "samples between events"
BEGINNINGS = ("run_start", "block_start", "eval_stop")
ENDS = ("block_stop", "eval_start")
_NAMES = table("planner.inputs.logs", "names.json")
FIELDS: dict[str, str] = _NAMES["mllog"]
# Benchmark -> model in the catalog, tokens of a sequence, rank of the adapters: the rules of
# MLCommons (training_policies, benchmark descriptions of v3.0 to v5.1).
BENCHMARKS: dict[str, tuple[str, int, int]] = _NAMES["benchmarks"]
# Tokens between two evaluations of GPT-3: 24,576 sequences.
BLOCK_TOKENS = {"gpt3": 24_576 * 2048}


class MlLog(Reader):
    """Events of one run: points at which samples are counted, and the time between them."""

    words: ClassVar[tuple[str, ...]] = (
        "MLLOG", "SYSJSON",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.point: tuple[float, float] | None = None  # ms, samples; None: not training
        self.done = 0.0
        self.parts: list[tuple[float, float, int, bool]] = []
        self.seen = self.evaluates = False

    def take(self, number: int, process: str, text: str) -> bool:
        mark = MARK if MARK in text else SYSTEM
        try:
            event = json.loads(text[text.index(mark) + len(mark) :])
        except (ValueError, RecursionError):
            return False
        if isinstance(event, dict) and len(self.parts) < MAX_EVENTS:
            self.seen = True
            (self._event if mark == MARK else self._system)(event, number)
        return False

    def _system(self, event: dict[str, Any], line: int) -> None:
        nodes, each = (
            int(text) if (text := str(event.get(key, ""))).isdecimal() and len(text) < 7 else 0
            for key in ("number_of_nodes", "accelerators_per_node")
        )
        if nodes and each:
            self.draft.set_fact("nodes", nodes, line)
            self.draft.set_fact("accelerators_per_node", each, line)
            self.draft.set_fact("accelerators", nodes * each, line)
        if isinstance(name := event.get("accelerator_model_name"), str) and name:
            self.draft.set_fact("accelerator", name[:100], line)

    def _event(self, event: dict[str, Any], line: int) -> None:
        key, value = event.get("key"), event.get("value")
        meta, when = event.get("metadata"), _number(event.get("time_ms"))
        if isinstance(key, str) and when is not None:
            self._take(key, value, meta if isinstance(meta, dict) else {}, when, line)

    def _take(self, key: str, value: Any, meta: dict[str, Any], when: float, line: int) -> None:
        if key == "run_start":
            self.draft.start("run_start", line)
        if key == "submission_benchmark" and isinstance(value, str):
            self._benchmark(value, line)
        elif key in FIELDS and type(value) is int and 0 < value < MOST:
            self.draft.set_fact(FIELDS[key], value, line)
        elif key in BEGINNINGS:
            self.evaluates = self.evaluates or key == "eval_stop"
            self.point = when, max(self.done, self._samples(meta) or 0.0)
        elif key in ENDS or key == "train_loss":
            if key == "train_loss":
                self.draft.loss(str(value), line)
            self.evaluates = self.evaluates or key == "eval_start"
            self._part(when, meta, line, key)

    def _part(self, when: float, meta: dict[str, Any], line: int, key: str) -> None:
        """The time since the last point, and how many samples were trained in it."""
        after = self._samples(meta, key == "block_stop")
        if self.point is not None and after is not None and after > self.point[1]:
            begun, previous = self.point
            self.parts.append((after, (when - begun) / 1e3 / (after - previous), line, key in ENDS))
        self.done = max(self.done, after or 0.0)
        self.point = (when, self.done) if key == "train_loss" else None

    def _samples(self, meta: dict[str, Any], whole_block: bool = False) -> float | None:
        """Samples that an event has counted; epochs of these benchmarks are counted in tokens."""
        count = _number(meta.get("samples_count"))
        if count is not None:
            return count
        length = self.draft.number("training.seq_length")
        tokens = _number(meta.get("epoch_num", meta.get("first_epoch_num")))
        if whole_block and tokens is not None:
            block = _number(meta.get("epoch_count"))
            tokens = tokens + block if block is not None else self._next_block(tokens)
        return tokens / length if length and tokens is not None else None

    def _next_block(self, tokens: float) -> float | None:
        """Tokens at the end of a block that says only where it began: the last one's length."""
        return tokens + BLOCK_TOKENS.get(self._name, 0) or None

    @property
    def _name(self) -> str:
        fact = self.draft.facts.get("benchmark")
        return str(fact.value) if fact else ""

    def _benchmark(self, name: str, line: int) -> None:
        self.draft.set_fact("benchmark", name[:100], line)
        if name not in BENCHMARKS:
            self.draft.assume(f"{shown(name)} is no language model known here")
            return
        model, length, rank = BENCHMARKS[name]
        self.draft.set_fact("model.name", model, line)
        if rank:
            self.draft.set_fact("training.lora_rank", rank, line)
            self.draft.set_fact("training.seq_length", length, line)

    def close(self) -> None:
        batch = self.draft.number("training.global_batch_size")
        if not batch:
            return
        plain = [part for part in self.parts if self.evaluates or not part[3]]
        if len(plain) < 3 <= len(self.parts):
            plain = self.parts
            self.draft.assume("evaluation is not told apart from training: the time holds both")
        for after, seconds, line, _ in plain:
            self.draft.step(EVENTS, round(after / batch), seconds * batch, line)

    @property
    def code_base(self) -> CodeBase | None:
        return "mlperf" if self.seen else None


def _number(value: object) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if good else None  # type: ignore[arg-type]
