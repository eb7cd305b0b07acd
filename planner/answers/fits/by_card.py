"""Which cards fine-tune a model at one length, each way, and how fast: one of each kind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from cost_models.catalog import hardware
from cost_models.catalog.names import UnknownName
from cost_models.fields import Spec
from cost_models.training_cost import usd_per_million_tokens
from planner.answers.fits.answer import Cell
from planner.answers.fits.attempt import TITLES, Tried, tried
from planner.answers.fits.compute import cell_of
from planner.answers.fits.request import FitRequest, Tuning, parse_fit
from planner.answers.fits.trainer_choice import ChosenTrainer, chosen_trainer
from planner.answers.fits.training_defaults import trained_with
from planner.documents.formats import listed
from planner.documents.plan_report import Answer, Document, Note
from planner.documents.problems import Gathered, RequestError, refuse, shown, unknown_field
from planner.documents.typed_values import plain_object, require_object, validate
from planner.progress import step, within_a_step
from planner.version import __version__

# What people own or rent one of, by memory.
CARDS = (
    "rtx-3060", "rtx-4060-ti-16gb", "t4", "rtx-3090", "rtx-4090", "l4", "a10g", "rtx-5090",
    "a100-sxm-40gb", "rtx-a6000", "l40s", "a100-sxm-80gb", "h100-sxm-80gb",
    "rtx-pro-6000-workstation", "h200-sxm-141gb", "b200-sxm-180gb", "mi300x",
)  # fmt: skip
PARTS = ("model", "training", "cards")


class CardsSpec(Spec):
    """What to try on one of each card."""

    methods: tuple[Tuning, ...] = Field(
        ("full-in-backward", "lora", "qlora"), min_length=1, max_length=6,
        description="ways to tune, as in fit, but for grpo",
    )  # fmt: skip
    seq_length: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        2048, description="tokens of a sequence"
    )
    names: tuple[Annotated[str, Field(max_length=100)], ...] = Field(
        CARDS, min_length=1, max_length=40, description="kinds of card, by catalog name"
    )


class CardRow(Document):
    """One card: a cell for each method; None where no trainer has a plan, for `reasons` says why.

    usd_per_million_tokens: by method, of those that fit; empty where no price is known.
    """

    accelerator: str
    name: str
    capacity_bytes: float
    precision: str
    price_usd_per_accelerator_hour: float | None
    cells: dict[Tuning, Cell | None]
    usd_per_million_tokens: dict[Tuning, float]


class CardsAnswer(Answer):
    """The answer to `planner fit` without a card and POST /v1/fits/by-card."""

    seq_length: int
    titles: dict[Tuning, str]
    trainers: dict[Tuning, str]
    reasons: dict[Tuning, str]
    rows: tuple[CardRow, ...]
    assumptions: tuple[Note, ...]
    fit_time_s: float


class CardsRequest(Spec):
    """A resolved question: a request of each card, the least memory first."""

    model: Any
    training: dict[str, Any]
    cards: CardsSpec
    each: tuple[FitRequest, ...]

    def document(self) -> dict[str, Any]:
        """This request as plain data that can be sent again."""
        own = self.cards.model_dump(mode="json")
        return {"model": self.model, "training": self.training, "cards": own}


def parse_cards(document: Any) -> CardsRequest:
    """What a user's document asks.  Raises RequestError with all problems."""
    document = plain_object(document)
    problems = Gathered(unknown_field("", name, PARTS) for name in document if name not in PARTS)
    cards = problems.of(lambda: _cards(document.get("cards"))) or CardsSpec()
    training = {} if document.get("training") is None else document["training"]
    asked = {"model": document["model"]} if "model" in document else {}
    part = {"methods": list(cards.methods), "lengths": [cards.seq_length]}

    def of_card(name: str) -> FitRequest:
        try:
            hardware.accelerator(name)
        except UnknownName as error:
            detail, near = f"no accelerator {shown(name)!r}", tuple(error.nearest)
            raise refuse("/cards/names", "unknown_name", detail, name, did_you_mean=near) from None
        return parse_fit({**asked, "cluster": f"1x1x{name}", "training": training, "fit": part})

    each = [problems.of(partial(of_card, name)) for name in cards.names]
    if problems:
        raise RequestError(dict.fromkeys(problems))
    known = [one for one in each if one is not None]
    known.sort(key=lambda one: one.base.cluster.groups[0].accelerator.memory_bytes)
    return CardsRequest(model=document["model"], training=training, cards=cards, each=tuple(known))


def _cards(value: Any) -> CardsSpec:
    require_object("/cards", value := {} if value is None else value)
    spec = validate("/cards", value, CardsSpec)
    once = tuple(dict.fromkeys(spec.methods)), tuple(dict.fromkeys(spec.names))
    return spec.model_copy(update=dict(zip(("methods", "names"), once, strict=True)))


def fit_cards(asked: CardsRequest) -> CardsAnswer:
    """What each card tunes, by the trainer that the largest takes of those that have one."""
    began = time.perf_counter()
    length = asked.cards.seq_length
    chosen = {method: _chosen(asked, method) for method in asked.cards.methods}
    trainers = {method: found.trainer for method, (_, found) in chosen.items() if found.trainer}
    reasons = {method: found.reason for method, (_, found) in chosen.items() if not found.trainer}
    rows = []
    for i, one in enumerate(asked.each):
        step(i, len(asked.each))
        with within_a_step():
            rows.append(_row(one, trainers, asked.cards))
    return CardsAnswer(
        request=asked.document(),
        version=__version__,
        seq_length=length,
        titles={method: TITLES[method] for method in asked.cards.methods},
        trainers=trainers,
        reasons=reasons,
        rows=tuple(rows),
        assumptions=(*_assumptions(trainers, rows), *_trained_with(chosen, length)),
        fit_time_s=time.perf_counter() - began,
    )


def _chosen(asked: CardsRequest, method: Tuning) -> tuple[FitRequest, ChosenTrainer]:
    """The largest card that has a trainer for a method, and it; else why the largest has none."""
    first = None
    for one in reversed(asked.each):
        found = one, chosen_trainer(one, method, asked.cards.seq_length)
        if found[1].trainer:
            return found
        first = first or found
    assert first is not None
    return first


def _row(asked: FitRequest, trainers: dict[Tuning, str], cards: CardsSpec) -> CardRow:
    group = asked.base.cluster.groups[0]
    cells = {
        method: _cell(asked, method, trainers[method], cards.seq_length)
        or _by_another(asked, method, cards.seq_length)
        for method in cards.methods
        if method in trainers
    }
    rates = {
        method: usd_per_million_tokens(asked.base.cluster, cell.tokens_per_s)
        for method, cell in cells.items()
        if cell is not None and cell.tokens_per_s
    }
    return CardRow(
        accelerator=group.accelerator.id,
        name=group.accelerator.name,
        capacity_bytes=group.accelerator.memory_bytes,
        precision=asked.base.training.precision,
        price_usd_per_accelerator_hour=group.price_usd_per_accelerator_hour,
        cells=cells,
        usd_per_million_tokens={name: usd for name, usd in rates.items() if usd is not None},
    )


def _by_another(asked: FitRequest, method: Tuning, seq_length: int) -> Cell | None:
    """The cell by the trainer that this card takes: it may lack a number format of the others."""
    found = chosen_trainer(asked, method, seq_length)
    return _cell(asked, method, found.trainer, seq_length) if found.trainer else None


def _cell(asked: FitRequest, method: Tuning, trainer: str, seq_length: int) -> Cell | None:
    try:
        one: Tried = tried(asked, method, trainer, seq_length)
    except RequestError:  # the card lacks a number format that the method needs
        return None
    outcome = one.found(seq_length)
    plan = next(iter((*outcome.best, *outcome.nearest)), None)
    if plan is None:
        return None
    return cell_of(asked, one, seq_length, plan, fits=bool(outcome.best))


def _trained_with(
    chosen: dict[Tuning, tuple[FitRequest, ChosenTrainer]], seq_length: int
) -> Iterator[Note]:
    """What each way trains with on the card that chose its trainer."""
    for method, (card, found) in chosen.items():
        if found.trainer:
            own = tried(card, method, found.trainer, seq_length).request.training
            said = trained_with(own, card.training["global_batch_size"])
            yield Note(code="trained_with", text=f"{TITLES[method]}: {said}")


def _assumptions(trainers: dict[Tuning, str], rows: list[CardRow]) -> Iterator[Note]:
    """What the table rests on; nothing where no way has a trainer."""
    if not trainers:
        return
    used = [f"{TITLES[method]} by {trainer}" for method, trainer in trainers.items()]
    said = f"one card of each kind; {listed(used)}; planner fit --card NAME compares trainers"
    yield Note(code="trainers", text=said)
    spans = [
        (cell.error_band.low_s / cell.error_band.high_s) ** 0.5
        for row in rows
        for cell in row.cells.values()
        if cell is not None and cell.error_band is not None
    ]
    if spans:
        text = f"a run takes {min(spans):.2f} to {1 / min(spans):.2f} times the time shown"
        yield Note(code="times", text=f"times are estimates; in 4 of 5 cases {text}")
    dated = hardware.prices_date()
    yield Note(
        code="price", text=f"prices are catalog defaults of {dated}; cards without are owned"
    )
