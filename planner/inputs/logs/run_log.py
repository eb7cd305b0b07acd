"""What a training log says: the run, its measured step, its memory, and what it leaves open."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cost_models.fields import Spec
from planner.documents.problems import RequestError, refuse
from planner.frameworks.read_results import Reading

Value = bool | int | float | str | tuple[int, ...]
Seconds = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]

CodeBase = Literal[
    "megatron-lm",
    "megatron-deepspeed",
    "megatron-bridge",
    "mindspeed",
    "torchtitan",
    "nanotron",
    "nemo",
    "maxtext",
    "mlperf",
    "trainer",
    "accelerate",
    "deepspeed",
    "tensorboard",
    "table",
]


def refused(code: str, detail: str, got: Any = None, **more: Any) -> RequestError:
    """The error of a log that says nothing to be measured."""
    return refuse("/log", code, detail, got, **more)


class Fact(Spec):
    """One field of the run as it was read.

    field: its path, such as plan.tp, model.num_layers or training.seq_length.  line: from 1; 0
    where it follows from others or is a default of the code base.
    """

    field: str
    value: Value
    file: str
    line: int = 0


class LeftOut(Spec):
    """Steps that the measured time leaves out, and why."""

    reason: str
    steps: int


class StepTime(Spec):
    """The steady time of one iteration.

    seconds: the median; low_s, high_s: the 10th and 90th percentile of what was used, None where
    the log has only a mean over the run.  basis: what the log prints.
    """

    seconds: Seconds
    low_s: Seconds | None = None
    high_s: Seconds | None = None
    steps: int
    left_out: tuple[LeftOut, ...] = ()
    basis: str


class Memory(Spec):
    """The largest report of one quantity: of all processes that print it."""

    quantity: Literal["max allocated", "max reserved", "in use"]
    bytes: Amount
    reports: int
    file: str
    line: int


class RunLog(Spec):
    """One run, read from its log.

    reading: the whole launch as the framework reads it, where the log (with the files given)
    prints enough for it.  left_open: what a plan needs and nothing says.  assumed: sentences on
    what was taken instead.  tokens_per_s counts all accelerators.
    """

    name: str
    code_base: CodeBase
    facts: tuple[Fact, ...]
    reading: Reading | None = None
    step: StepTime
    tokens_per_s: Amount | None = None
    tflops_per_accelerator: Amount | None = None
    memory: tuple[Memory, ...] = ()
    left_open: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def get(self, field: str) -> Value | None:
        """The value of a field; None where it is open."""
        return next((fact.value for fact in self.facts if fact.field == field), None)
