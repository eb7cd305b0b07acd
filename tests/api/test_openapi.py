"""The service against its own description."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.app import create_app
from api.settings import Settings

APP = create_app(Settings())
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@SCHEMA.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.slow
def test_keeps_its_contract(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


def test_description_is_whole() -> None:
    document = APP.openapi()
    assert set(document["paths"]) == {
        "/v1/plans",
        "/v1/estimates",
        "/v1/bundles",
        "/v1/timelines",
        "/v1/ranks",
        "/v1/lints",
        "/v1/sizings",
        "/v1/sensitivities",
        "/v1/catalog/models",
        "/v1/catalog/accelerators",
        "/v1/catalog/clusters",
        "/v1/catalog/frameworks",
        "/healthz",
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
