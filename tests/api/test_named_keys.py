"""Keys with names and roles: what each may do, and to what."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from fastapi.testclient import TestClient

from api import log
from api.access.keys import ROLES, Key, Role, required_role
from api.settings import Settings, SettingsError
from planner.running.jobs.settings import JobSettings
from tests.fixtures.job_server import SWEEP
from tests.fixtures.service import serving

PEOPLE = {"alice": "jobs", "bob": "jobs", "carol": "plan", "dave": "read", "root": "admin"}
# Nobody else's calls count here: the server of the other tests shares the store.
PEOPLE |= {"erin": "jobs", "frank": "jobs"}
WORDS = frozenset(
    f"{name}:{role}:{hashlib.sha256(name.encode()).hexdigest()}" for name, role in PEOPLE.items()
)
ASKED = {
    "model": "gpt2",
    "cluster": "1x4xh100-sxm",
    "plan": {"dp": 4},
    "training": {"seq_length": 1024, "global_batch_size": 64},
}


def of(name: str) -> dict[str, str]:
    """The headers of a caller, whose key is the name here."""
    return {"authorization": f"Bearer {name}"}


@pytest.fixture(scope="module")
def service() -> Iterator[TestClient]:
    with serving(Settings(api_keys_sha256=WORDS, jobs=JobSettings(max_runs=0))) as client:
        yield client


@pytest.mark.parametrize(("role", "others"), [("read", 1), ("plan", 2), ("jobs", 3), ("admin", 4)])
def test_a_key_may_do_what_the_roles_before_its_own_may(role: Role, others: int) -> None:
    key = Key("someone", role, "0" * 64)
    assert [key.may(other) for other in ROLES] == [True] * others + [False] * (4 - others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "estimate", "job"),
    [("dave", 403, 403), ("carol", 200, 403), ("alice", 200, 202), ("root", 200, 202)],
)
def test_a_role_includes_those_before_it(
    service: TestClient, name: str, estimate: int, job: int
) -> None:
    assert service.get("/v1/jobs", headers=of(name)).status_code == 200
    assert service.post("/v1/estimates", json=ASKED, headers=of(name)).status_code == estimate
    answer = service.post("/v1/sweeps", json=SWEEP, headers=of(name))
    assert answer.status_code == job
    if job == 202:
        assert answer.json()["owner"] == name
        path = answer.json()["links"]["self"]
        service.post(f"{path}/cancel", headers=of(name))
        assert service.delete(path, headers=of(name)).status_code == 204
    else:
        assert answer.json()["type"] == "/problems/forbidden"


def test_a_job_is_its_owner_s(service: TestClient) -> None:
    path = service.post("/v1/sweeps", json=SWEEP, headers=of("alice")).json()["links"]["self"]
    assert service.get(path, headers=of("bob")).json()["owner"] == "alice"
    assert service.post(f"{path}/cancel", headers=of("bob")).status_code == 403
    assert service.post(f"{path}/cancel", headers=of("alice")).status_code == 202
    assert service.delete(path, headers=of("bob")).status_code == 403
    assert service.delete(path, headers=of("root")).status_code == 204


def test_a_saved_plan_is_its_owner_s(service: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    logger = structlog.wrap_logger(structlog.WriteLogger(written), processors=log.PROCESSORS)
    monkeypatch.setattr(log, "_log", logger)
    path, body = "/v1/saved-plans/ours", {"request": ASKED}
    assert service.put(path, json=body, headers=of("carol")).status_code == 201
    assert service.put(path, json=body, headers=of("bob")).status_code == 403
    assert service.delete(path, headers=of("bob")).status_code == 403
    assert service.put(path, json=body, headers=of("carol")).status_code == 200
    assert service.delete(path, headers=of("carol")).status_code == 204
    lines: list[dict[str, Any]] = [json.loads(line) for line in written.getvalue().splitlines()]
    audit = [line for line in lines if line["event"] == "audit"]
    assert [(one["action"], one["subject"], one["caller"]) for one in audit] == [
        ("save", "ours", "carol"),
        ("save", "ours", "carol"),
        ("forget", "ours", "carol"),
    ]
    calls = {one["request_id"]: one["caller"] for one in lines if one["event"] == "call"}
    assert all(calls[one["request_id"]] == one["caller"] for one in audit)


@pytest.mark.exhaustive
def test_calls_of_a_key_count_at_all_servers() -> None:
    """What a key asks at one of two servers it lacks at the other one; no other key does."""
    settings = Settings(api_keys_sha256=WORDS, calls_per_minute=12)

    def left(server: TestClient, name: str) -> int:
        return int(server.get("/v1/info", headers=of(name)).headers["ratelimit-remaining"])

    with serving(settings) as one, serving(settings) as other:
        time.sleep(2.0)  # what there was before they started counts no more
        assert [left(one, "erin") for _ in range(6)][-1] <= 7
        for own in range(20):
            time.sleep(1.0)
            if left(other, "erin") + own + 1 <= 8:  # 12 less what it was asked itself, and more
                break
        else:
            pytest.fail("the other server never knew")
        assert left(other, "frank") == 11
    with serving(settings) as later:
        time.sleep(2.0)
        assert left(later, "erin") == 11


def test_what_stands_in_the_setting() -> None:
    digest = "a" * 64
    assert Key.parse(digest) == Key("key-aaaaaaaa", "jobs", digest)
    assert Key.parse(f"ci:read:{digest}") == Key("ci", "read", digest)
    for word in (f"ci:boss:{digest}", f"ci:{digest}", "ci:read:abc", f":read:{digest}"):
        with pytest.raises(SettingsError, match="read, plan, jobs, admin"):
            Settings(api_keys_sha256=frozenset({word}))


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/sweeps", "read"),
        ("POST", "/v1/sweeps", "jobs"),
        ("POST", "/v1/sites/lab/runs", "jobs"),
        ("POST", "/v1/plans", "plan"),
        ("DELETE", "/v1/saved-plans/x", "plan"),
    ],
)
def test_what_a_call_needs(method: str, path: str, role: str) -> None:
    assert required_role(method, path) == role


def test_a_page_of_another_site_changes_nothing(client: TestClient) -> None:
    for site, status in (
        ("cross-site", 403),
        ("same-site", 403),
        ("same-origin", 200),
        ("none", 200),
    ):
        headers = {"sec-fetch-site": site}
        assert client.post("/v1/estimates", json=ASKED, headers=headers).status_code == status
        assert client.get("/v1/info", headers=headers).status_code == 200
    for origin, status in (
        ("https://evil.example.org", 403),
        ("null", 403),
        ("http://localhost:9000", 403),
        ("http://localhost", 200),
    ):
        headers = {"origin": origin}
        assert client.post("/v1/estimates", json=ASKED, headers=headers).status_code == status
