"""Computes a sizing: the best plan and goodput of every cluster, and the recommended rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

from cost_models.catalog import hardware
from cost_models.critical_batch import tokens_over_fewest
from cost_models.spec import ClusterSpec
from planner.answers.sizing.answer import BatchSize, Row, SizingAnswer, Step
from planner.answers.sizing.limits import (
    best_of_kind,
    keeps,
    least_of,
    limited,
    offers,
    recommended,
    rivals,
    sizes_between,
)
from planner.answers.sizing.request import SIZES, SizingRequest
from planner.answers.sizing.rows import (
    CHECKPOINT_BYTES_PER_PARAMETER,
    cluster_of_kind,
    clusters_of,
    clusters_of_pairs,
    rows_of,
)
from planner.answers.sizing.smallest import STEPS, fewest_of_kind
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.progress import step
from planner.version import __version__


def _first_of_kind(rows: Sequence[Row], kinds: Iterable[str]) -> dict[str, int | None]:
    """By kind: the first row with a plan."""
    planned = [(i, row.accelerator) for i, row in enumerate(rows) if not row.reason]
    return {kind: next((i for i, own in planned if own == kind), None) for kind in kinds}


def size(request: SizingRequest, workers: int = 1) -> SizingAnswer:
    """The answer for every cluster of a sizing; workers: processes that search concurrently."""
    began = time.perf_counter()
    clusters, kinds = list(clusters_of(request.sizing)), request.sizing.accelerators
    # A process takes as long to start as a kind takes.
    with _mapping(min(workers, len(kinds) // 2)) as run:
        rows = _rows(request, clusters, run)
        if request.sizing.sizes == SIZES and not request.sizing.clusters:
            between = clusters_of_pairs(sizes_between(rows, request.sizing), request.sizing)
            known = {(row.accelerator, row.accelerators) for row in rows}
            more = [c for c in between if (c.groups[0].accelerator.id, c.accelerators) not in known]
            rows = _in_order([*rows, *_rows(request, more, run, rows)], kinds)
        fits_from = dict(
            zip(kinds, run(partial(fewest_of_kind, request, rows), kinds), strict=True)
        )
    front = _front(rows)
    rows = [row.model_copy(update={"on_front": i in front}) for i, row in enumerate(rows)]
    allowed = [i for i, row in enumerate(rows) if keeps(row, request.sizing)]
    priced = [i for i in allowed if rows[i].cost_usd is not None]

    least = partial(least_of, rows)
    fewest = least(allowed, "accelerators", "cost_usd", "days")
    chosen = recommended(rows, allowed)
    of_kind = best_of_kind(rows, request.sizing)
    return SizingAnswer(
        request=request.document(),
        version=__version__,
        rows=tuple(rows),
        front=tuple(front),
        steps=tuple(_steps(rows, front)),
        recommended=chosen,
        cheapest=least(priced, "cost_usd", "days"),
        fastest=least(allowed, "days", "cost_usd"),
        fewest=fewest,
        stops_paying=next((s for s in _steps(rows, _hull(rows, front)) if _costly(rows, s)), None),
        smallest=_first_of_kind(rows, request.sizing.accelerators),
        fits_from=fits_from,
        best_of_kind=of_kind,
        rivals=tuple(rivals(rows, chosen, of_kind)),
        offers=() if allowed else tuple(offers(rows, request)),
        batch_sizes=tuple(_batch_sizes(request)),
        space=_space(request.base),
        assumed=_assumed(request),
        prices_date=hardware.prices_date(),
        assumptions=tuple(_assumptions(request, rows)),
        sizing_time_s=time.perf_counter() - began,
    )


@contextmanager
def _mapping(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` that runs in this many processes."""
    if workers < 2:
        yield map
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield pool.map


def _in_order(rows: Sequence[Row], kinds: Sequence[str]) -> list[Row]:
    """By kind and size."""
    return sorted(rows, key=lambda row: (kinds.index(row.accelerator), row.accelerators))


def _rows(
    request: SizingRequest,
    clusters: list[ClusterSpec],
    run: Callable[..., Iterable[Any]],
    known: Sequence[Row] = (),
) -> list[Row]:
    """The rows of some clusters; known: rows of others, which are told with them."""
    sizing, kinds = request.sizing, dict[str, list[int]]()
    for place, cluster in enumerate(clusters):
        kinds.setdefault(cluster.groups[0].accelerator.id, []).append(place)
    found = run(partial(rows_of, request), ([clusters[i] for i in own] for own in kinds.values()))
    by_place = dict[int, Row]()
    for places, rows in zip(kinds.values(), found, strict=True):
        by_place.update((i, limited(row, sizing)) for i, row in zip(places, rows, strict=True))
        now = _in_order([*known, *(by_place[i] for i in sorted(by_place))], sizing.accelerators)
        step(len(now), len(known) + len(clusters), partial(_so_far, now))
    return [by_place[place] for place in range(len(clusters))]


def _so_far(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows that are known, for whoever waits: without their plans, which are long."""
    left_out = {"plan", "error_band"}
    return {"rows": [row.model_dump(mode="json", exclude=left_out) for row in rows]}


def _front(rows: list[Row]) -> list[int]:
    """Indices of the rows on the Pareto front of days and cost, the cheapest first."""
    known = [
        (row.cost_usd, row.days, i)
        for i, row in enumerate(rows)
        if row.cost_usd is not None and row.days is not None
    ]
    front: list[int] = []
    fewest = float("inf")
    for _, taken, i in sorted(known):
        if taken < fewest:
            front.append(i)
            fewest = taken
    return front


def _steps(rows: list[Row], front: list[int]) -> Iterator[Step]:
    """The steps along the front, each with the days that it saves and the cost that it adds."""
    for slow, fast in pairwise(front):
        before, after = rows[slow], rows[fast]
        saved = (before.days or 0.0) - (after.days or 0.0)
        added = (after.cost_usd or 0.0) - (before.cost_usd or 0.0)
        yield Step(
            row=slow, faster_row=fast, days_saved=saved, cost_added_usd=added,
            usd_per_day_saved=added / saved,
        )  # fmt: skip


def _hull(rows: list[Row], front: list[int]) -> list[int]:
    """The lower convex hull of the front: each step costs more per saved day than the last."""
    hull: list[int] = []
    for place in front:
        while len(hull) > 1 and (
            _usd_per_day(rows, hull[-2], hull[-1]) > _usd_per_day(rows, hull[-1], place)
        ):
            hull.pop()
        hull.append(place)
    return hull


def _usd_per_day(rows: list[Row], slow: int, fast: int) -> float:
    """Dollars per day that row `fast` saves over row `slow`."""
    step = next(_steps(rows, [slow, fast]))
    return step.usd_per_day_saved


def _costly(rows: list[Row], step: Step) -> bool:
    """Whether a saved day costs more than a day of training on the slower row."""
    slow = rows[step.row]
    a_day_usd = (slow.cost_usd or 0.0) / (slow.days or 1.0)
    return step.usd_per_day_saved > a_day_usd


def _assumed(request: SizingRequest) -> dict[str, float]:
    """The values in use for fields that have defaults: the request's own or the defaults."""
    sizing = request.sizing
    cluster = cluster_of_kind(sizing.accelerators[0], 1, 1, sizing)
    return {
        "pue": cluster.pue,
        "failures_per_1000_node_days": cluster.failures_per_1000_node_days or 0.0,
        "detect_s": sizing.detect_s,
        "restart_s": sizing.restart_s,
    }


def _batch_sizes(request: SizingRequest) -> Iterator[BatchSize]:
    """Batch sizes from an eighth to eight times the request's, in powers of two."""
    critical, training = request.sizing.critical_batch_size, request.base.training
    if critical is None:
        return
    assert training.tokens is not None
    own = training.global_batch_size
    fewest = training.tokens / float(tokens_over_fewest(own, critical))
    for batch in sorted({max(1, own * 2**k // 8) for k in range(7)}):
        tokens = fewest * float(tokens_over_fewest(batch, critical))
        yield BatchSize(
            global_batch_size=batch, tokens=tokens, steps=tokens / (batch * training.seq_length),
            efficient=batch <= critical,
        )  # fmt: skip


def _space(request: PlanRequest) -> dict[str, Any]:
    """The limits of the search, which apply to every row."""
    return request.search.model_dump(mode="json", exclude_none=True)["limits"]  # type: ignore[no-any-return]


def _assumptions(request: SizingRequest, rows: list[Row]) -> Iterator[Note]:
    """Notes on the assumptions behind days and cost."""
    sizing, training = request.sizing, request.base.training
    dated = hardware.prices_date()
    for kind in sizing.accelerators:
        price = next(
            (r.price_usd_per_accelerator_hour for r in rows if r.accelerator == kind), None
        )
        if price is None:
            text = f"{kind}: no price known, so no cost; give prices_usd_per_accelerator_hour"
        elif kind in sizing.prices_usd_per_accelerator_hour:
            text = f"{kind}: ${price:g} per accelerator-hour, as given"
        else:
            text = f"{kind}: ${price:g} per accelerator-hour, a catalog default of {dated}"
        yield Note(code="price", text=text)
    rate = sizing.failures_per_1000_node_days
    source = "as given" if rate is not None else "the catalog's default (Llama 3: 3.8)"
    rate = _assumed(request)["failures_per_1000_node_days"]
    yield Note(code="failures", text=f"{rate:g} failures per 1000 node-days, {source}")
    yield Note(
        code="restart",
        text=f"a failure is found after {sizing.detect_s:g} s, training is back "
        f"{sizing.restart_s:g} s later and repeats what no checkpoint had; checkpoints at Daly's "
        "best interval",
    )
    checkpoint = (
        f"{sizing.checkpoint_s:g} s per checkpoint, as given"
        if sizing.checkpoint_s is not None
        else f"training stands still while each rank copies its share of "
        f"{CHECKPOINT_BYTES_PER_PARAMETER:g} bytes per parameter to host memory"
    )
    yield Note(code="checkpoint", text=checkpoint)
    yield Note(code="power", text="nodes at their typical draw in training, times PUE")
    yield Note(
        code="batch",
        text=f"the same batch of {training.global_batch_size:,} sequences at every size",
    )
    if sizing.critical_batch_size is not None:
        more = float(tokens_over_fewest(training.global_batch_size, sizing.critical_batch_size))
        yield Note(
            code="critical_batch",
            text=f"at a critical batch of {sizing.critical_batch_size:,} sequences, as given, this "
            f"one needs {more:.2f} times the tokens of a very small one for the same loss "
            "(McCandlish et al., arXiv 1812.06162); tokens are taken as given",
        )
    narrow = ", ".join(f"{name} {_limit(limit)}" for name, limit in _space(request.base).items())
    yield Note(
        code="smallest",
        text=f"smallest that fits: of {STEPS} numbers in a doubling, whole nodes or parts of one",
    )
    yield Note(code="space", text=f"plans searched: {narrow or 'all'}")


def _limit(limit: dict[str, Any]) -> str:
    if "values" in limit:
        return "/".join(str(value) for value in limit["values"])
    return f"{limit.get('min', '')}..{limit.get('max', '')}"
