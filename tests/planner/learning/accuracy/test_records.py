"""The page of records says why a plan is to beat what was published."""

from __future__ import annotations

from tools.accuracy.records import MOST_RATIO, PAGE


def test_whatever_beats_a_record_by_much_has_its_reason() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert len(rows) == 30
    beaten = [row for row in rows if row[6] and float(row[6]) > MOST_RATIO]
    assert beaten
    assert [row[0] for row in beaten if not row[7]] == []
