"""GRPO with adapters on the cards, by TRL: generation, scoring and training take turns on them.

Of the trainers of such steps here it is the one that trains adapters.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.training_cost import training_cost
from planner.answers.fits.answer import DAY_HOURS, Cell, Row
from planner.answers.fits.attempt import RANK, TITLES, best_at, targets_beside_experts, tried
from planner.answers.fits.command import NEEDLESS, option_words
from planner.answers.fits.largest_that_fits import LENGTH_STEP, largest_that_fits
from planner.answers.fits.request import FitRequest
from planner.answers.fits.trainer_choice import why_refused
from planner.answers.fits.training_defaults import trained_with
from planner.answers.fits.what_helps import on_more_nodes
from planner.answers.plans.emission import NothingFits
from planner.answers.plans.near_misses import LARGEST_ENLARGEMENT
from planner.answers.reinforcement.compute import step
from planner.answers.reinforcement.documents import ReinforcementAnswer, ReinforcementRequest
from planner.answers.reinforcement.engines import least_engine_bytes
from planner.answers.reinforcement.parsing import LEAST_OF_GRPO, parse_reinforcement
from planner.documents.answer import Change
from planner.documents.plan_report import Note
from planner.documents.problems import RequestError, refuse
from planner.evidence.uncertainty.site_storage import room_of
from planner.frameworks.step_trainers import TRAINERS, Trainer
from planner.search.axes import SpaceTooLarge

TRAINER: Trainer = "trl"
# Of a prompt where they divide the batch, and of a step: as TRL's and verl's examples have them.
SAMPLES, RESPONSES = 8, 128
PROMPT_SHARE = 4  # a prompt is that part of the length


@dataclass(frozen=True)
class Step:
    """A step of sequences of one length: what comes of it, None where it misses the cards.

    spare_bytes: of what a card may be expected to need, where it needs most; negative: what it
    misses by.
    """

    asked: ReinforcementRequest
    answer: ReinforcementAnswer | None
    spare_bytes: float

    @property
    def fits(self) -> bool:
        """Whether each phase has room on the cards and in the memory of their node."""
        return self.answer is not None and self.answer.fits and self.spare_bytes >= 0


def grpo_row(asked: FitRequest, lengths: tuple[int, ...], far: int) -> Row:
    """GRPO at each length; far: the longest that is tried."""
    try:
        steps = list(_steps(asked, lengths))
    except NothingFits as error:
        reason = _unable(asked, lengths[0]) or str(error)
        return Row(method="grpo", title=TITLES["grpo"], reason=reason)
    except RequestError as error:  # the model or the training does not go with it
        return Row(method="grpo", title=TITLES["grpo"], reason=error.problems[0].detail)
    cells = [_cell(asked, one, length) for one, length in zip(steps, lengths, strict=True)]
    longest = max((cell.seq_length for cell in cells if cell.fits), default=None)
    training = steps[0].asked.request.training
    return Row(
        method="grpo",
        title=TITLES["grpo"],
        trainer=TRAINER,
        trainer_title=TRAINERS[TRAINER].title,
        cells=tuple(cells),
        longest_seq_length=None if longest is None else _longest(asked, longest, far),
        change=_more_nodes(asked, lengths[0]) if longest is None else None,
        trains_with=trained_with(training, training.global_batch_size),
    )


def _unable(asked: FitRequest, seq_length: int) -> str:
    """Why the trainer can't run the training of a step at all; "" where it can."""
    one = tried(asked, "lora", TRAINER, seq_length)
    outcome = best_at(one, seq_length).outcome
    found = outcome.best or outcome.nearest
    return "" if found else why_refused(one, seq_length, outcome)


def grpo_notes(asked: FitRequest, rows: list[Row]) -> Iterator[Note]:
    """What a step is, and how far its time may be off."""
    for row in rows:
        if row.method == "grpo" and row.cells:
            spec = _request(asked, row.cells[0].seq_length).reinforcement
            text = (
                f"GRPO: a step is {spec.prompts} prompts of a quarter of the length and "
                f"{spec.samples} responses to each, of up to the rest of it and on average an "
                "eighth of that, by vLLM on the same cards; tokens/s count both; GiB free are "
                "beside an engine with the cache of one sequence"
            )
            yield Note(code="grpo", text=text + _times(asked, row))


def _times(asked: FitRequest, row: Row) -> str:
    """How far the time of a step may be off; nothing where none fits."""
    low, high = [], []
    for cell in row.cells:
        if cell.error_band is not None and cell.tokens_per_s is not None:
            spec = _request(asked, cell.seq_length).reinforcement
            tokens = spec.sequences * (spec.prompt_tokens + spec.mean_tokens)
            low.append(cell.error_band.low_s * cell.tokens_per_s / tokens)
            high.append(cell.error_band.high_s * cell.tokens_per_s / tokens)
    if not low:
        return ""
    span = f"{min(low):.2f} to {max(high):.2f} times the time shown"
    return f"; in 4 of 5 cases a step takes {span}; `planner rl` with your own lengths narrows it"


def _request(asked: FitRequest, seq_length: int) -> ReinforcementRequest:
    """A step with prompts and longest responses of a length together.  Raises RequestError."""
    accelerators, given = asked.base.cluster.accelerators, dict(asked.training)
    batch = given.pop("global_batch_size")
    if asked.usual_batch:
        each = lcm(SAMPLES, accelerators)
        batch = -(-RESPONSES // each) * each
    if (samples := gcd(SAMPLES, batch)) < LEAST_OF_GRPO:
        detail = f"GRPO compares the responses of a prompt: the batch must be even, got {batch}"
        raise refuse("/training/global_batch_size", "inconsistent", detail, batch)
    training = {name: value for name, value in given.items() if name not in NEEDLESS}
    prompt = max(1, seq_length // PROMPT_SHARE)
    found = parse_reinforcement({
        "model": asked.model,
        "cluster": asked.base.cluster.name,
        "training": {"lora_rank": RANK, **targets_beside_experts(asked, TRAINER), **training},
        "reinforcement": {
            "trainer": TRAINER, "prompts": batch // samples, "samples": samples,
            "prompt_tokens": prompt, "max_response_tokens": max(1, seq_length - prompt),
        },
    })  # fmt: skip
    # Only plans that the trainer can run: `planner rl` may answer with others, without its files.
    search = found.request.search.model_copy(update={"framework": TRAINERS[TRAINER].framework})
    known = {"cluster": asked.base.cluster, "search": search}
    return found.model_copy(update={"request": found.request.model_copy(update=known)})


def _steps(asked: FitRequest, lengths: tuple[int, ...]) -> Iterator[Step]:
    """A step of each length, the shortest first: what one misses by, longer ones miss by too."""
    most = float("inf")
    for length in lengths:
        one = _step(asked, length)
        if not one.fits:
            one = replace(one, spare_bytes=(most := min(most, one.spare_bytes)))
        yield one


def _step(asked: FitRequest, seq_length: int) -> Step:
    """The fastest step of a length.  Raises RequestError where cards are not what it lacks."""
    own = _request(asked, seq_length)
    try:
        answer = step(own)
    except NothingFits as error:
        if error.missing_bytes is None:
            raise
        return Step(own, None, -error.missing_bytes)
    return Step(own, answer, _room_bytes(own) - _needed_bytes(own, answer))


def _step_if_any(asked: FitRequest, seq_length: int) -> Step | None:
    """As _step; None where no plan of this length, or on so many cards, is legal."""
    with suppress(RequestError, SpaceTooLarge):
        return _step(asked, seq_length)
    return None


def _room_bytes(asked: ReinforcementRequest) -> float:
    return room_of(asked.request).of_plan(ParallelPlan(runtime="transformers"))


def _needed_bytes(asked: ReinforcementRequest, answer: ReinforcementAnswer) -> float:
    """The most that a card needs at a time, of an engine's cache only that of one sequence."""
    least = least_engine_bytes(asked, answer.ways[0].generation_tp)
    needed = []
    for phase in answer.memory:
        if phase.name == "generation":
            taken = phase.parts["generation weights"] + phase.parts["cache and engine"]
            needed.append(phase.total_bytes - taken + least)
        elif phase.name != "host":
            needed.append(phase.total_bytes)
    return max(needed)


def _cell(asked: FitRequest, one: Step, seq_length: int) -> Cell:
    """A step of a length: its memory and, where it fits, its rate and command."""
    cell = Cell(
        seq_length=seq_length, fits=one.fits, spare_bytes=one.spare_bytes,
        needed_bytes=_room_bytes(one.asked) - one.spare_bytes,
        plan=None if one.answer is None else one.answer.training.plan,
    )  # fmt: skip
    if one.answer is None or not one.fits:
        return cell
    rate = one.answer.tokens / one.answer.step_time_s
    low_s, high_s = one.answer.interval_s
    band = one.answer.training.error_band.model_copy(update={"low_s": low_s, "high_s": high_s})
    command = _command(asked, one.asked)
    known: dict[str, Any] = {"tokens_per_s": rate, "error_band": band, "command": command}
    if (tokens := asked.base.training.tokens) is not None:
        cost = training_cost(asked.base.cluster, tokens / rate)
        known |= {"hours": cost.days * DAY_HOURS, "cost_usd": cost.cost_usd}
    return cell.model_copy(update=known)


def _command(asked: FitRequest, own: ReinforcementRequest) -> str:
    """What writes the files of a step."""
    spec = own.reinforcement
    training = {"lora_rank": RANK, **targets_beside_experts(asked, TRAINER), **asked.training}
    options = {
        "model": asked.model if isinstance(asked.model, str) else asked.model_file,
        "cluster": asked.base.cluster.name,
        **{n: v for n, v in training.items() if n not in (*NEEDLESS, "global_batch_size")},
        "trainer": TRAINER, "prompts": spec.prompts, "samples": spec.samples,
        "prompt_tokens": spec.prompt_tokens, "max_response_tokens": spec.max_response_tokens,
    }  # fmt: skip
    return shlex.join(["planner", "rl-emit", *option_words(options)])


def _longest(asked: FitRequest, fitting: int, most: int) -> int:
    """The longest sequence that fits, in steps of 256 tokens."""

    def spare(steps: int) -> float:
        own = _step_if_any(asked, steps * LENGTH_STEP)
        if own is None:
            return -1.0
        return own.spare_bytes if own.fits else min(own.spare_bytes, -1.0)

    steps = largest_that_fits(spare, fitting // LENGTH_STEP, most // LENGTH_STEP)
    return max(fitting, steps * LENGTH_STEP)


def _more_nodes(asked: FitRequest, seq_length: int) -> Change | None:
    """The smallest doubling of the nodes on which a length fits."""
    factor = 1
    while (factor := 2 * factor) <= LARGEST_ENLARGEMENT:
        larger = on_more_nodes(asked, factor)
        own = _step_if_any(larger, seq_length)
        if own is not None and own.answer is not None and own.fits:
            training, answer = own.answer.training, own.answer
            return Change(
                set={"nodes": larger.base.cluster.groups[0].nodes},
                plan=training.plan,
                peak_bytes=training.memory.peak_bytes,
                iteration_time_s=answer.step_time_s,
                tokens_per_s=answer.tokens / answer.step_time_s,
            )
    return None
