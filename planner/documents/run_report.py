"""Reports of measured runs that anyone may share: no names, hosts, paths or dates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from planner.documents.plan_report import Document

MAX_RUNS = 1_000
Label = Annotated[str, Field(max_length=100)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Seconds = Annotated[float, Field(gt=0.0, le=1e6)]
Bytes = Annotated[float, Field(gt=0.0, le=1e15)]


class ReportedRun(Document):
    """One run: what it was, what was predicted of it, what was measured.

    model: a public one of the catalog with these dims, else "unlisted"; parameters: to two digits.
    accelerator: its id in the catalog, else "unlisted".  plan: its degrees, and its other fields
    that are not at their defaults.  assumed: fields that nothing stated.  calibrated: whether
    kernels were priced as measured on the cluster.  version: of the planner that predicted.
    """

    model: Label
    experts: bool
    parameters: Count
    accelerator: Label
    accelerators: Count
    accelerators_per_node: Count
    code_base: Label
    precision: Label
    seq_length: Count
    global_batch_size: Count
    plan: dict[Label, Any]
    assumed: tuple[Label, ...] = ()
    version: Label
    calibrated: bool
    predicted_s: Seconds
    measured_s: Seconds
    steps: Count
    memory_quantity: Label | None = None
    predicted_peak_bytes: Bytes | None = None
    measured_peak_bytes: Bytes | None = None


class RunReport(Document):
    """The document that is shared: a file of its own."""

    format: Literal["parallel-planner runs 1"] = "parallel-planner runs 1"
    runs: Annotated[tuple[ReportedRun, ...], Field(min_length=1, max_length=MAX_RUNS)]
