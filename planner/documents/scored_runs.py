"""Published runs with what is predicted of them: the evidence that answers point at.

The catalog's file is made by `python -m tools.accuracy.write_scored_runs --write`.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

FILE = Path(__file__).parents[2] / "cost_models" / "catalog" / "scored_runs.json"
# The file has a list for each field, of which that of intervals is their half widths in ln.
WIDTHS = "half_widths_ln"


class ScoredRun(BaseModel, frozen=True, extra="forbid"):
    """A published run in the headline of `planner accuracy`, and the time predicted of it.

    source: key of its source, of which `title` is the name.  accelerator: the catalog's id;
    family: its kin.  runtime: whose kernels and overlaps it is priced with; stack: the software of
    its row; stack_guessed: whether that runtime is another stack's.  experts: whether it has a
    mixture of experts.  adapters: whether it trains adapters alone.  kinds: the features of its
    plan (planner/search/simplicity.py) that hold whatever its row leaves open.  model_flop_per_s:
    of each accelerator, measured.  intervals_s: by per cent of runs that they are to hold, as wide
    as errors at first sight; None of toy sizes, which teach nothing.
    """

    id: str
    source: str
    title: str
    year: int
    model: str
    parameters: int
    experts: bool
    adapters: bool
    accelerator: str
    family: str
    accelerators: int
    runtime: str
    stack: str
    stack_guessed: bool
    precision: str
    seq_length: int
    global_batch_size: int
    tp: int
    cp: int
    pp: int
    vpp: int
    ep: int
    dp: int
    zero_stage: int
    micro_batch_size: int
    recompute: str
    schedule: str
    moe_dispatcher: str
    overlap_ep: bool
    kinds: tuple[str, ...]
    model_flop_per_s: float
    predicted_s: float
    measured_s: float
    intervals_s: dict[str, tuple[float, float]] | None


Ground = Literal["measured", "extrapolated", "unseen"]


class Record(BaseModel, frozen=True, extra="forbid"):
    """The fastest published run on an accelerator of models of a size, by model FLOP/s.

    same_model: whether its model has as many parameters; else it is the nearest in size.  differs:
    what the plan has that the run had not, and whether any published run there had it.
    """

    run: ScoredRun
    same_model: bool
    differs: tuple[str, ...]


class Evidence(BaseModel, frozen=True, extra="forbid"):
    """The published runs nearest to a plan, and on what ground its estimate stands.

    ground: measured where runs have its accelerator, runtime, method (all weights or adapters) and
    class of precision (16 bits, or 8 and 4), extrapolated where they have its accelerator alone,
    unseen where none has; `text` says so with their numbers, and what the
    interval rests on where it is not such runs; `detail` is what of it is to be said beside a label
    that names the ground.  alike: the number of those of its kind of model too.  record: the
    fastest of the accelerator's runs; None where it has none of this method and precision.
    """

    ground: Ground
    text: str
    detail: str
    alike: int
    nearest: tuple[ScoredRun, ...]
    record: Record | None = None


@cache
def scored_runs() -> tuple[ScoredRun, ...]:
    """All of them, in the order of the published table."""
    columns = json.loads(FILE.read_bytes())
    widths = columns.pop(WIDTHS)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row, width in zip(rows, widths, strict=True):
        row["intervals_s"] = intervals(row["predicted_s"], width)
    return TypeAdapter(tuple[ScoredRun, ...]).validate_python(rows)


def intervals(middle: float, widths: dict[str, float] | None) -> dict[str, Any] | None:
    """Seconds from the half widths of intervals, which are as far below as above in ln."""
    if widths is None:
        return None
    return {
        share: (rounded(middle * math.exp(-width)), rounded(middle * math.exp(width)))
        for share, width in widths.items()
    }


def rounded(value: float) -> float:
    """As many digits as times have in the file."""
    return float(f"{value:.5g}")


@cache
def has_runs(runtime: str) -> bool:
    """Whether a published run has the kernels of this runtime, in any release of it."""
    family = runtime.partition("-")[0]
    return any(run.runtime.partition("-")[0] == family for run in scored_runs())
