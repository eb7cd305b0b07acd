"""Timelines on a terminal: to scale, at any width, and the same without colour."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from planner.answers.pipelines.all_schedules import compare_schedules, parse_comparison
from planner.presentation.terminal.timeline_screen import comparison_screen, timeline_screen
from tests.planner.presentation.drawing.test_pictures import DRAWN, run


class _Ascii(io.StringIO):
    """A terminal that has letters only."""

    encoding = "ascii"


def page(draw: Any, width: int = 80, colour: bool = False, ascii_only: bool = False) -> str:
    file = _Ascii() if ascii_only else io.StringIO()
    console = Console(
        file=file,
        width=width,
        color_system="truecolor" if colour else None,
        force_terminal=colour,
        highlight=False,
    )
    screen: RenderableType = draw(console)
    console.print(screen)
    return file.getvalue()


def shown(width: int = 80, colour: bool = False, ascii_only: bool = False, **case: Any) -> str:
    answer = run(**case)
    return page(lambda console: timeline_screen(answer, console), width, colour, ascii_only)


@pytest.mark.one_in(3, quick=4)
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("case", DRAWN)
def test_fits_the_terminal(case: dict[str, Any], width: int) -> None:
    lines = shown(width, **case).splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= (45 if width >= 80 else 60)


def test_rows_of_1f1b() -> None:
    """Two cells to a second: a forward has two, a backward four."""
    rows = [line for line in shown().splitlines() if line.endswith("27.3 %")]
    assert rows == [
        " 0 0█1█2█3█············0▓▓▓4█1▓▓▓5█2▓▓▓6█3▓▓▓7█4▓▓▓··5▓▓▓··6▓▓▓··7▓▓▓ 27.3 %",
        " 1 ··0█1█2█········0▓▓▓3█1▓▓▓4█2▓▓▓5█3▓▓▓6█4▓▓▓7█5▓▓▓··6▓▓▓··7▓▓▓···· 27.3 %",
        " 2 ····0█1█····0▓▓▓2█1▓▓▓3█2▓▓▓4█3▓▓▓5█4▓▓▓6█5▓▓▓7█6▓▓▓··7▓▓▓········ 27.3 %",
        " 3 ······0█0▓▓▓1█1▓▓▓2█2▓▓▓3█3▓▓▓4█4▓▓▓5█5▓▓▓6█6▓▓▓7█7▓▓▓············ 27.3 %",
    ]


def test_memory_under_the_rows() -> None:
    memory = [line for line in shown().splitlines() if "peak" in line][1:]
    assert [line.split()[-1] for line in memory] == ["4", "3", "2", "1"]
    assert [max(line[3:70]) for line in memory] == ["█", "▆", "▄", "▂"]


def test_says_the_same_without_colour() -> None:
    plain, coloured = shown(), shown(colour=True)
    assert "\x1b" not in plain
    assert "\x1b" in coloured
    for words in ("33.0 s in all", "ideal 24.0 s", "bubble 27.3 %", "closed form 33.0 s"):
        assert words in plain


def test_letters_where_there_are_no_blocks() -> None:
    text = shown(ascii_only=True, schedule="zb-h1", p2p_s=1.0)
    rows = text.partition("\n\n")[2]
    assert rows.isascii()
    for letter in "FIW~.":
        assert letter in rows


def test_long_pipelines_say_what_is_left_out() -> None:
    text = shown(stages=64, micro_batches=64)
    assert "48 more ranks" in text
    assert "\n 0 " in text
    assert "\n63 " in text


def test_shares_survive_the_squeeze() -> None:
    """Cells that stand for many steps show each kind as often as it takes time."""
    text = shown(stages=4, micro_batches=512)
    row = next(line for line in text.splitlines() if line.startswith(" 0 "))
    assert row.count("▓") == pytest.approx(2 * row.count("█"), abs=3)


@pytest.mark.parametrize("width", [80, 120])
def test_comparison(width: int) -> None:
    asked = {"stages": 4, "micro_batches": 6, "forward_s": 1, "input_grad_s": 1, "weight_grad_s": 1}
    answer = compare_schedules(parse_comparison(asked))
    text = page(lambda console: comparison_screen(answer, console), width)
    assert all(len(line) <= width for line in text.splitlines())
    for words in ("1f1b", "pipedream*", "18.0 s of work", "Cannot run here", "hanayo: "):
        assert words in text


def test_comparison_where_nothing_runs() -> None:
    """Only what goes beyond every bound: then there are reasons and no rows."""
    asked = {
        "stages": 200, "micro_batches": 9_999, "forward_s": 1, "input_grad_s": 1,
        "weight_grad_s": 1,
    }  # fmt: skip
    answer = compare_schedules(parse_comparison(asked))
    assert all(row.reason for row in answer.schedules)
    assert "at most 400,000" in page(lambda console: comparison_screen(answer, console))
