"""Computes what fits: for each method the trainer to use, and its plan at every length."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import lcm
from typing import Any

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.answers.fits.answer import DAY_HOURS, Cell, FitAnswer, Row
from planner.answers.fits.attempt import TITLES, Found, Tried, best_at, sequences
from planner.answers.fits.command import command_of
from planner.answers.fits.grpo import grpo_notes, grpo_row
from planner.answers.fits.largest_that_fits import LENGTH_STEP, largest_that_fits
from planner.answers.fits.request import FitRequest, Method
from planner.answers.fits.trainer_choice import chosen
from planner.answers.fits.training_defaults import trained_with, trained_with_notes
from planner.answers.fits.what_helps import smallest_change
from planner.answers.plans.explain import report
from planner.answers.plans.near_misses import free_bytes
from planner.documents.formats import listed, share, size
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.progress import step, within_a_step
from planner.search.exhaustive import cost_model
from planner.version import __version__

# Tokens of a sequence: as long as most models read.
FAR = 131_072
MOST_MICRO_BATCH = 1024


def fit(asked: FitRequest) -> FitAnswer:
    """What fits on the cards, by method and length."""
    began = time.perf_counter()
    base, most = asked.base, asked.base.model.max_position_embeddings
    lengths = tuple(one for one in asked.fit.lengths if most is None or one <= most)
    rows, total = [], len(asked.fit.methods)
    for i, method in enumerate(asked.fit.methods):
        step(i, total)
        with within_a_step():
            rows.append(_row(asked, method, lengths))
    rows = [_with_other_way(asked, row, rows) for row in rows]
    group = base.cluster.groups[0]
    return FitAnswer(
        request=asked.document(),
        version=__version__,
        accelerator=group.accelerator.name,
        nodes=group.nodes,
        accelerators=base.cluster.accelerators,
        precision=base.training.precision,
        global_batch_size=asked.training["global_batch_size"],
        lengths=lengths,
        capacity_bytes=group.accelerator.memory_bytes,
        room_bytes=room_of(base).of_plan(ParallelPlan(runtime="transformers")),
        memory_risk=base.search.memory_risk,
        price_usd_per_accelerator_hour=group.price_usd_per_accelerator_hour,
        rows=tuple(rows),
        assumptions=tuple(_assumptions(asked, lengths, rows)),
        fit_time_s=time.perf_counter() - began,
    )


def _row(asked: FitRequest, method: Method, lengths: tuple[int, ...]) -> Row:
    """The row of a method."""
    far = max(lengths[-1], min(asked.base.model.max_position_embeddings or FAR, FAR))
    if method == "grpo":
        return grpo_row(asked, lengths, far)
    own = chosen(asked, method, lengths[0], far)
    if isinstance(own, str):
        return Row(method=method, title=TITLES[method], reason=own)
    one, frugal = own.one, (own.frugal, own.least)
    found = [own.first, *(best_at(one, length) for length in lengths[1:])]
    cells = [_cell(asked, each, *frugal) for each in found]
    longest = max((cell.seq_length for cell in cells if cell.fits), default=None)
    sharded = any(each.one is one.sharded for each in found if each.outcome.best)
    return Row(
        method=method,
        title=TITLES[method],
        trainer=one.trainer,
        trainer_title=frameworks.get(one.trainer).title,
        cells=tuple(cells),
        longest_seq_length=None if longest is None else _longest(*frugal, longest, far),
        change=smallest_change(asked, method, own, lengths[0]) if longest is None else None,
        unmeasured_trainer=own.unmeasured,
        trains_with=trained_with(
            one.request.training, asked.training["global_batch_size"],
            one.sharded.request.training if sharded and one.sharded else None,
        ),
    )  # fmt: skip


def _with_other_way(asked: FitRequest, row: Row, rows: list[Row]) -> Row:
    """The row of full tuning with the way that fits on these cards where it does not."""
    if row.method != "full" or row.longest_seq_length is not None or not row.cells:
        return row
    lengths = (row.cells[0].seq_length,)
    tried = (one for one in rows if one.method == "full-offload")
    other = next(tried, None) or _row(asked, "full-offload", lengths)
    if other.longest_seq_length is None:
        return row
    host_bytes, known = other.cells[0].host_bytes, asked.base.cluster.groups[0].host_memory_bytes
    fits = known is None or host_bytes <= known
    return row.model_copy(update={"host_bytes": host_bytes}) if fits else row


def _cell(asked: FitRequest, found: Found, frugal: Tried, least: ParallelPlan) -> Cell:
    """A method at one length; least: its plan that needs the least memory at a great length.

    frugal: the training of that plan.
    """
    plan = next(iter((*found.outcome.best, *found.outcome.nearest)), least)
    cell = cell_of(asked, found.one, found.seq_length, plan, fits=bool(found.outcome.best))
    if not cell.fits:
        return cell
    pairs = ((found.one, plan), (frugal, least))
    grown = (_with_largest_micro_batch(one, found.seq_length, each) for one, each in pairs)
    largest = max(grown, key=lambda each: each.micro_batch_size)
    more = {"largest_micro_batch": largest.micro_batch_size, "largest_plan": largest}
    return cell.model_copy(update=more)


def cell_of(asked: FitRequest, one: Tried, seq_length: int, plan: ParallelPlan, fits: bool) -> Cell:
    """A plan of a method at one length: its memory and, where it fits, its time and command."""
    request = one.at(seq_length)
    own = report(cost_model(request), request, plan)
    memory = own.memory
    known: dict[str, Any] = {
        "seq_length": seq_length,
        "plan": plan,
        "needed_bytes": memory.needed_bytes,
        "spare_bytes": room_of(request).of_plan(plan) - memory.needed_bytes,
        "host_bytes": memory.host_bytes,
    }
    if not fits:
        return Cell(fits=False, **known)
    return Cell(
        fits=True, **known, tokens_per_s=own.tokens_per_s, error_band=own.error_band,
        hours=None if own.days is None else own.days * DAY_HOURS, cost_usd=own.cost_usd,
        command=command_of(
            asked.model if isinstance(asked.model, str) else asked.model_file,
            request.cluster.name, {**one.given, "seq_length": seq_length}, one.trainer, plan,
        ),
    )  # fmt: skip


def _with_largest_micro_batch(one: Tried, seq_length: int, plan: ParallelPlan) -> ParallelPlan:
    """The plan with the most sequences of a micro-batch that fit; with the least if none does."""

    def of(times: int) -> ParallelPlan:
        return plan.model_copy(update={"micro_batch_size": times * one.together})

    def spare(times: int) -> float:
        return free_bytes(with_micro_batch(one.at(seq_length), of(times)), of(times))

    return of(largest_that_fits(spare, 1, MOST_MICRO_BATCH // one.together))


def with_micro_batch(request: PlanRequest, plan: ParallelPlan) -> PlanRequest:
    """The request with a batch of whole micro-batches, and pairs for DPO, no smaller than asked."""
    together = 2 if request.training.loss == "dpo" else 1
    each = lcm(together, plan.micro_batch_size * plan.dp)
    sequences = -(-request.training.global_batch_size // each) * each
    training = request.training.model_copy(update={"global_batch_size": sequences})
    return request.model_copy(update={"training": training})


def _longest(one: Tried, plan: ParallelPlan, fitting: int, most: int) -> int:
    """The longest sequence that fits with a plan, no shorter than one that fits with another."""
    steps = largest_that_fits(
        lambda steps: free_bytes(one.at(steps * LENGTH_STEP), plan),
        fitting // LENGTH_STEP,
        most // LENGTH_STEP,
    )
    return max(fitting, steps * LENGTH_STEP)


def _times(asked: FitRequest, rows: list[Row]) -> str:
    """How far times may be off, and what was measured on the card."""
    bands = []
    tuned = ((row.method, cell) for row in rows for cell in row.cells if cell.fits)
    for method, cell in tuned:
        if method == "grpo":  # of which a note of its own tells
            continue
        band, tokens_per_s = cell.error_band, cell.tokens_per_s
        assert band is not None
        assert tokens_per_s is not None
        seconds = cell.seq_length * sequences(asked, method) / tokens_per_s
        bands.append((band.low_s / seconds, band.high_s / seconds, band.accelerator_rows))
    if not bands:
        return "memory is an estimate"
    low, high, known = zip(*bands, strict=True)
    off = f"in 4 of 5 cases a run takes {min(low):.2f} to {max(high):.2f} times the time shown"
    return f"memory and times are estimates; {off}; published runs on this card: {max(known)}"


def _assumptions(asked: FitRequest, lengths: tuple[int, ...], rows: list[Row]) -> Iterator[Note]:
    """What the table rests on."""
    yield Note(code="times", text=_times(asked, rows))
    risk = share(asked.base.search.memory_risk)
    yield Note(
        code="fits",
        text=f'"fits" means a risk of at most {risk} of running out of memory; tokens/s and GiB '
        'free are those of the fastest plan that fits, and "max mbs" may need a slower one',
    )
    yield Note(
        code="trainers",
        text="each row is for one trainer: the fastest of those that reach the longest sequences; "
        "hours and cost are without failures, checkpoints and evaluation",
    )
    yield from trained_with_notes(rows)
    if host_bytes := max((cell.host_bytes for row in rows for cell in row.cells), default=0.0):
        known = asked.base.cluster.groups[0].host_memory_bytes
        has = "whose host memory is not known" if known is None else f"which has {size(known)}"
        less = known is not None and host_bytes > known
        text = f"the optimizer in host memory takes {size(host_bytes)} of a node, {has}"
        yield Note(code="host", text=text + ": it does not fit" * less)
    if "dpo" in asked.fit.methods:
        yield Note(
            code="dpo",
            text="DPO: sequences are pairs, and the reference is the model without its adapters",
        )
    yield from grpo_notes(asked, rows)
    if left_out := [f"{one:,}" for one in asked.fit.lengths if one not in lengths]:
        most = asked.base.model.max_position_embeddings
        text = f"left out: {listed(left_out)} tokens, beyond the model's {most:,} positions"
        yield Note(code="lengths", text=text)
