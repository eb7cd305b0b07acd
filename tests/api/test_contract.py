"""The service against its own description."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
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
from planner.running.jobs.settings import JobSettings
from tests.fixtures.service import described, listening, operations

OPERATIONS = [f"{verb.upper()} {path}" for path, verb in operations(described())]
pytestmark = pytest.mark.slow


def no_fault(context: Any, response: Any, case: Any) -> bool | None:
    """No server error; a queue that is full and says when to come again is none."""
    if response.status_code == 503 and "retry-after" in map(str.lower, response.headers):
        return None
    return not_a_server_error(context, response, case)


FRAMING = ("content-length", "transfer-encoding")
CHECKS = [
    no_fault,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the service is served."""
    # Jobs are taken, and not run.
    with listening(create_app(Settings(jobs=JobSettings(max_runs=0)))) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def known() -> dict[str, APIOperation]:
    """What the description says of each operation, by its verb and path."""
    schema = schemathesis.openapi.from_dict(deepcopy(described().openapi()))
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


def test_every_operation_is_asked(known: dict[str, APIOperation]) -> None:
    assert set(OPERATIONS) == set(known)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_keeps_its_contract(address: str, known: dict[str, APIOperation], operation: str) -> None:
    """Something wrong, which takes long to make up, is asked of every second operation here."""
    wrong = OPERATIONS.index(operation) % 2 == 0
    keeps_its_contract(address, known[operation], most=2, wrong=wrong)


@pytest.mark.exhaustive
@pytest.mark.parametrize("operation", OPERATIONS)
def test_keeps_its_contract_at_length(
    address: str, known: dict[str, APIOperation], operation: str
) -> None:
    keeps_its_contract(address, known[operation], most=200, wrong=True)


def keeps_its_contract(address: str, operation: APIOperation, most: int, wrong: bool) -> None:
    """Ask what the description allows, and if asked to what it does not, so many times each."""
    may_be_wrong = wrong and "422" in operation.definition.raw["responses"]
    modes = list(GenerationMode) if may_be_wrong else [GenerationMode.POSITIVE]
    for mode in modes:

        @settings(
            max_examples=most, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            # How long a body is belongs to HTTP: what is wrong there never reaches the service.
            for name in [one for one in case.headers or () if one.lower() in FRAMING]:
                del case.headers[name]
            case.call_and_validate(base_url=address, checks=CHECKS, timeout=120)

        ask()
