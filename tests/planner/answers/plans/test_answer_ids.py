"""What an id of an answer follows from."""

from __future__ import annotations

from pathlib import Path

from planner.answers.plans.answer_ids import digest


def test_an_id_follows_from_code_and_catalog(tmp_path: Path) -> None:
    folder = tmp_path / "catalog"
    folder.mkdir()
    (folder / "models.json").write_text("{}")
    first = digest(folder)
    assert digest(folder) == first
    (folder / "notes.txt").write_text("nothing that decides")
    assert digest(folder) == first
    (folder / "models.json").write_text('{"a": 1}')
    second = digest(folder)
    (folder / "models.json").rename(folder / "clusters.json")
    assert len({first, second, digest(folder)}) == 3
