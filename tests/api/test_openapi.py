"""The service's description of itself: it is whole, and says where nothing is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.answers.inventory.catalog import LISTINGS
from planner.documents.service import KINDS
from planner.version import __version__
from tests.fixtures.service import described
from tests.tools import public_names


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return described().openapi()


def test_no_public_name_is_gone(document: dict[str, Any]) -> None:
    """What others rely on is deprecated for a release before it leaves (docs/public-api.md)."""
    version, names = public_names.kept()
    now = set(public_names.public_names(document))
    assert len(names) > 1_000
    assert sorted(names - now) == [], "gone; if that is meant: python -m tests.tools.public_names"
    # A release lists what it adds, so that it is held from then on.
    assert version == __version__ or names == now, "python -m tests.tools.public_names"


def test_description_is_whole(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == {
        "/v1/plans",
        "/v1/estimates",
        "/v1/bundles",
        "/v1/timelines",
        "/v1/ranks",
        "/v1/lints",
        "/v1/reads",
        "/v1/rl",
        "/v1/rl-bundles",
        "/v1/sizings",
        "/v1/fits",
        "/v1/fits/by-card",
        "/v1/sensitivities",
        "/v1/catalog/models",
        "/v1/catalog/accelerators",
        "/v1/catalog/clusters",
        "/v1/catalog/frameworks",
        "/v1/catalog/schedules",
        *(f"/v1/catalog/{kind}/{{id}}" for kind in LISTINGS),
        *(f"/v1/{kind}/{{id}}" for kind in ("plans", "sizings", "sensitivities", "rl")),
        "/v1/plans/{id}/candidates",
        "/v1/clusters/read",
        "/v1/models/import",
        "/v1/models/describe",
        "/v1/explanations",
        "/v1/comparisons",
        "/v1/schedule-comparisons",
        "/v1/info",
        "/v1/jobs",
        *(f"/v1/{kind}" for kind in KINDS),
        *(f"/v1/{kind}/{{id}}" for kind in KINDS),
        *(f"/v1/{kind}/{{id}}/{part}" for kind in KINDS for part in ("events", "logs", "cancel")),
        "/v1/saved-plans",
        "/v1/saved-plans/{name}",
        "/v1/sites",
        "/v1/sites/{name}",
        "/v1/sites/{name}/rights",
        "/v1/sites/{name}/runs",
        "/v1/sites/{name}/runs/{run}",
        "/v1/layers",
        "/v1/one-node",
        "/v1/one-node/results",
        "/v1/accuracy/nearest",
        "/v1/accuracy/runs",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(_references(document)) <= known
    assert "://" not in json.dumps(document)


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        found = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return found + [ref for value in node.values() for ref in _references(value)]
    if isinstance(node, list):
        return [ref for value in node for ref in _references(value)]
    return []
