"""The service against its own description."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.app import create_app
from api.settings import Settings
from planner.documents.service import KINDS
from planner.inventory.catalog import LISTINGS
from planner.jobs.settings import JobSettings
from tests.fixtures.service import listening

APP = create_app(Settings(jobs=JobSettings(max_runs=0)))  # jobs are taken, and not run
SCHEMA = schemathesis.openapi.from_dict(APP.openapi())
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]


def no_fault(context: Any, response: Any, case: Any) -> bool | None:
    """No server error; a queue that is full and says when to come again is none."""
    if response.status_code == 503 and "retry-after" in map(str.lower, response.headers):
        return None
    return not_a_server_error(context, response, case)


CHECKS = [
    no_fault,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the service is served."""
    with listening(APP) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_keeps_its_contract(address: str, operation: APIOperation) -> None:
    keeps_its_contract(address, operation, most=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_keeps_its_contract_at_length(address: str, operation: APIOperation) -> None:
    keeps_its_contract(address, operation, most=200)


def keeps_its_contract(address: str, operation: APIOperation, most: int) -> None:
    """Ask what the description allows, and what it does not, so many times each."""
    may_be_wrong = "422" in operation.definition.raw["responses"]
    modes = list(GenerationMode) if may_be_wrong else [GenerationMode.POSITIVE]
    for mode in modes:

        @settings(
            max_examples=most, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate(base_url=address, checks=CHECKS, timeout=120)

        ask()


def test_description_is_whole() -> None:
    document = APP.openapi()
    assert set(document["paths"]) == {
        "/v1/plans",
        "/v1/estimates",
        "/v1/bundles",
        "/v1/timelines",
        "/v1/ranks",
        "/v1/lints",
        "/v1/reads",
        "/v1/rl",
        "/v1/sizings",
        "/v1/sensitivities",
        "/v1/catalog/models",
        "/v1/catalog/accelerators",
        "/v1/catalog/clusters",
        "/v1/catalog/frameworks",
        "/v1/catalog/schedules",
        *(f"/v1/catalog/{kind}/{{id}}" for kind in LISTINGS),
        *(f"/v1/{kind}/{{id}}" for kind in ("plans", "sizings", "sensitivities", "rl")),
        "/v1/plans/{id}/candidates",
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
        "/v1/sites/{name}/runs",
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
