"""Computes what fits: for each method the trainer to use, and its plan at every length."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from typing import Any

from cost_models.plans import ParallelPlan, Plans
from planner import frameworks
from planner.answers.fits.answer import Cell, FitAnswer, Row
from planner.answers.fits.command import command_of
from planner.answers.fits.last_with_room import last_with_room
from planner.answers.fits.request import FitRequest, Method
from planner.answers.fits.trained_with import trained_with, trained_with_notes
from planner.answers.plans.competition import limited, prepared
from planner.answers.plans.explain import report
from planner.answers.plans.near_misses import near_misses
from planner.constraints import Rule
from planner.documents.answer import Change
from planner.documents.formats import listed, reason_words, share, size
from planner.documents.plan_report import Note
from planner.documents.problems import RequestError
from planner.documents.request import Bounds, PlanRequest
from planner.documents.scored_runs import has_runs
from planner.evidence.uncertainty.site_storage import room_of
from planner.frameworks import FRAMEWORKS
from planner.inputs.requests.parser import parse_request
from planner.progress import step, within_a_step
from planner.search.exhaustive import cost_model, search
from planner.search.outcome import Outcome
from planner.search.several_spaces import best_of_each
from planner.version import __version__

# Tokens of a sequence: as long as most models read.
FAR = 131_072
ALIKE = 1.01  # needs of memory that are the same
LENGTH_STEP, MOST_MICRO_BATCH = 256, 1024
DAY_HOURS = 24.0

TITLES: dict[Method, str] = {
    "full": "full",
    "full-offload": "full, optimizer in host memory",
    "full-in-backward": "full, updated in the backward pass",
    "lora": "LoRA",
    "qlora": "QLoRA (nf4)",
    "dpo": "DPO with LoRA",
}
_RANK = 16
_TRAINING: dict[Method, dict[str, Any]] = {
    "full": {},
    "full-offload": {},
    "full-in-backward": {"optimizer_in_backward": True},
    "lora": {"lora_rank": _RANK},
    "qlora": {"lora_rank": _RANK, "frozen_dtype": "nf4"},
    "dpo": {"lora_rank": _RANK, "loss": "dpo"},
}
_OFFLOADED = "offload_optimizer"


@dataclass(frozen=True)
class Tried:
    """One method by one trainer: its request, of any length, and the rules of its plans."""

    method: Method
    request: PlanRequest
    rules: tuple[Rule, ...]
    given: dict[str, Any]

    @property
    def trainer(self) -> str:
        return str(self.request.search.framework)

    @property
    def together(self) -> int:
        """Sequences of a micro-batch, at least: a pair for DPO."""
        return 2 if self.request.training.loss == "dpo" else 1

    def at(self, seq_length: int) -> PlanRequest:
        """The request with sequences of this length."""
        training = self.request.training.model_copy(update={"seq_length": seq_length})
        return self.request.model_copy(update={"training": training})

    def found(self, request: PlanRequest) -> Outcome:
        """The best plan of a request, or the nearest miss."""
        (outcome,) = best_of_each([(request, self.rules)])
        return outcome if outcome.best else search(request, self.rules, top_k=1)

    def least(self, seq_length: int) -> ParallelPlan | None:
        """The plan that needs the least memory; None where none is legal."""
        wanted = {**self.request.search.limits, "micro_batch_size": Bounds(values=(self.together,))}
        outcome = self.found(limited(self.at(seq_length), wanted, objective="memory_headroom"))
        return next(iter((*outcome.best, *outcome.nearest)), None)


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


@dataclass(frozen=True)
class ChosenTrainer:
    """The trainer of a method, or why there is none."""

    trainer: str = ""
    reason: str = ""


def chosen_trainer(asked: FitRequest, method: Method, seq_length: int) -> ChosenTrainer:
    """The trainer that `fit` takes for a method at one length."""
    found = _chosen(asked, method, seq_length, seq_length)
    if isinstance(found, str):
        return ChosenTrainer(reason=found)
    return ChosenTrainer(found.one.trainer)


@dataclass(frozen=True)
class _Chosen:
    """The trainer of a row: what it finds at the first length, and its frugal plan.

    least: the plan that needs the least memory, `needed_bytes`, at a great length.
    """

    one: Tried
    first: Outcome
    least: ParallelPlan
    needed_bytes: float


def _row(asked: FitRequest, method: Method, lengths: tuple[int, ...]) -> Row:
    """The row of a method."""
    far = max(lengths[-1], min(asked.base.model.max_position_embeddings or FAR, FAR))
    chosen = _chosen(asked, method, lengths[0], far)
    if isinstance(chosen, str):
        return Row(method=method, title=TITLES[method], reason=chosen)
    one, least = chosen.one, chosen.least
    outcomes = [chosen.first, *(one.found(one.at(length)) for length in lengths[1:])]
    cells = [_cell(asked, one, *each, least) for each in zip(lengths, outcomes, strict=True)]
    longest = max((cell.seq_length for cell in cells if cell.fits), default=None)
    return Row(
        method=method,
        title=TITLES[method],
        trainer=one.trainer,
        trainer_title=frameworks.get(one.trainer).title,
        cells=tuple(cells),
        longest_seq_length=None if longest is None else _longest(one, least, longest, far),
        change=_change(one, lengths[0], chosen.first) if longest is None else None,
        trains_with=trained_with(one.request.training, asked.training["global_batch_size"]),
    )


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


def _chosen(asked: FitRequest, method: Method, seq_length: int, far: int) -> _Chosen | str:
    """The trainer with the least memory at a great length, of those alike the fastest; or why none.

    The least memory there decides which reaches the longest sequences.  Where none fits at the
    first length, the one that misses by least.
    """
    able, why = [], ""
    loss = _TRAINING[method].get("loss", "next_token")
    every = {name: frameworks.get(name) for name in FRAMEWORKS}
    for name in (name for name, one in every.items() if one.adapters and loss in one.losses):
        try:
            one = tried(asked, method, name, seq_length)
        except RequestError as error:  # the training does not go with the method
            return error.problems[0].detail
        first = one.found(one.at(seq_length))
        if least := one.least(far):
            able.append(_Chosen(one, first, least, _needed(one.at(far), least)))
        else:
            why = _refused(one, seq_length, first)
    if not able:
        return why
    # Of trainers that only their code tells of, without a published run, none is taken unasked.
    able = [each for each in able if has_runs(each.least.runtime)] or able
    most_bytes = ALIKE * min(each.needed_bytes for each in able)
    alike = [each for each in able if each.needed_bytes <= most_bytes]
    return min(alike, key=lambda each: (each.first.score, _missing_bytes(each, seq_length)))


def _missing_bytes(chosen: _Chosen, seq_length: int) -> float:
    """Bytes that the nearest miss at a length needs; 0 where a plan fits."""
    nearest = () if chosen.first.best else chosen.first.nearest
    return min((_needed(chosen.one.at(seq_length), plan) for plan in nearest), default=0.0)


def tried(asked: FitRequest, method: Method, trainer: str, seq_length: int) -> Tried:
    """A method by a trainer.  Raises RequestError where the training does not go with it."""
    adapts = "lora_rank" in _TRAINING[method]
    given = {n: v for n, v in asked.training.items() if adapts or not n.startswith("lora_")}
    given = {**_TRAINING[method], **{name: v for name, v in given.items() if v is not None}}
    if method == "full-in-backward" and asked.base.cluster.accelerators == 1:
        given.setdefault("optimizer", "paged_adam_8bit")
    given["global_batch_size"] = _sequences(asked, method)
    search_for: dict[str, Any] = {"framework": trainer}
    if method == "full-offload":
        search_for[_OFFLOADED] = [True]
    document = {
        "model": asked.model,
        "cluster": asked.base.cluster.name,
        "training": {**given, "seq_length": seq_length},
        "search": search_for,
    }
    request = parse_request(document).model_copy(update={"cluster": asked.base.cluster})
    bound, rules = prepared(request)
    return Tried(method, bound, rules, given)


def _sequences(asked: FitRequest, method: Method) -> int:
    """The batch of a step: one sequence of each card where nothing can be accumulated."""
    if method == "full-in-backward":
        return asked.base.cluster.accelerators
    return int(asked.training["global_batch_size"])


def _refused(one: Tried, seq_length: int, outcome: Outcome) -> str:
    """Why a trainer has no plan: the rule that most plans break, of a plain one in a sentence."""
    if one.method == "full-offload" and one.request.cluster.accelerators == 1:
        return "the trainers here offload with FSDP (ZeRO 3), which needs two cards or more"
    rejected = outcome.counts.rejected if outcome.counts else {}
    most = max(rejected, key=lambda code: rejected[code], default="")
    plain = {"dp": one.request.cluster.accelerators, "zero_stage": 0, "runtime": "transformers"}
    plan = ParallelPlan(**plain, offload_optimizer=one.method == "full-offload")
    reasons = frameworks.get(one.trainer).reasons(one.at(seq_length), plan)
    said = (reason.text for reason in reasons if reason.code == most)
    return next(said, f"no plan: {reason_words(most)}")


def _needed(request: PlanRequest, plan: ParallelPlan) -> float:
    return float(cost_model(request).needed_bytes(Plans.from_rows([plan]))[0])


def _free_bytes(request: PlanRequest, plan: ParallelPlan) -> float:
    """Bytes that a plan leaves free; negative where it does not fit."""
    return room_of(request).of_plan(plan) - _needed(request, plan)


def _cell(
    asked: FitRequest, one: Tried, seq_length: int, outcome: Outcome, least: ParallelPlan
) -> Cell:
    """A method at one length; least: its plan that needs the least memory at a great length."""
    plan = next(iter((*outcome.best, *outcome.nearest)), least)
    cell = cell_of(asked, one, seq_length, plan, fits=bool(outcome.best))
    if not cell.fits:
        return cell
    grown = (_with_largest_micro_batch(one, seq_length, each) for each in (plan, least))
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
        return _free_bytes(with_micro_batch(one.at(seq_length), of(times)), of(times))

    return of(last_with_room(spare, 1, MOST_MICRO_BATCH // one.together))


def with_micro_batch(request: PlanRequest, plan: ParallelPlan) -> PlanRequest:
    """The request with a batch of whole micro-batches, and pairs for DPO, no smaller than asked."""
    together = 2 if request.training.loss == "dpo" else 1
    each = lcm(together, plan.micro_batch_size * plan.dp)
    sequences = -(-request.training.global_batch_size // each) * each
    training = request.training.model_copy(update={"global_batch_size": sequences})
    return request.model_copy(update={"training": training})


def _longest(one: Tried, plan: ParallelPlan, fitting: int, most: int) -> int:
    """The longest sequence that fits with a plan, no shorter than one that fits with another."""
    steps = last_with_room(
        lambda steps: _free_bytes(one.at(steps * LENGTH_STEP), plan),
        fitting // LENGTH_STEP,
        most // LENGTH_STEP,
    )
    return max(fitting, steps * LENGTH_STEP)


def _change(one: Tried, seq_length: int, outcome: Outcome) -> Change | None:
    """The smallest change that makes a length fit; None where more nodes and offload do not."""
    request = one.at(seq_length)
    misses = near_misses(request, cost_model(request), outcome, one.rules)
    return next((change for miss in misses for change in miss.changes), None)


def _times(asked: FitRequest, rows: list[Row]) -> str:
    """How far times may be off, and what was measured on the card."""
    bands = []
    for method, cell in ((row.method, cell) for row in rows for cell in row.cells if cell.fits):
        band, tokens_per_s = cell.error_band, cell.tokens_per_s
        assert band is not None
        assert tokens_per_s is not None
        seconds = cell.seq_length * _sequences(asked, method) / tokens_per_s
        bands.append((band.low_s / seconds, band.high_s / seconds, band.accelerator_rows))
    if not bands:
        return "nothing was run: memory is an estimate"
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
    if left_out := [f"{one:,}" for one in asked.fit.lengths if one not in lengths]:
        most = asked.base.model.max_position_embeddings
        text = f"left out: {listed(left_out)} tokens, beyond the model's {most:,} positions"
        yield Note(code="lengths", text=text)
