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
from planner.answers.fits.request import FitRequest, Method
from planner.answers.plans.competition import limited, prepared
from planner.answers.plans.explain import report
from planner.answers.plans.near_misses import near_misses
from planner.constraints import Rule
from planner.documents.answer import Change
from planner.documents.formats import listed, reason_words, share
from planner.documents.plan_report import Note
from planner.documents.problems import RequestError
from planner.documents.request import Bounds, PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.frameworks import FRAMEWORKS
from planner.frameworks.base import NEXT_TOKEN
from planner.inputs.requests.parser import parse_request
from planner.progress import step, within_a_step
from planner.search.exhaustive import cost_model, search
from planner.search.outcome import Outcome
from planner.version import __version__

# The least memory at this length decides which trainer reaches the longest sequences.
FAR = 131_072
ALIKE = 1.01  # needs of memory that are the same
LENGTH_STEP, MOST_MICRO_BATCH = 256, 1024
DAY_HOURS = 24.0

TITLES: dict[Method, str] = {
    "full": "full",
    "full-offload": "full, optimizer in host memory",
    "lora": "LoRA",
    "qlora": "QLoRA (nf4)",
    "dpo": "DPO with LoRA",
}
_RANK = 16
_TRAINING: dict[Method, dict[str, Any]] = {
    "full": {},
    "full-offload": {},
    "lora": {"lora_rank": _RANK},
    "qlora": {"lora_rank": _RANK, "frozen_dtype": "nf4"},
    "dpo": {"lora_rank": _RANK, "loss": "dpo"},
}
_OFFLOADED = "offload_optimizer"
# Whose DPO is priced: no launch file of it is written here.
_DPO = ("trl",)


@dataclass(frozen=True)
class _Try:
    """One method by one trainer: its request, of any length, and the rules of its plans."""

    method: Method
    request: PlanRequest
    rules: tuple[Rule, ...]
    given: dict[str, Any]

    @property
    def trainer(self) -> str:
        return str(self.request.search.framework)

    def at(self, seq_length: int, sequences: int | None = None) -> PlanRequest:
        """The request with sequences of this length, and a batch of so many."""
        training = self.request.training.model_copy(
            update={
                "seq_length": seq_length,
                "global_batch_size": sequences or self.request.training.global_batch_size,
            }
        )
        return self.request.model_copy(update={"training": training})

    def found(self, request: PlanRequest) -> Outcome:
        """The best plan of a request, or the nearest miss."""
        outcome = search(request, self.rules, top_k=1, best_only=True)
        return outcome if outcome.best else search(request, self.rules, top_k=1)

    def least(self, seq_length: int) -> ParallelPlan | None:
        """The plan that needs the least memory; None where none is legal."""
        wanted = {**self.request.search.limits, "micro_batch_size": Bounds(values=(1,))}
        outcome = self.found(limited(self.at(seq_length), wanted, objective="memory_headroom"))
        return next(iter((*outcome.best, *outcome.nearest)), None)


def fit(asked: FitRequest) -> FitAnswer:
    """What fits on the cards, by method and length."""
    began = time.perf_counter()
    base, lengths = asked.base, _lengths(asked)
    rows, total = [], len(asked.fit.methods)
    for i, method in enumerate(asked.fit.methods):
        step(i, total)
        with within_a_step():
            rows.append(_row(asked, method, lengths))
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
        assumptions=tuple(_assumptions(asked, lengths)),
        fit_time_s=time.perf_counter() - began,
    )


def _lengths(asked: FitRequest) -> tuple[int, ...]:
    """The lengths to try that the model can read."""
    most = asked.base.model.max_position_embeddings
    return tuple(one for one in asked.fit.lengths if most is None or one <= most)


def _row(asked: FitRequest, method: Method, lengths: tuple[int, ...]) -> Row:
    """The row of a method."""
    title = TITLES[method]
    far = max(lengths[-1], min(asked.base.model.max_position_embeddings or FAR, FAR))
    able, why = [], ""
    names = _DPO if method == "dpo" else [n for n in FRAMEWORKS if frameworks.get(n).adapters]
    for name in names:
        try:
            one = _tried(asked, method, name, lengths[0])
        except RequestError as error:  # the training does not go with the method
            return Row(method=method, title=title, reason=error.problems[0].detail)
        outcome = one.found(one.at(lengths[0]))
        if least := one.least(far):
            able.append((_needed(one.at(far), least), outcome.score, one, least, outcome))
        else:
            why = _refused(one, lengths[0], outcome)
    if not able:
        return Row(method=method, title=title, reason=why)
    most_needed = ALIKE * min(needed for needed, *_ in able)
    alike = [each for each in able if each[0] <= most_needed]
    _, _, one, least, outcome = min(alike, key=lambda each: each[1])
    outcomes = [outcome, *(one.found(one.at(length)) for length in lengths[1:])]
    cells = [_cell(asked, one, *each, least) for each in zip(lengths, outcomes, strict=True)]
    longest = max((cell.seq_length for cell in cells if cell.fits), default=None)
    return Row(
        method=method,
        title=title,
        trainer=one.trainer,
        trainer_title=frameworks.get(one.trainer).title,
        cells=tuple(cells),
        longest_seq_length=None if longest is None else _longest(one, least, longest, far),
        change=_change(one, lengths[0], outcome) if longest is None else None,
    )


def _tried(asked: FitRequest, method: Method, trainer: str, seq_length: int) -> _Try:
    """A method by a trainer.  Raises RequestError where the training does not go with it."""
    adapts = "lora_rank" in _TRAINING[method]
    given = {n: v for n, v in asked.training.items() if adapts or not n.startswith("lora_")}
    given = {**_TRAINING[method], **{name: v for name, v in given.items() if v is not None}}
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
    if method == "dpo":
        rules = tuple(one for one in rules if one is not NEXT_TOKEN)
    return _Try(method, bound, rules, given)


def _refused(one: _Try, seq_length: int, outcome: Outcome) -> str:
    """Why a trainer has no plan: the rule that most plans break, of a plain one in a sentence."""
    rejected = outcome.counts.rejected if outcome.counts else {}
    most = max(rejected, key=lambda code: rejected[code], default="")
    plain = {"dp": one.request.cluster.accelerators, "zero_stage": 0, "runtime": "transformers"}
    plan = ParallelPlan(**plain, offload_optimizer=one.method == "full-offload")
    reasons = frameworks.get(one.trainer).reasons(one.at(seq_length), plan)
    said = (reason.text for reason in reasons if reason.code == most)
    return next(said, f"no plan: {reason_words(most)}")


def _needed(request: PlanRequest, plan: ParallelPlan) -> float:
    return float(cost_model(request).needed_bytes(Plans.from_rows([plan]))[0])


def _fits(request: PlanRequest, plan: ParallelPlan) -> bool:
    return _needed(request, plan) <= room_of(request).of_plan(plan)


def _cell(
    asked: FitRequest, one: _Try, seq_length: int, outcome: Outcome, least: ParallelPlan
) -> Cell:
    """A method at one length; least: its plan that needs the least memory at a great length."""
    request = one.at(seq_length)
    plan = (*outcome.best, *outcome.nearest)[0]
    own = report(cost_model(request), request, plan)
    memory = own.memory
    known: dict[str, Any] = {
        "seq_length": seq_length,
        "plan": plan,
        "needed_bytes": memory.needed_bytes,
        "spare_bytes": room_of(request).of_plan(plan) - memory.needed_bytes,
        "host_bytes": memory.host_bytes,
    }
    if not outcome.best:
        return Cell(fits=False, **known)
    largest = max((_grown(one, seq_length, each) for each in (plan, least)), key=_size)
    return Cell(
        fits=True, **known, largest_micro_batch=_size(largest), largest_plan=largest,
        tokens_per_s=own.tokens_per_s, error_band=own.error_band,
        hours=None if own.days is None else own.days * DAY_HOURS, cost_usd=own.cost_usd,
        command=command_of(
            asked.model if isinstance(asked.model, str) else asked.model_file,
            request.cluster.name, {**one.given, "seq_length": seq_length}, one.trainer, plan,
        ),
    )  # fmt: skip


def _size(plan: ParallelPlan) -> int:
    return plan.micro_batch_size


def _grown(one: _Try, seq_length: int, plan: ParallelPlan) -> ParallelPlan:
    """The plan with the most sequences of a micro-batch that fit; with 1 if none does."""

    def of(sequences: int) -> ParallelPlan:
        return plan.model_copy(update={"micro_batch_size": sequences})

    def fits(sequences: int) -> bool:
        return _fits(with_micro_batch(one.at(seq_length), of(sequences)), of(sequences))

    return of(_last(fits, 1, MOST_MICRO_BATCH))


def with_micro_batch(request: PlanRequest, plan: ParallelPlan) -> PlanRequest:
    """The request with a batch of whole micro-batches and pairs, no smaller than asked."""
    each = lcm(2, plan.micro_batch_size * plan.dp)
    sequences = -(-request.training.global_batch_size // each) * each
    training = request.training.model_copy(update={"global_batch_size": sequences})
    return request.model_copy(update={"training": training})


def _longest(one: _Try, plan: ParallelPlan, fitting: int, most: int) -> int:
    """The longest sequence that fits with a plan, no shorter than one that fits with another."""
    steps = _last(
        lambda steps: _fits(one.at(steps * LENGTH_STEP), plan),
        fitting // LENGTH_STEP,
        most // LENGTH_STEP,
    )
    return max(fitting, steps * LENGTH_STEP)


def _last(holds: Any, low: int, high: int) -> int:
    """The last number of low to high for which it holds, as for all before; low if for none."""
    if high <= low or holds(high):
        return max(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _change(one: _Try, seq_length: int, outcome: Outcome) -> Change | None:
    """The smallest change that makes a length fit; None where more nodes and offload do not."""
    request = one.at(seq_length)
    misses = near_misses(request, cost_model(request), outcome, one.rules)
    return next((change for miss in misses for change in miss.changes), None)


def _assumptions(asked: FitRequest, lengths: tuple[int, ...]) -> Iterator[Note]:
    """What the table rests on."""
    risk = share(asked.base.search.memory_risk)
    yield Note(
        code="fits",
        text=f"fits: runs out of memory with a chance of at most {risk}; each plan is the fastest "
        "that does, and the largest micro-batch may need another",
    )
    yield Note(
        code="trainers",
        text="by the trainer that reaches the longest sequences, of those the fastest; hours and "
        "cost are without failures, checkpoints and evaluation",
    )
    if "dpo" in asked.fit.methods:
        yield Note(
            code="dpo",
            text="DPO: sequences are pairs, and the reference is the model without its adapters; "
            "by TRL's DPOTrainer, for which no launch files are written",
        )
    if left_out := [f"{one:,}" for one in asked.fit.lengths if one not in lengths]:
        most = asked.base.model.max_position_embeddings
        text = f"left out: {listed(left_out)} tokens, beyond the model's {most:,} positions"
        yield Note(code="lengths", text=text)
