"""Limits of a sizing: what would be kept, how surely, and every kind that was asked for."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from planner import size
from planner.answers.sizing.answer import SizingAnswer
from planner.answers.sizing.request import parse_sizing
from planner.presentation.terminal.sizing_screen import sizing_screen

KINDS = ["h100-sxm", "mi300x", "a100-80gb"]


def asked(**sizing: Any) -> dict[str, Any]:
    """A small space, so that every search is short."""
    return {
        "model": "llama-3.1-8b",
        "training": {"seq_length": 4096, "global_batch_size": 512, "tokens": 3e11},
        "search": {"pp": 1, "cp": 1, "recompute": "none"},
        "sizing": {"accelerators": KINDS, "sizes": [64, 128], **sizing},
    }


@pytest.fixture(scope="module")
def free() -> SizingAnswer:
    return size(asked())


def test_without_limits_there_is_no_chance_and_no_offer(free: SizingAnswer) -> None:
    assert {row.chance_kept for row in free.rows} == {None}
    assert free.offers == ()
    for row in free.rows:
        assert row.low_days < row.days < row.high_days
        band = row.error_band
        assert row.high_days / row.low_days == pytest.approx(band.high_s / band.low_s)


def test_every_kind_asked_for_stays_and_is_held_against_the_choice(free: SizingAnswer) -> None:
    assert list(free.best_of_kind) == ["h100-sxm-80gb", "mi300x", "a100-sxm-80gb"]
    for kind, place in free.best_of_kind.items():
        own = [row for row in free.rows if row.accelerator == kind]
        assert free.rows[place].cost_usd == min(row.cost_usd for row in own)
    chosen = free.rows[free.recommended]
    assert len(free.rivals) == 2
    for rival in free.rivals:
        row = free.rows[rival.row]
        assert row.accelerator != chosen.accelerator
        assert (rival.chance_cheaper < 0.5) == (row.cost_usd > chosen.cost_usd)
        assert 0.0 <= rival.chance_sooner <= 1.0


def test_what_is_recommended_has_runs_and_is_surely_in_time(free: SizingAnswer) -> None:
    """The MI300X is the cheapest, but none of its runs is published."""
    cheapest, chosen = free.rows[free.cheapest], free.rows[free.recommended]
    assert cheapest.accelerator == "mi300x"
    assert cheapest.error_band.accelerator_rows == 0
    assert chosen.error_band.accelerator_rows > 0
    with_runs = [row for row in free.rows if row.error_band.accelerator_rows]
    assert chosen.cost_usd == min(row.cost_usd for row in with_runs)
    # Of a deadline that it keeps with one chance in two, a larger cluster is the sure one.
    found = size(asked(accelerators=["h100-sxm"], deadline_days=1.01 * free.rows[0].days))
    assert found.rows[found.recommended].accelerators == 128
    assert found.rows[found.recommended].chance_kept >= 0.9
    assert found.rows[0].chance_kept < 0.9
    alone = size(asked(accelerators=["mi300x"]))
    assert alone.recommended == alone.cheapest


def test_a_deadline_is_met_by_sizes_between_powers_of_two() -> None:
    request = asked(accelerators=["h100-sxm"], deadline_days=8.0)
    del request["sizing"]["sizes"]
    found = size(request)
    sizes = [row.accelerators for row in found.rows]
    assert sizes == sorted(set(sizes))
    between = [n for n in sizes if n & (n - 1)]
    low, high = max(n for n in sizes if n < between[0]), min(n for n in sizes if n > between[-1])
    assert between == [low * 5 // 4, low * 3 // 2, low * 7 // 4]
    assert high == 2 * low
    assert (
        found.rows[sizes.index(low)].chance_kept < 0.9 <= found.rows[sizes.index(high)].chance_kept
    )
    named = size(asked(accelerators=["h100-sxm"], deadline_days=8.0, sizes=[low, high]))
    assert [row.accelerators for row in named.rows] == [low, high]


@pytest.mark.parametrize("edge", ["low_days", "days", "high_days"])
def test_a_deadline_at_the_edge_of_the_band_is_kept_as_the_band_says(
    free: SizingAnswer, edge: str
) -> None:
    """Nine in ten below the upper end of an interval of 80 %, one in ten below the lower."""
    row = free.rows[free.cheapest]
    found = size(asked(deadline_days=getattr(row, edge)))
    own = found.rows[free.cheapest].chance_kept
    wanted = {"low_days": 0.1, "high_days": 0.9}.get(edge)
    assert own == pytest.approx(wanted, abs=1e-6) if wanted else 0.1 < own < 0.9


def test_a_budget_is_kept_as_surely_as_the_time_it_buys(free: SizingAnswer) -> None:
    row = free.rows[free.cheapest]
    found = size(asked(budget_usd=row.cost_usd * row.high_days / row.days, deadline_days=1e4))
    assert found.rows[free.cheapest].chance_kept == pytest.approx(0.9, abs=1e-6)


def test_where_nothing_keeps_the_limits_what_would_is_offered(free: SizingAnswer) -> None:
    fastest = min(row.days for row in free.rows)
    cheapest = min(row.cost_usd for row in free.rows)
    found = size(asked(deadline_days=fastest / 2, budget_usd=cheapest * 1.01))
    assert found.fastest is None
    by_limit = {offer.limit: offer for offer in found.offers}
    # The budget leaves one or more rows, of which the fastest says what the deadline must be.
    affordable = [row.days for row in found.rows if "budget" not in row.exceeds]
    assert by_limit["deadline"].value == min(affordable)
    assert "budget" not in by_limit  # no money makes any of these fast enough
    fewer = size(
        asked(deadline_days=fastest / 2, budget_usd=cheapest * 1.01)
        | {"training": asked()["training"] | {"tokens": by_limit["tokens"].value * 0.999}}
    )
    assert fewer.fastest is not None
    more = size(
        asked(deadline_days=fastest / 2, budget_usd=cheapest * 1.01)
        | {"training": asked()["training"] | {"tokens": by_limit["tokens"].value * 1.01}}
    )
    assert more.fastest is None


def test_what_a_budget_buys_is_said_in_tokens_days_and_money() -> None:
    document = asked(clusters=["64xh100-sxm"], budget_usd=10_000)
    found = size(document)
    (offer,) = [one for one in found.offers if one.limit == "tokens"]
    console = Console(width=120, record=True, file=StringIO())
    console.print(sizing_screen(found, parse_sizing(document), every_row=True))
    taken = found.rows[offer.row].days * offer.value / 3e11
    assert f"h100-sxm-80gb in {taken:.3g} days for $10" in console.export_text()


def test_the_smallest_that_fits_is_the_smallest() -> None:
    """Llama 2 13B with 16 bytes of state a parameter: 195 GiB, so no 2 of 80 GB and 4 with ZeRO."""
    found = size(
        model="llama-2-13b",
        training={"seq_length": 4096, "global_batch_size": 64, "tokens": 1e11},
        search={"cp": 1, "pp": [1, 2, 4], "micro_batch_size": 1},
        sizing={"accelerators": ["h100-sxm"], "sizes": [2, 64]},
    )
    assert found.rows[0].reason == "nothing fits"
    assert found.rows[found.smallest["h100-sxm-80gb"]].accelerators == 64
    assert found.fits_from == {"h100-sxm-80gb": 4}


@pytest.mark.exhaustive
def test_the_smallest_that_fits_hangs_on_no_other_size() -> None:
    """The experts of DeepSeek-V3 split on few numbers of nodes: more do not always fit."""
    asked = {
        "model": "deepseek-v3",
        "training": {
            "seq_length": 4096, "global_batch_size": 4096, "tokens": 1e12, "precision": "fp8",
        },
    }  # fmt: skip
    one, several, two = (
        size(asked, sizing=sizing).fits_from["h100-sxm-80gb"]
        for sizing in (
            {"clusters": ["2048xh100-sxm"]},
            {"accelerators": ["h100-sxm"], "sizes": [64, 192, 256, 1024]},
            {"clusters": ["1024xh100-sxm", "512xh100-sxm"]},
        )
    )
    assert one == several == two
    assert one is not None
    assert 128 < one <= 256


def test_ends_of_bands_say_how_far_choices_overlap(free: SizingAnswer) -> None:
    """Two clusters whose bands do not meet are told apart nearly for sure."""
    chosen = free.rows[free.cheapest]
    for rival in free.rivals:
        row = free.rows[rival.row]
        if row.low_days > chosen.high_days:
            assert rival.chance_sooner < 0.1
        if row.high_days < chosen.low_days:
            assert rival.chance_sooner > 0.9


def test_what_has_no_price_keeps_no_budget() -> None:
    found = size(asked(accelerators=["h100-sxm", "gb300-nvl72"], budget_usd=1.0))
    unpriced = [row for row in found.rows if row.accelerator == "gb300-nvl72"]
    assert unpriced
    assert all(row.cost_usd is None and row.exceeds == () for row in unpriced)
    assert found.recommended is found.cheapest is found.fastest is None
    assert {offer.limit for offer in found.offers} == {"budget", "tokens"}
