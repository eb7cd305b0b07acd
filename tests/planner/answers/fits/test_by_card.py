"""What each card tunes: as `fit` says of the card alone, the more memory the more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.catalog import models
from planner.answers.fits.by_card import CARDS, CardsAnswer, fit_cards, parse_cards
from planner.answers.fits.compute import fit
from planner.answers.fits.request import parse_fit
from planner.documents.problems import RequestError
from planner.questions.examples import examples
from tests.fixtures.commands import Planner

NAMES = ("t4", "rtx-4090", "h100-sxm-80gb")
ASKED = {"model": "llama-3.1-8b", "cards": {"names": NAMES, "seq_length": 2048}}


@pytest.fixture(scope="module")
def answer() -> CardsAnswer:
    return fit_cards(parse_cards(ASKED))


def test_a_card_does_here_what_it_does_alone(answer: CardsAnswer) -> None:
    part = {"methods": ["qlora"], "lengths": [2048]}
    alone = fit(parse_fit({"model": "llama-3.1-8b", "cluster": "1x1xrtx-4090", "fit": part}))
    (row,) = (one for one in answer.rows if one.accelerator == "rtx-4090")
    cell, own = row.cells["qlora"], alone.rows[0].cells[0]
    assert cell is not None
    assert answer.trainers["qlora"] == alone.rows[0].trainer
    assert (cell.plan, cell.tokens_per_s) == (own.plan, own.tokens_per_s)
    assert (cell.spare_bytes, cell.command) == (own.spare_bytes, own.command)


def test_more_memory_leaves_more(answer: CardsAnswer) -> None:
    assert [row.accelerator for row in answer.rows] == list(NAMES)
    for method in answer.trainers:
        fitting = [bool(cell and cell.fits) for row in answer.rows for cell in [row.cells[method]]]
        assert fitting == sorted(fitting)
    small, _, large = answer.rows
    assert small.precision == "fp16"
    assert small.usd_per_million_tokens == {}
    cell, price = large.cells["lora"], large.price_usd_per_accelerator_hour
    assert cell is not None
    assert cell.tokens_per_s is not None
    assert price is not None
    usd = price / 3600 / cell.tokens_per_s * 1e6
    assert large.usd_per_million_tokens["lora"] == pytest.approx(usd)


def test_a_card_without_the_number_format_takes_another_trainer(answer: CardsAnswer) -> None:
    cell = answer.rows[0].cells["qlora"]
    assert cell is not None
    assert cell.fits
    assert f"--framework {answer.trainers['qlora']}" not in str(cell.command)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"cards": {"names": ["rtx-4091"]}},
            "/cards/names: no accelerator 'rtx-4091'; did you mean rtx-4090",
        ),
        ({"cards": {"seq_length": 0}}, "/cards/seq_length"),
        ({"cards": {"methods": ["grpo"]}}, "/cards/methods/0"),
        ({"cards": {"names": []}}, "/cards/names"),
        ({"model": None}, "/model"),
        ({"cluster": "1x1xl4"}, "/cluster: no field 'cluster' here"),
        ({"training": {"seq_length": 8}}, "follows from"),
    ],
)
def test_wrong_input_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_cards({**ASKED, **wrong})
    assert said in str(error.value)


def test_the_example_and_its_document_can_be_sent_again() -> None:
    asked = parse_cards(examples("cards")["short"]["value"])
    assert parse_cards(asked.document()) == asked


@pytest.mark.exhaustive
def test_command(planner: Planner) -> None:
    status, shown, _ = planner(
        "fit", "--model", "llama-3.1-8b", "--methods", "qlora", "--lengths", "1k"
    )
    assert status == 0
    for name in CARDS:
        assert name in shown
    assert "planner fit --model llama-3.1-8b --card rtx-3060" in shown
    status, text, _ = planner("fit", "--model", "llama-3.1-405b", "--methods", "qlora", "--json")
    assert status == 4
    assert not any(row["cells"]["qlora"]["fits"] for row in json.loads(text)["rows"])
    status, _, said = planner("fit", "--model", "llama-3.1-8b", "--lengths", "1k,2k")
    assert status == 2
    assert "one of --lengths" in said


def test_every_way_says_what_it_trains_with() -> None:
    asked = {"model": "qwen3-4b", "cards": {"names": ["rtx-4090"], "methods": ["full-in-backward"]}}
    told = [
        one.text for one in fit_cards(parse_cards(asked)).assumptions if one.code == "trained_with"
    ]
    (said,) = told
    assert "paged 8-bit Adam" in said
    assert "1 sequence here, not 16" in said


# A mixture, layers that no trainer here adapts, one that some ways do.
KINDS = ("gpt-oss-20b", "bloom-560m", "gemma-2-2b")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one.id, marks=() if one.id in KINDS else pytest.mark.exhaustive)
        for one in models.models()
    ],
)
def test_every_preset_has_an_answer(name: str) -> None:
    """A way has a column or a reason, also where no way has a trainer."""
    cards = {"names": ["rtx-4090", "h100-sxm-80gb", "mi300x"], "seq_length": 512}
    answer = fit_cards(parse_cards({"model": name, "cards": cards}))
    assert {*answer.trainers, *answer.reasons} == {*answer.titles}
    assert all(answer.reasons.values())
    assert bool(answer.assumptions) == bool(answer.trainers)
    for row in answer.rows:
        assert set(row.cells) == set(answer.trainers)


@pytest.mark.exhaustive
def test_no_trainer_is_said_on_the_screen(planner: Planner) -> None:
    status, shown, _ = planner("fit", "--model", "gpt-oss-20b", "--lengths", "1k")
    assert status == 4
    assert "gpt-oss-20b  on one card, sequences of 1,024 tokens\nfull, updated in the" in shown
    assert "rtx-3060" not in shown
    assert "QLoRA (nf4): " in shown


def test_a_large_card_that_no_trainer_starts_on_hides_no_way() -> None:
    """Gaudi has more memory than the card beside it, whose trainer is taken."""
    cards = {"names": ["rtx-4090", "gaudi3"], "methods": ["lora"], "seq_length": 512}
    answer = fit_cards(parse_cards({"model": "qwen3-0.6b", "cards": cards}))
    small, large = answer.rows
    assert list(answer.trainers) == ["lora"]
    assert small.cells["lora"] is not None
    assert small.cells["lora"].fits
    assert large.cells == {"lora": None}
    assert any(note.code == "trained_with" for note in answer.assumptions)
