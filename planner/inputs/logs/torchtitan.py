"""torchtitan: its steps, the mesh, the model it builds, and what it applies to it.

Its rates are tokens/s of one accelerator, so the time of a step needs the batch, the sequence and
the number of accelerators; where one of them is open, the time stamps of the lines give it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from cost_models.package_files import table
from planner.frameworks.torchtitan import registry
from planner.inputs.logs.draft import GIB, Draft, Reader, Stamps, number_of, whole
from planner.inputs.logs.run_log import CodeBase
from planner.inputs.logs.steps import Rates

_STEP = re.compile(r"step:\s*(\d{1,12})\s+loss:\s*(\S+)")
_RATE = re.compile(r"\b(?:tps|wps):\s*([\d,.]+)")
_FLOPS = re.compile(r"\btflops:\s*([\d,.]+)")
_MEMORY = re.compile(r"memory:\s*([\d.]+)GiB")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{1,6})")
_BATCH = re.compile(
    r"local batch size (\d{1,12}), global batch size (\d{1,12}),"
    r"(?: gradient accumulation steps (\d{1,12}),)? sequence length (\d{1,12})"
)
_MESH = re.compile(r"Building \d-D device mesh with (\[[^\]]*\]), (\[[^\]]*\])")
_DEGREES = re.compile(r"Building device mesh with parallelism: (.*)")
_MODEL = re.compile(r"(?:Building|Model) (?:\w+/)?(llama3|qwen3|deepseek_v3|gpt_oss) ([\w.-]+)")
_DEVICE = re.compile(r"capacity: (.+?) with ([\d.]+)GiB memory")
_CONFIG = re.compile(r"Running with (?:args|configs?): (\{.*)")
_FLOAT8 = re.compile(r"^(?=.*loat8).*(?:Swapped to|training active|enabled|Float8)", re.DOTALL)
_SHARDED = re.compile("Applied (?:FSDP|HSDP)|dp mode=fully_shard")
_CHECKPOINTING = re.compile(r"Applied (full|selective) activation checkpointing")
RATES = "tokens/s of an accelerator"

# Dotted key of the config -> field.
KEYS: dict[str, str] = table("planner.inputs.logs", "names.json")["torchtitan"]


def _degrees(text: str) -> dict[str, int] | None:
    """Sizes by dimension of the mesh that a line prints; None where it prints none."""
    if match := _MESH.search(text):
        sizes = map(int, re.findall(r"\d+", match[2]))
        return dict(zip(re.findall(r"\w+", match[1]), sizes, strict=False))
    if match := _DEGREES.search(text):
        return {name: int(size) for name, size in re.findall(r"(\w+)=(\d{1,12})", match[1])}
    return None


class Torchtitan(Reader):
    """The lines of one process; a step is read from the first process that prints it."""

    words: ClassVar[tuple[str, ...]] = (
        "step", "mesh", "batch", "Applied", "Compiling", "Building", "capacity",
        "Running", "Float8", "float8", "parameters", "checkpoint", "validate",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.steps = Rates()
        self.stamps = Stamps(draft)
        self.pauses: set[int] = set()

    def take(self, number: int, process: str, text: str) -> bool:
        if match := _STEP.search(text):
            if "validate step" in text:
                self._pause()
            elif self.draft.first_process("torchtitan", process):
                self._step(match, number, text)
        elif "heckpoint" in text and "activation" not in text:
            self._pause()
        else:
            self._setup(number, text)
        return False

    def _pause(self) -> None:
        self.draft.pause()
        self.pauses.add(len(self.steps))

    def _step(self, match: re.Match[str], line: int, text: str) -> None:
        rate = _RATE.search(text)
        if rate is None:
            return
        step = int(match[1])
        self.draft.loss(match[2], line)
        if step == self.steps.last:
            return
        self.draft.step("torchtitan steps", step, 1.0, line)
        self.steps.take(step, number_of(rate[1]), line)
        if flops := _FLOPS.search(text):
            self.draft.rate("tflops", number_of(flops[1]))
        if memory := _MEMORY.search(text):
            self.draft.report_memory("max reserved", number_of(memory[1]) * GIB, line)
        self.stamps.take(step, _TIME.search(text), line)

    def _setup(self, line: int, text: str) -> None:
        draft = self.draft
        if match := _BATCH.search(text):
            draft.set_fact("plan.micro_batch_size", int(match[1]), line)
            draft.samples(int(match[2]), line)
            draft.set_fact("training.seq_length", int(match[4]), line)
        elif (degrees := _degrees(text)) is not None:
            self._mesh(degrees, line)
        elif match := _CHECKPOINTING.search(text):
            draft.set_fact("plan.recompute", match[1], line)
        elif "torch.compile" in text and "Compiling" in text:
            draft.set_fact("plan.compile", True, line)
        elif _FLOAT8.search(text):
            draft.set_fact("training.precision", "fp8", line)
        elif match := _DEVICE.search(text):
            draft.set_fact("accelerator", match[1][:100], line)
        elif match := _CONFIG.search(text):
            self._config(match[1], line)
        if match := _MODEL.search(text):
            self._model(match[1], match[2], line)
        if _SHARDED.search(text):
            # Its default frees gathered weights after the forward pass, except in a pipeline.
            draft.set_fact("plan.zero_stage", 3 if (draft.number("plan.pp") or 1) == 1 else 2, line)

    def _mesh(self, sizes: Mapping[str, int], line: int) -> None:
        """Degrees by the mesh's names; a missing one is 1."""
        get = sizes.get
        dp = get("dp", 0) or get("dp_replicate", 1) * get("dp_shard", 1)
        for field, size in (
            ("tp", get("tp", 1)), ("cp", get("cp", 1)), ("pp", get("pp", 1)),
            ("ep", get("ep", 1)), ("dp", dp),
        ):  # fmt: skip
            self.draft.set_fact(f"plan.{field}", size, line)
        world = dp * get("tp", 1) * get("cp", 1) * get("pp", 1)
        self.draft.set_fact("accelerators", world, line)

    def _model(self, family: str, flavor: str, line: int) -> None:
        self.draft.set_fact("model.name", f"{family} {flavor}", line)
        models = registry.document()["models"]
        for name, value in models.get(family, {}).get("flavors", {}).get(flavor, {}).items():
            if isinstance(value, (bool, int, float, str)):
                self.draft.set_fact(f"model.{name}", value, line)

    def _config(self, text: str, line: int) -> None:
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError):
            return
        for field, value in config_facts(tree):
            self.draft.set_fact(field, value, line)

    def close(self) -> None:
        self.draft.series.pop("torchtitan steps", None)
        size = self.draft.number("accelerators")
        batch = self.draft.number("training.global_batch_size")
        length = self.draft.number("training.seq_length")
        if not (self.steps and size and batch and length):
            return
        tokens = batch * length / size
        for i, (step, rate, line) in enumerate(self.steps):
            if i in self.pauses and RATES in self.draft.series:
                self.draft.series[RATES].paused = True
            if rate > 0:
                self.draft.step(RATES, step, tokens / rate, line)

    @property
    def code_base(self) -> CodeBase | None:
        return "torchtitan" if self.steps else None


def config_facts(tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(field, value) of the keys of torchtitan's config that say something of a plan."""
    facts: list[tuple[str, Any]] = []
    for key, field in KEYS.items():
        section, name = key.split(".")
        part = tree.get(section)
        value = part.get(name) if isinstance(part, Mapping) else None
        if isinstance(value, str) or (type(value) is int and value > 0):
            facts.append((field, whole(value) or value if isinstance(value, str) else value))
    return facts
