"""What a sizing answers: the document of `--json`, REST and Python, one and the same."""

from __future__ import annotations

from typing import Any, Literal

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Document, ErrorBand, Note

Limit = Literal["deadline", "budget", "power"]


class Row(Document):
    """One cluster: its best plan and what the training takes there.

    reason: why nothing runs; then everything of the plan is None.  training_days: without failures
    and checkpoints; days: of the wall clock, low_days to high_days by the error band.  exceeds:
    limits of the request that it misses; chance_kept: that deadline and budget are kept, None where
    neither is asked.
    """

    accelerator: str
    nodes: int
    accelerators: int
    reason: str | None
    plan: ParallelPlan | None = None
    iteration_time_s: float | None = None
    error_band: ErrorBand | None = None
    mfu: float | None = None
    tokens_per_s: float | None = None
    memory_headroom: float | None = None
    training_days: float | None = None
    effective_share: float | None = None
    mtbf_s: float | None = None
    checkpoint_s: float | None = None
    checkpoint_interval_s: float | None = None
    days: float | None = None
    low_days: float | None = None
    high_days: float | None = None
    price_usd_per_accelerator_hour: float | None = None
    cost_usd: float | None = None
    tokens_per_usd: float | None = None
    power_watts: float | None = None
    energy_kwh: float | None = None
    exceeds: tuple[Limit, ...] = ()
    chance_kept: float | None = None
    on_front: bool = False


class Step(Document):
    """From one cluster of the front to the next faster one: what a day saved costs."""

    row: int
    faster_row: int
    days_saved: float
    cost_added_usd: float
    usd_per_day_saved: float


class Offer(Document):
    """What would be kept where nothing keeps the limits: one of them at another value, by a row."""

    limit: Limit | Literal["tokens"]
    value: float
    row: int


class Rival(Document):
    """The best cluster of another kind beside the one to choose; chances take errors as unrelated.

    chance_sooner: that it is done first; chance_cheaper: None where a price is not known.
    """

    row: int
    chance_sooner: float
    chance_cheaper: float | None


class BatchSize(Document):
    """A batch that reaches the loss of the request's with other tokens in other steps.

    efficient: up to the critical batch; beyond it tokens rise faster than steps fall.
    """

    global_batch_size: int
    tokens: float
    steps: float
    efficient: bool


class SizingAnswer(Document):
    """The answer to `planner size` and POST /v1/sizings.

    Rows by kind and size.  front: rows that no other beats in both days and cost, the cheapest
    first; cheapest, fastest, fewest (accelerators): of those that keep all limits; smallest: by
    kind, the first of the sizes asked that anything fits on; fits_from: the fewest accelerators of
    a kind, in whole nodes or a part of one, that it fits on.  best_of_kind: of each kind asked, the
    one to choose, or the one that misses the limits least; rivals: those beside the cheapest.
    offers: where nothing keeps the limits.  Numbers of rows are their places in `rows`.
    stops_paying: the first step, of those that save most for their money, whose day saved costs
    more than a day of the training it shortens.  batch_sizes: around the request's, where it gives
    a critical batch.  assumed: the numbers in use of what the request may leave open.
    """

    request: dict[str, Any]
    version: str
    rows: tuple[Row, ...]
    front: tuple[int, ...]
    steps: tuple[Step, ...]
    cheapest: int | None
    fastest: int | None
    fewest: int | None
    stops_paying: Step | None
    smallest: dict[str, int | None]
    fits_from: dict[str, int | None]
    best_of_kind: dict[str, int | None]
    batch_sizes: tuple[BatchSize, ...] = ()
    rivals: tuple[Rival, ...] = ()
    offers: tuple[Offer, ...] = ()
    space: dict[str, Any]
    assumed: dict[str, float]
    prices_date: str
    assumptions: tuple[Note, ...]
    sizing_time_s: float
