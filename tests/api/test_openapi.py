"""The service's description of itself: it is whole, and says where nothing is."""

from __future__ import annotations

import json
from typing import Any

from api.app import create_app
from api.settings import Settings
from planner.answers.inventory.catalog import LISTINGS
from planner.documents.service import KINDS


def test_description_is_whole() -> None:
    document = create_app(Settings()).openapi()
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
