"""Settings of the service: closed to other machines unless keys are set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import api
from api.app import _pools
from api.pool_worker import serve
from api.settings import _BOUNDS, _JOB_BOUNDS, Settings, SettingsError
from planner.running.jobs.settings import JobSettings

KEY = "a" * 64


def test_defaults_are_closed() -> None:
    settings = Settings.from_environment({})
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert not settings.api_keys_sha256


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_other_machines_need_keys(host: str) -> None:
    with pytest.raises(SettingsError, match="PLANNER_API_KEYS_SHA256"):
        Settings.from_environment({"PLANNER_HOST": host})
    with pytest.raises(SettingsError):
        Settings().listening(host, None)
    Settings.from_environment({"PLANNER_HOST": host, "PLANNER_API_KEYS_SHA256": KEY})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert Settings.from_environment({"PLANNER_HOST": host}).host == host


@pytest.mark.parametrize("warm_up", [0, 1])
def test_processes_that_wait_prepare_for_searches_or_do_not(warm_up: int) -> None:
    settings = Settings.from_environment({"PLANNER_WARM_UP": str(warm_up)})
    assert _pools(settings, serve)["searches"]._start == (serve, 10, bool(warm_up))


def test_environment() -> None:
    settings = Settings.from_environment(
        {
            "PLANNER_PORT": "9000",
            "PLANNER_MAX_BODY_BYTES": "2048",
            "PLANNER_MAX_CONCURRENCY": "2",
            "PLANNER_MAX_RUNS": "0",
            "PLANNER_API_KEYS_SHA256": f" {KEY}, {KEY.replace('a', 'B')}\n",
        }
    )
    assert (settings.port, settings.max_body_bytes, settings.max_concurrency) == (9000, 2048, 2)
    assert settings.api_keys_sha256 == {KEY, "b" * 64}
    assert settings.listening("::1", 0) == Settings("::1", 0, 2048, 2, frozenset({KEY, "b" * 64}))


def test_names_and_rates_follow_from_the_keys() -> None:
    alone = Settings.from_environment({})
    assert alone.hosts == {"localhost", "127.0.0.1", "::1"}
    assert alone.rate == 0
    shared = Settings.from_environment({"PLANNER_API_KEYS_SHA256": KEY, "PLANNER_HOST": "0.0.0.0"})
    assert shared.hosts == set()  # any
    assert shared.rate > 0
    named = {"PLANNER_ALLOWED_HOSTS": "Planner.example, 10.0.0.1", "PLANNER_CALLS_PER_MINUTE": "7"}
    given = Settings.from_environment({"PLANNER_API_KEYS_SHA256": KEY, **named})
    assert given.hosts >= {"planner.example", "10.0.0.1"}
    assert given.rate == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PLANNER_PORT", "http"),
        ("PLANNER_PORT", "70000"),
        ("PLANNER_PORT", "-1"),
        ("PLANNER_MAX_BODY_BYTES", "1"),
        ("PLANNER_MAX_CONCURRENCY", "0"),
        ("PLANNER_MAX_CONCURRENCY", "9" * 5000),
        ("PLANNER_CALLS_PER_MINUTE", "-1"),
        ("PLANNER_MAX_BODY_S", "0"),
        ("PLANNER_JOB_LEASE_S", "0"),
        ("PLANNER_API_KEYS_SHA256", "open sesame"),
        ("PLANNER_TRUSTED_PROXIES", "10.0.0.1, proxy.example"),
        ("PLANNER_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("PLANNER_GROUP_ROLES", "sre"),
        ("PLANNER_GROUP_ROLES", "sre=boss"),
        ("PLANNER_GROUP_ROLES", "=admin"),
        ("PLANNER_GROUP_ROLES", "sre=admin"),  # and nobody who says so
    ],
)
def test_nonsense_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_environment({name: text})


def test_who_is_signed_in_is_believed_of_a_proxy_with_an_address() -> None:
    roles = {"PLANNER_GROUP_ROLES": "role:sre=admin,a=b=plan *=read", "PLANNER_HOST": "0.0.0.0"}
    with pytest.raises(SettingsError, match="PLANNER_TRUSTED_PROXIES"):
        Settings.from_environment({**roles, "PLANNER_TRUSTED_PROXIES": "*"})
    given = Settings.from_environment({**roles, "PLANNER_TRUSTED_PROXIES": "10.0.0.1,::1"})
    assert given.group_roles == {"role:sre": "admin", "a=b": "plan", "*": "read"}
    assert (given.hosts, given.rate) == (set(), 1200)


def test_every_setting_is_documented_with_its_default() -> None:
    text = (Path(api.__file__).parent / "README.md").read_text()
    table = dict(re.findall(r"^\| `(PLANNER_[A-Z_0-9]+)` \| `?([^`|]+?)`? (?:\||with)", text, re.M))
    for bounds, usual in ((_BOUNDS, Settings), (_JOB_BOUNDS, JobSettings)):
        for name in bounds.keys() - {"port"}:
            default = getattr(usual, name)
            told = table[f"PLANNER_{name.upper()}"]
            assert told == str(1200 if name == "calls_per_minute" else default), name
    source = "".join(path.read_text() for path in Path(api.__file__).parent.rglob("*.py"))
    read = set(re.findall(r"PLANNER_[A-Z_0-9]+", source)) - {"PLANNER_", "PLANNER_LISTENER"}
    assert {name for name in read if f"`{name}`" not in text} == set()
