"""One plan, explained: its time, memory, pipeline and error band, as a document."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from cost_models.plans import ParallelPlan


class Document(BaseModel):
    """The base of every part of an answer: frozen, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, source: object, /, **values: Any) -> Self:
        """What an object says: its attributes of the names of fields, and the fields given here."""
        names = (name for name in cls.model_fields if name not in values and hasattr(source, name))
        return cls(**{name: getattr(source, name) for name in names}, **values)


class Answer(Document):
    """The base of an answer to a question: what was asked, whole, and the version that answers."""

    request: dict[str, Any]
    version: str


class StageMemory(Document):
    stage: int
    layers: int
    in_flight: float
    allocated_bytes: float
    reserved_bytes: float
    total_bytes: float
    parts: dict[str, float]


TIGHT = 0.02  # free share of the memory below which the smallest surprise overflows it


class Memory(Document):
    """Memory of a plan; allocated, reserved and peak (what the driver sees) of the worst stage.

    needed_bytes: the least that the plan runs with; the rest of the peak is cache that the
    allocator frees before it runs out of memory.  chance_of_running_out: that what is needed is
    more than the capacity, by how far predicted peaks were off; chance_basis: what that rests on.
    host_bytes: weights, gradients and optimizer states in the host memory of a node.
    """

    capacity_bytes: float
    allocated_bytes: float
    reserved_bytes: float
    peak_bytes: float
    needed_bytes: float
    worst_stage: int
    chance_of_running_out: float
    chance_basis: str
    host_bytes: float = 0.0
    stages: tuple[StageMemory, ...]

    @property
    def full_of_cache(self) -> bool:
        """Whether the allocator fills what there is, which it returns before it fails."""
        cached = self.peak_bytes - self.needed_bytes
        return (
            (1.0 - TIGHT) * self.capacity_bytes < self.peak_bytes <= self.capacity_bytes
            and cached > TIGHT * self.capacity_bytes
        )  # fmt: skip

    @property
    def free_share(self) -> float:
        """The share of the memory that is free, or would be without that cache; < 0: too little."""
        return self.free_of(self.full_of_cache)

    def free_of(self, but_for_cache: bool) -> float:
        """The share of the memory that is free, or that would be without any cache."""
        held = self.needed_bytes if but_for_cache else self.peak_bytes
        return 1.0 - held / self.capacity_bytes


class Note(Document):
    """An assumption, or something not modelled: a stable code and a sentence."""

    code: str
    text: str


class Pipeline(Document):
    """How a plan with stages runs: its schedule, and the same step by closed form and simulated.

    iteration_time_s of the report is the closed form's (`shown`); the simulator runs the
    schedule's own order with this plan's time of each rank and chunk.  None: too long to simulate.
    """

    schedule: str
    title: str
    synchronous: bool
    staleness: str
    frameworks: tuple[str, ...]
    closed_form: str
    shown: Literal["closed form", "scaled simulation"]
    simulated_iteration_time_s: float | None


class ErrorBand(Document):
    """The interval that the iteration time of a run like this is expected in.

    rows, sources: published runs that it rests on; accelerator_rows: those on this accelerator,
    whatever the framework.  basis: which of them are alike, and what most
    of the doubt comes from.
    """

    low_s: float
    high_s: float
    rows: int
    sources: int
    accelerator_rows: int
    basis: str


class PlanReport(Document):
    """One plan, fully explained.

    layers_by_kind: of each stage, how many layers of which kind; empty where all layers are alike.
    recompute_exchange_s: the part of the time of recompute that is communication.
    """

    id: str
    plan: ParallelPlan
    fits: bool
    num_micro_batches: int
    layers_per_stage: tuple[int, ...]
    layers_by_kind: tuple[dict[str, int], ...] = ()
    iteration_time_s: float
    error_band: ErrorBand
    tokens_per_s: float
    tokens_per_s_per_accelerator: float
    model_flop_per_s_per_accelerator: float
    mfu: float
    mfu_causal: float
    hfu: float
    definitions: dict[str, str]
    days: float | None
    cost_usd: float | None
    energy_kwh: float | None
    memory: Memory
    time_parts_s: dict[str, float]
    recompute_exchange_s: float = 0.0
    pipeline: Pipeline | None = None
    kernels: tuple[dict[str, Any], ...]
    assumptions: tuple[Note, ...]
    not_modelled: tuple[Note, ...]
