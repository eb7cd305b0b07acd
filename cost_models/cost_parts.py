"""The parts that add up to the time and the memory of a step: names, texts and letters."""

from __future__ import annotations

from typing import NamedTuple

from cost_models.package_files import table


class TimePart(NamedTuple):
    """One part of the time of a step.

    title: its name within a sentence.  letter: what draws it in text.  measured: the category under
    which a real run measures it.  once: it occurs once per step, outside of the pipeline, and not
    once per micro-batch.
    """

    title: str
    text: str
    letter: str
    measured: str
    once: bool = False


class MemoryPart(NamedTuple):
    """One part of the peak memory; letter: what draws it in text."""

    text: str
    letter: str


_PARTS = table(__package__ or "", "cost_parts.json")
TIME_PARTS: dict[str, TimePart] = {name: TimePart(**row) for name, row in _PARTS["time"].items()}
MEMORY_PARTS: dict[str, MemoryPart] = {
    name: MemoryPart(**row) for name, row in _PARTS["memory"].items()
}
STATE_PARTS = ("weights", "gradients", "optimizer")
# The parts that are temporary within a step.
STEP_PARTS = ("activations", "logits", "working", "communication")
