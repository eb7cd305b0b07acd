"""A launch file against what is written from what was read of it, option by option."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.read_again import compared, main

SCRIPTS = Path(__file__).parents[1] / "scripts"


def test_a_file_that_is_written_as_it_is_has_no_difference() -> None:
    found = compared(str(SCRIPTS / "few_micro_batches.sh"))
    assert (found.framework, found.refused, found.differences) == ("megatron", "", ())


def test_what_is_written_otherwise_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    script = str(SCRIPTS / "padded.sh")
    assert main([script]) == 1
    said = capsys.readouterr().out
    assert "--make-vocab-size-divisible-by 16384: 128 is written" in said
    assert "1 files, 1 written again, 1 with differences" in said


def test_a_file_that_no_plan_can_be_written_for_says_why() -> None:
    assert "do not divide over 4 stages" in compared(str(SCRIPTS / "uneven_layers.sh")).refused


def test_a_field_that_a_writer_loses_is_named() -> None:
    found = compared(str(SCRIPTS / "gather_alone.sh"))
    assert any(one.startswith("plan.overlap_param_gather: True read") for one in found.differences)
