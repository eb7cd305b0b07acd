"""The fitted constants: few, explained, and each where physics expects it or said not to be."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from cost_models.fitted import documents, fitted

OUTSIDE = {"sustained_ampere"}
EXPECTED = re.compile(r"(\S+) to (\S+)")


def test_at_most_ten() -> None:
    assert len(asdict(fitted())) <= 10
    assert set(asdict(fitted())) == set(documents())


@pytest.mark.parametrize("name", sorted(documents()))
def test_each_says_what_it_stands_for(name: str) -> None:
    document = documents()[name]
    assert all(document[field] for field in ("stands_for", "why", "unit"))
    low, high = map(float, EXPECTED.fullmatch(document["expected"]).groups())  # type: ignore[union-attr]
    slack = 0.1 if name in OUTSIDE else 0.0
    assert low * (1.0 - slack) <= document["value"] <= high * (1.0 + slack)
