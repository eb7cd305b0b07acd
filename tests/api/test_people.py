"""People whom a proxy has signed in, over real connections: who is believed, and what they may."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest

from api.access.people import parse_roles
from api.app import create_app
from api.settings import Settings
from planner.running.jobs.settings import JobSettings
from tests.fixtures.job_server import SWEEP
from tests.fixtures.service import listening

ROLES = parse_roles("sre=admin ml-team=jobs staff=plan")
KEYED = frozenset({f"robot:read:{hashlib.sha256(b'robot').hexdigest()}"})
BEHIND = Settings(
    trusted_proxies="127.0.0.1",
    group_roles=ROLES,
    api_keys_sha256=KEYED,
    jobs=JobSettings(max_runs=0),
)
ASKED = {
    "model": "gpt2",
    "cluster": "1x4xh100-sxm",
    "plan": {"dp": 4},
    "training": {"seq_length": 1024, "global_batch_size": 64},
}
Sent = list[tuple[str, str]]


@contextmanager
def caller(settings: Settings) -> Iterator[httpx.Client]:
    """Calls of a service from 127.0.0.1."""
    with (
        listening(create_app(settings), proxy_headers=False) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def proxy() -> Iterator[httpx.Client]:
    """Calls that a trusted proxy sends."""
    with caller(BEHIND) as client:
        yield client


def of(email: str, *groups: str) -> Sent:
    """What oauth2-proxy sends of somebody."""
    own = [("X-Forwarded-Email", email), ("X-Forwarded-User", "248289761001")]
    return [*own, ("X-Forwarded-Groups", ",".join(groups))] if groups else own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "read", "estimate", "job"),
    [
        (["staff"], 200, 200, 403),
        (["other", "ml-team", "staff"], 200, 200, 202),
        (["sre"], 200, 200, 202),
        (["SRE"], 403, 403, 403),
        ([], 403, 403, 403),
    ],
)
def test_a_person_has_the_role_of_a_group(
    proxy: httpx.Client, groups: list[str], read: int, estimate: int, job: int
) -> None:
    headers = of("ada@example.org", *groups)
    assert proxy.get("/v1/jobs", headers=headers).status_code == read
    assert proxy.post("/v1/estimates", json=ASKED, headers=headers).status_code == estimate
    answer = proxy.post("/v1/sweeps", json=SWEEP, headers=headers)
    assert answer.status_code == job
    if job == 202:
        assert answer.json()["owner"] == "user:ada@example.org"


@pytest.mark.slow
def test_a_job_is_of_who_started_it(proxy: httpx.Client) -> None:
    ada, bob = of("ada@example.org", "ml-team"), of("bob@example.org", "ml-team")
    path = proxy.post("/v1/sweeps", json=SWEEP, headers=ada).json()["links"]["self"]
    assert proxy.post(f"{path}/cancel", headers=bob).status_code == 403
    assert proxy.post(f"{path}/cancel", headers=of("eve@example.org", "sre")).status_code == 202


@pytest.mark.slow
def test_everyone_who_is_signed_in() -> None:
    settings = replace(BEHIND, group_roles=parse_roles("sre=admin *=read"))
    with caller(settings) as client:
        for headers, status in ((of("ada@example.org"), 200), ([], 401)):
            assert client.get("/v1/jobs", headers=headers).status_code == status


LONG = "a" * 60 + "@example.org"


@pytest.mark.parametrize(
    ("headers", "owner"),
    [
        ([("X-Forwarded-User", "ada")], "user:ada"),
        ([("X-Forwarded-User", "björn".encode().decode("latin-1"))], "user:björn"),
        (
            of(LONG),
            f"user:{LONG[:42]}-{hashlib.sha256(f'person {LONG}'.encode()).hexdigest()[:16]}",
        ),
    ],
)
def test_names(proxy: httpx.Client, headers: Sent, owner: str) -> None:
    raw = _raw([*headers, ("X-Forwarded-Groups", "ml-team")])
    answer = proxy.post("/v1/sweeps", json=SWEEP, headers=raw)
    assert (answer.status_code, answer.json().get("owner")) == (202, owner)


def _raw(headers: Sent) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


def test_nobody_can_choose_the_owner_of_another(proxy: httpx.Client) -> None:
    """A name that reads as another's shortened one."""
    path, owner = _started(proxy, LONG)
    other = owner.removeprefix("user:")
    _, its = _started(proxy, other)
    assert its != owner
    cancelled = proxy.post(f"{path}/cancel", headers=of(other, "ml-team"))
    assert cancelled.status_code == 403


def _started(proxy: httpx.Client, name: str) -> tuple[str, str]:
    """The address and the owner of a job."""
    job = proxy.post("/v1/sweeps", json=SWEEP, headers=of(name, "ml-team")).json()
    return job["links"]["self"], job["owner"]


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Forwarded-Email", "ad\xff@example.org"), ("X-Forwarded-Groups", "sre")],  # no UTF-8
        [("X-Forwarded-Email", "ada@example.org"), ("X-Forwarded-Email", "eve@example.org")],
        [("X_Forwarded_Email", "ada@example.org"), ("X_Forwarded_Groups", "sre")],
        [("X-Forwarded-Email", "")],
        [("X-Forwarded-Email", ""), ("X-Forwarded-User", "eve"), ("X-Forwarded-Groups", "sre")],
        [
            ("X-Forwarded-Email", "ada@example.org"),
            ("X-Forwarded-Email", "eve@example.org"),
            ("X-Forwarded-User", "eve"),
            ("X-Forwarded-Groups", "sre"),
        ],
        [("X-Forwarded-Email", "a\x7fb")],
        [("X-Forwarded-Groups", "sre")],
    ],
)
def test_what_names_nobody(proxy: httpx.Client, headers: Sent) -> None:
    answer = proxy.get("/v1/jobs", headers=_raw(headers))
    assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized")


def test_groups_of_two_lines_are_none(proxy: httpx.Client) -> None:
    headers = [*of("ada@example.org", "staff"), ("X-Forwarded-Groups", "sre")]
    assert proxy.get("/v1/jobs", headers=headers).status_code == 403


def test_a_key_comes_before_who_is_signed_in(proxy: httpx.Client) -> None:
    ada = of("ada@example.org", "ml-team")
    for name, value, status in (
        ("X-API-Key", "robot", 403),  # the key may read only
        ("Authorization", "Bearer robot", 403),
        ("Authorization", "Bearer an-access-token", 200),  # --pass-authorization-header
    ):
        headers = [*ada, (name, value)]
        assert proxy.post("/v1/estimates", json=ASKED, headers=headers).status_code == status


@pytest.mark.slow
@pytest.mark.parametrize("trusted", ["10.9.8.7", "::1", "126.0.0.0/8"])
def test_nobody_else_is_believed(trusted: str) -> None:
    with caller(replace(BEHIND, trusted_proxies=trusted)) as client:
        headers = [*of("ada@example.org", "sre"), ("X-Forwarded-For", trusted.partition("/")[0])]
        assert client.get("/v1/jobs", headers=headers).status_code == 401


@pytest.mark.slow
def test_a_proxy_that_signs_nobody_in() -> None:
    """Without roles the headers say nothing, whoever sends them."""
    settings = replace(BEHIND, group_roles={})
    with caller(settings) as client:
        assert client.get("/v1/jobs", headers=of("ada@example.org", "sre")).status_code == 401


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trusted", "left"), [("127.0.0.1", [2, 2, 1]), ("127.0.0.0/8", [2, 2, 1]), ("", [2, 1, 0])]
)
def test_callers_without_a_key_are_told_apart_by_their_address(
    trusted: str, left: list[int]
) -> None:
    settings = Settings(trusted_proxies=trusted, calls_per_minute=3)

    def ask(client: httpx.Client, address: str) -> int:
        answer: Any = client.get("/v1/info", headers={"X-Forwarded-For": address})
        return int(answer.headers["ratelimit-remaining"])

    with caller(settings) as client:
        assert [ask(client, one) for one in ("192.0.2.1", "192.0.2.2", "192.0.2.1")] == left
