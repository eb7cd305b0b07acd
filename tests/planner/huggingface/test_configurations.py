"""Published and default configurations: planned with the parameters that transformers counts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any
from zlib import crc32

import pytest

from planner.huggingface import FAMILIES, ImportedModel
from planner.huggingface.families.registry import TEXT_MODELS
from tests.tools.configurations import (
    built_row,
    config_of,
    defaults,
    expected_parameters,
    look,
    looks,
    planned,
    planned_parameters,
    published,
    refused,
    table,
)

# One of each kind, quick to build, to see that the table is what transformers says.
SAMPLE = [
    "Qwen3-0.6B",
    "Qwen3-VL-2B-Instruct",
    "mamba2 (default)",
    "t5 (default)",
    "olmoe (default)",
]
REWRITE = "python -m tests.tools.configurations refused"


def _known_text(config: dict[str, Any]) -> bool:
    """Whether the text_config is of a family here and says how large the model is."""
    text = config.get("text_config", {})
    return text.get("model_type") in {*TEXT_MODELS, *FAMILIES} and "hidden_size" in text


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("transformers")


@pytest.mark.slow
def test_the_table_is_wide() -> None:
    rows = table().values()
    assert table().keys() == {*published(), *defaults()}
    assert len(rows) >= 159
    assert len({row.architecture for row in rows if row.parameters}) >= 120
    kinds = Counter(row.kind for row in rows)
    assert min(kinds[kind] for kind in ("decoder", "vision-language", "encoder-decoder")) >= 20
    assert refused().keys() <= table().keys()


@pytest.mark.slow
@pytest.mark.one_in(3, quick=5)
@pytest.mark.parametrize("id", table())
def test_is_counted_as_by_transformers_or_refused(id: str) -> None:
    row = table()[id]
    found = planned(config_of(row))
    if not isinstance(found, ImportedModel):
        assert refused().get(id) == found, f"refused otherwise than listed: {REWRITE}"
        return
    assert id not in refused(), f"is planned now: {REWRITE}"
    if row.parameters is not None:
        assert planned_parameters(found) == expected_parameters(row, found)


@pytest.mark.parametrize(
    "id",
    [
        id
        for id, row in published().items()
        if _known_text(row["config"]) and table()[id].parameters
    ],
)
def test_the_text_config_alone_is_the_backbone(id: str) -> None:
    config, row = published()[id]["config"], table()[id]
    assert row.parameters is not None
    assert row.encoder is not None
    tied = config.get("tie_word_embeddings", False)
    found = planned({"tie_word_embeddings": tied, **config["text_config"]})
    assert isinstance(found, ImportedModel), found
    assert planned_parameters(found) == row.parameters - row.encoder


def test_parts_are_all_of_the_model() -> None:
    for row in table().values():
        parts = [row.layers, row.embedding, row.head, row.encoder, row.other]
        assert (row.parameters is None) == (row.reason is not None), row.id
        if row.parameters is not None:
            assert sum(part or 0 for part in parts) == row.parameters, row.id


def test_no_fewer_are_planned_than_before() -> None:
    """Raise the numbers with every family that is added."""
    rows = [row for row in table().values() if row.id not in refused()]
    assert len(rows) >= 234
    assert len({row.model_type for row in rows}) >= 140


def test_nearly_all_are_planned() -> None:
    """By a reader here, or from the modules that transformers builds."""
    rows = [row for row in table().values() if row.parameters is not None]
    assert looks().keys() == {row.id for row in rows}
    planned_rows = [r for r in rows if r.id not in refused() or looks()[r.id].refused is None]
    assert len(planned_rows) >= 0.95 * len(rows)
    whole = [one for one in looks().values() if one.refused is None and not one.approximate]
    assert len(whole) >= 0.6 * len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("id", SAMPLE)
def test_modules_are_matched_as_listed(id: str) -> None:
    assert look(table()[id]) == looks()[id]


@pytest.mark.exhaustive
@pytest.mark.parametrize("id", sorted(looks().keys() - set(SAMPLE)))
def test_all_modules_are_matched_as_listed(id: str) -> None:
    assert look(table()[id]) == looks()[id]


@pytest.mark.slow
@pytest.mark.parametrize("id", SAMPLE)
def test_the_table_is_what_transformers_counts(id: str) -> None:
    assert built_row(id) == table()[id]


@pytest.mark.exhaustive
@pytest.mark.parametrize("id", sorted(table().keys() - set(SAMPLE)))
def test_the_whole_table_is_what_transformers_counts(id: str) -> None:
    assert built_row(id) == table()[id]


# Of the bad values each key of each kind gets another seventh: all of them meet every common key.
# The exhaustive tests give all to all.
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "share",
    [pytest.param(7, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize("kind", sorted({row.model_type for row in table().values()}))
def test_any_value_gives_a_model_or_a_fault(kind: str, share: int) -> None:
    row = next(row for row in table().values() if row.model_type == kind)
    config = config_of(row)
    for key, value in config.items():
        if isinstance(value, dict):
            continue
        first = [[{}, *value[1:]], [-1, *value[1:]]] if isinstance(value, list) and value else []
        values = (*first, {}, [{}], -1, 10**30, "x", math.inf, None)
        for bad in values[crc32(f"{kind} {key}".encode()) % share :: share]:
            found = planned({**config, key: bad})  # any other error than a fault is raised
            assert isinstance(found, ImportedModel | str)
