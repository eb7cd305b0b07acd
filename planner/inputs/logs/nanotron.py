"""nanotron: the config that it prints as Python, its iteration lines and its memory."""

from __future__ import annotations

import ast
import re
from typing import Any, ClassVar

from planner.frameworks.yaml_files import scalar
from planner.inputs.logs.draft import MIB, Block, Draft, Reader, number_of
from planner.inputs.logs.run_log import CodeBase
from planner.inputs.logs.steps import MOST

_PREFIX = re.compile(r"^\S+ \S+ \[\w+\|DP=\d+\|PP=\d+\|TP=\d+[^\]]*\]: ?")
_ITERATION = re.compile(r"iteration: (\d{1,12}) / \d+ \|")
_ELAPSED = re.compile(r"elapsed_time_per_iteration_ms: ([\d.]+[KMG]?)")
_BATCH = re.compile(r"global_batch_size: ([\d.]+[KMG]?)")
_TOKENS = re.compile(r"tokens_per_sec: ([\d.]+[KMG]?)")
_GPU_TOKENS = re.compile(r"tokens_per_sec_per_gpu: ([\d.]+[KMG]?)")
_FLOPS = re.compile(r"model_tflops_per_gpu: ([\d.e+-]+)")
_LOSS = re.compile(r"lm_loss: (\S+)")
_MEMORY = re.compile(r"Peak (allocated|reserved):? ([\d.]+)MiB")
_OBJECT = re.compile(r"<[^<>]*?([A-Za-z_]\w*)(?: object at 0x\w+|: [^<>]*)>")
ELAPSED = "elapsed_time_per_iteration_ms"
ENGINES = {
    "OneForwardOneBackwardPipelineEngine": "1f1b",
    "AllForwardAllBackwardPipelineEngine": "afab",
}


class Nanotron(Reader):
    """The lines of the first process that prints iterations."""

    words: ClassVar[tuple[str, ...]] = (
        "Config", "LlamaConfig", "Qwen2Config", "Starcoder2Config",
        "elapsed_time_per_iteration_ms", "Peak", "checkpoint", "sequence_length",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.block = Block("(", ")")
        self.seen = False
        self.trees: dict[str, tuple[ast.Call, list[int]]] = {}

    def take(self, number: int, process: str, text: str) -> bool:
        """Read a line; whether it belongs to a printed object that goes on."""
        text = _PREFIX.sub("", text)
        if self.block.lines or re.match(r"\w*Config\(\w+=", text):
            return self._take_block(number, text)
        step, elapsed = _ITERATION.search(text), _ELAPSED.search(text)
        if step and elapsed:
            if self.draft.first_process(ELAPSED, process):
                self._step(int(step[1]), elapsed[1], number, text)
        elif "Saving checkpoint" in text:
            self.draft.pause()
        elif self.seen or "[Start training]" in text:
            for quantity, amount in _MEMORY.findall(text):
                self.draft.report_memory(f"max {quantity}", number_of(amount) * MIB, number)
        if match := re.search(r"mbs: (\d{1,12}) \| .*sequence_length: (\d{1,12})", text):
            self.draft.set_fact("plan.micro_batch_size", int(match[1]), number)
            self.draft.set_fact("training.seq_length", int(match[2]), number)
        return False

    def _step(self, step: int, elapsed: str, line: int, text: str) -> None:
        self.seen = True
        if loss := _LOSS.search(text):
            self.draft.loss(loss[1], line)
        batch = _BATCH.search(text)
        if batch and 1 <= number_of(batch[1]) < MOST:
            self.draft.samples(round(number_of(batch[1])), line)
        seconds = number_of(elapsed) / 1e3
        self.draft.step(ELAPSED, step, seconds, line)
        if flops := _FLOPS.search(text):
            self.draft.rate("tflops", number_of(flops[1]))
        tokens, per_gpu = _TOKENS.search(text), _GPU_TOKENS.search(text)
        if tokens and per_gpu and number_of(per_gpu[1]) > 0:
            size = number_of(tokens[1]) / number_of(per_gpu[1])
            if 1 <= size < MOST:
                self.draft.set_fact("accelerators", round(size), line)

    def _take_block(self, number: int, text: str) -> bool:
        if self.block.add(_OBJECT.sub(r"'\1'", text), number):
            return True
        source, lines = self.block.taken()
        try:
            call = ast.parse(source.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return False
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            first = call.func.id == "Config"
            if first:
                self.draft.start("the config", number)
            self.trees.setdefault("config" if first else "model", (call, lines))
        return False

    def close(self) -> None:
        """Hand the printed config to the draft, as YAML and as facts."""
        if "config" not in self.trees:
            return
        call, lines = self.trees["config"]
        rows = list(_rows(call, "", lines))
        if "model" in self.trees and not any(p.startswith(_MODEL + ".") for p, _, _ in rows):
            rows = [row for row in rows if row[0] != _MODEL]
            rows += list(_rows(self.trees["model"][0], _MODEL, self.trees["model"][1]))
        text, origin = _yaml(rows)
        self.draft.configs["config.yaml"] = text, origin
        for path, value, line in rows:
            if path in _FACTS and type(value) is int:
                self.draft.set_fact(_FACTS[path], value, line)

    @property
    def code_base(self) -> CodeBase | None:
        return "nanotron" if self.seen or self.trees else None


_MODEL = "model.model_config"
_LENGTH = "training.seq_length"
_FACTS = {
    "tokens.sequence_length": _LENGTH,
    "tokens.micro_batch_size": "plan.micro_batch_size",
    "parallelism.dp": "plan.dp",
    "parallelism.tp": "plan.tp",
    "parallelism.pp": "plan.pp",
}


def _rows(node: ast.expr, path: str, lines: list[int]) -> list[tuple[str, Any, int]]:
    """(dotted key, value, line) of a printed config; a number stands for a place in a list."""
    if isinstance(node, ast.Call):
        rows: list[tuple[str, Any, int]] = []
        for keyword in node.keywords:
            rows += _rows(keyword.value, f"{path}.{keyword.arg}".lstrip("."), lines)
        return rows
    line = lines[min(node.lineno, len(lines)) - 1]
    if isinstance(node, ast.List) and any(isinstance(item, ast.Call) for item in node.elts):
        rows = []
        for index, item in enumerate(node.elts):
            rows += _rows(item, f"{path}.{index}", lines)
        return rows
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        value = ast.unparse(node)
    if isinstance(value, str):
        value = ENGINES.get(value, value.removeprefix("torch."))
    if isinstance(value, (set, tuple)):
        value = list(value)
    return [(path, value, line)]


def _yaml(rows: list[tuple[str, Any, int]]) -> tuple[str, list[int]]:
    """The config as YAML of one key a line, and the log's line of each."""
    tree: dict[str, Any] = {}
    for path, value, line in rows:
        *parents, last = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                break
        else:
            node[last] = (value, line)
    text: list[str] = []
    origin: list[int] = []

    def write(node: dict[str, Any], indent: str) -> None:
        for key, child in node.items():
            dash = f"{indent}- " if key.isdigit() else ""
            if isinstance(child, dict):
                if dash:
                    text.append(f"{indent}-")
                else:
                    text.append(f"{indent}{key}:")
                origin.append(0)
                write(child, indent + "  ")
            else:
                text.append(f"{dash or f'{indent}{key}: '}{scalar(child[0])}")
                origin.append(child[1])

    write(tree, "")
    return "\n".join(text) + "\n", origin
