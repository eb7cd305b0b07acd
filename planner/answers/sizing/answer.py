"""The answer of a sizing, the same document for `--json`, REST and Python."""

from __future__ import annotations

from typing import Any, Literal

from cost_models.plans import ParallelPlan
from planner.documents.plan_report import Document, ErrorBand, Note

Limit = Literal["deadline", "budget", "power"]


class Row(Document):
    """One cluster: its best plan, and the time and cost of the training there.

    reason: why no plan runs; all fields of the plan are then None.  training_days: without failures
    and checkpoints; days: wall-clock time, low_days to high_days by the error band.  exceeds: the
    limits of the request that it misses; chance_kept: the chance that deadline and budget are both
    kept, None if neither is set.
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
    """A step from a cluster of the Pareto front to the next faster one: the cost per day saved."""

    row: int
    faster_row: int
    days_saved: float
    cost_added_usd: float
    usd_per_day_saved: float


class Offer(Document):
    """A relaxed value of one limit that `row` would keep, offered if no row keeps all limits."""

    limit: Limit | Literal["tokens"]
    value: float
    row: int


class Rival(Document):
    """The best cluster of another kind, compared with the recommended one.

    Chances that it is done sooner or is cheaper (None if a price is unknown), with the errors of
    the two estimates taken as independent.
    """

    row: int
    chance_sooner: float
    chance_cheaper: float | None


class BatchSize(Document):
    """A global batch size, and the tokens and steps to reach the same loss with it.

    efficient: not above the critical batch size; beyond it tokens rise faster than steps fall.
    """

    global_batch_size: int
    tokens: float
    steps: float
    efficient: bool


class SizingAnswer(Document):
    """The answer to `planner size` and POST /v1/sizings.

    Rows are ordered by kind and size, and referred to by their index in `rows`.  front: the Pareto
    front of days and cost, the cheapest first; cheapest, fastest, fewest (accelerators): among the
    rows that keep all limits; recommended: the cheapest, or where a price is unknown the fewest, of
    those that surely keep them and whose accelerator has published runs.
    smallest: by kind, the smallest asked size on which a plan fits;
    fits_from: by kind, the fewest accelerators on which a plan fits, as whole nodes or part of one.
    best_of_kind: by kind, the row to choose, or the one that misses the limits least; rivals: those
    rows compared with the recommended one.  offers: relaxed limits, if no row keeps the limits.
    stops_paying: the first step along the convex front for which a saved day costs more than a day
    of training before that step.  batch_sizes: other batch sizes, if the request gives a critical
    one.  assumed: the values in use for fields that a request may leave out.
    """

    request: dict[str, Any]
    version: str
    rows: tuple[Row, ...]
    front: tuple[int, ...]
    steps: tuple[Step, ...]
    recommended: int | None
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
