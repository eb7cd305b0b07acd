"""The answer to what fits, the same document for `--json`, REST and Python."""

from __future__ import annotations

from cost_models.plans import ParallelPlan
from planner.answers.fits.request import Method
from planner.documents.answer import Change
from planner.documents.plan_report import Answer, Document, ErrorBand, Note

DAY_HOURS = 24.0


class Cell(Document):
    """One method at one length: its fastest plan that fits, or the one that misses by the least.

    plan: None where none was found: of GRPO whose training alone misses.  spare_bytes: what is left
    of the answer's `room_bytes`; below zero: by how much it misses.
    largest_micro_batch: the most sequences of a micro-batch that fit, as in `largest_plan`.  The
    batch is rounded up to whole micro-batches there.  hours, cost_usd: of all tokens, without
    failures; None without tokens or a price.  command: what writes the launch files of the plan, or
    estimates it where none are written.
    """

    seq_length: int
    fits: bool
    plan: ParallelPlan | None
    needed_bytes: float
    spare_bytes: float
    host_bytes: float = 0.0
    largest_micro_batch: int | None = None
    largest_plan: ParallelPlan | None = None
    tokens_per_s: float | None = None
    error_band: ErrorBand | None = None
    hours: float | None = None
    cost_usd: float | None = None
    command: str | None = None


class Row(Document):
    """One method, by the trainer that reaches the longest sequences, of those the fastest.

    reason: why no trainer has a plan; there are no cells then.  longest_seq_length: the longest
    that fits, in steps of 256 tokens, up to what the model reads or 131,072; None: not even the
    shortest asked.  change: the smallest that makes the shortest fit, where nothing does.
    host_bytes: where full tuning does not fit and would with its optimizer in the memory of a node,
    what that takes.  unmeasured_trainer: the title of one by which the shortest fits where it does
    not by this one, of which no run is published.  trains_with: its optimizer and number formats,
    and the batch of a step where it is not the one asked.
    """

    method: Method
    title: str
    trainer: str | None = None
    trainer_title: str = ""
    reason: str | None = None
    cells: tuple[Cell, ...] = ()
    longest_seq_length: int | None = None
    change: Change | None = None
    host_bytes: float | None = None
    unmeasured_trainer: str | None = None
    trains_with: str = ""


class FitAnswer(Answer):
    """The answer to `planner fit` and POST /v1/fits.

    room_bytes: what a plan may be expected to need of `capacity_bytes` of a card, so that the risk
    of running out of memory stays small.
    """

    accelerator: str
    nodes: int
    accelerators: int
    precision: str
    global_batch_size: int
    lengths: tuple[int, ...]
    capacity_bytes: float
    room_bytes: float
    memory_risk: float
    price_usd_per_accelerator_hour: float | None
    rows: tuple[Row, ...]
    assumptions: tuple[Note, ...]
    fit_time_s: float
