"""The service in this process, with no key asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.fixtures.service import serving


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    with serving() as client:
        yield client
