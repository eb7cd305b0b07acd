"""Settings of the service, from PLANNER_* environment variables."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from api.access.keys import ROLES, Key, Role
from api.access.people import parse_roles
from planner.running.jobs.settings import JobSettings

_TAKES_ONLY = JobSettings(max_runs=0)
_JOB_BOUNDS: dict[str, tuple[int, int]] = {
    "max_runs": (0, 64),
    "max_queued_jobs": (1, 100_000),
    "max_job_attempts": (1, 100),
    "job_lease_s": (2, 3_600),
    "job_retention_days": (1, 36_500),
    "run_nice": (0, 19),
    "max_run_s": (1, 86_400),
    "max_run_ranks": (1, 4_096),
    "max_run_bytes": (1, 1 << 50),
    "max_sweep_questions": (1, 100_000),
    "sweep_step_questions": (1, 10_000),
}
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_CALLS_PER_MINUTE = 1200  # of a key
# Settings that are integers, and their bounds.
_BOUNDS: dict[str, tuple[int, int]] = {
    "port": (0, 65_535),
    "workers": (1, 64),
    "max_body_bytes": (1_024, 1 << 30),
    "max_body_s": (1, 3_600),
    "max_concurrency": (1, 1_024),
    "max_connections": (1, 100_000),
    "max_result_bytes": (1 << 20, 1 << 40),
    "calls_per_minute": (0, 1_000_000),
    "max_question_s": (1, 86_400),
    "max_question_cpu_s": (1, 86_400),
    "max_question_mib": (64, 1 << 22),
    "max_question_plans": (1, 10**12),
    "warm_up": (0, 1),
    "build_models": (0, 1),
}


class SettingsError(ValueError):
    """An invalid setting, or an unsafe combination of settings."""


@dataclass(frozen=True)
class Settings:
    """How the service listens and how much it takes on.

    workers: processes that speak HTTP; the other bounds are shared among them.
    max_concurrency: searches at one time.  max_wait_s: how long another one waits for its turn.
    api_keys_sha256: SHA-256 of each key that is let in, in hex, or NAME:ROLE: before it (keys.py).
    Empty: no key is asked for, and then only this machine can be served.
    calls_per_minute: of one key, and of one address without a key; 0: any number; None: 1,200
    where there are keys.  max_body_s: how long a body may take to arrive.  max_connections: open at
    one time.
    allowed_hosts: names of this service in the header Host, beside its own; with keys and none
    given: any.  trusted_proxies: addresses or networks that are believed who calls, or * for all.
    group_roles: the role of each group of whoever such a proxy has signed in (people.py).
    database_url: of PostgreSQL; None: SQLite in the data folder.  max_result_bytes: of all answers
    that are kept; past it the oldest go.
    max_question_*: seconds, seconds of a core, memory and priced plans of one question; a call may
    state less of the last three.
    build_models: 1: a model of an unknown family is built by transformers, which runs public code
    for it within the budget of its question; 0: it is refused.
    warm_up: 1: idle processes compute what most searches need; 0: they wait.
    jobs: each field of its own by its name, too.  A service that is made in code only takes jobs,
    unless told otherwise.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 1 << 20
    max_concurrency: int = 4
    api_keys_sha256: frozenset[str] = frozenset()
    max_wait_s: float = 3.0
    calls_per_minute: int | None = None
    max_body_s: float = 20
    max_connections: int = 2_000
    allowed_hosts: frozenset[str] = frozenset()
    trusted_proxies: str = ""
    group_roles: Mapping[str, Role] = field(default_factory=dict)
    database_url: str | None = None
    max_result_bytes: int = 256 * 2**20
    max_question_s: int = 180
    max_question_cpu_s: int = 120
    max_question_mib: int = 4_096
    max_question_plans: int = 200_000_000
    workers: int = 1
    warm_up: int = 1
    build_models: int = 0
    jobs: JobSettings = _TAKES_ONLY

    def __post_init__(self) -> None:
        _check_proxies(self.trusted_proxies, bool(self.group_roles))
        if not self.tells_apart and not _is_loopback(self.host):
            raise SettingsError(
                f"{self.host} is reachable from other machines: "
                "set PLANNER_API_KEYS_SHA256, or listen on 127.0.0.1"
            )
        try:
            _ = self.keys
        except ValueError:
            raise SettingsError(
                "PLANNER_API_KEYS_SHA256 is a list of 64 hex digits each, or of NAME:ROLE: and "
                f"64 hex digits; roles: {', '.join(ROLES)}"
            ) from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Each field by its name: PLANNER_HOST, PLANNER_PORT and so on."""
        return cls(
            host=environment.get("PLANNER_HOST", cls.host),
            api_keys_sha256=_names(environment, "PLANNER_API_KEYS_SHA256"),
            allowed_hosts=_names(environment, "PLANNER_ALLOWED_HOSTS"),
            trusted_proxies=environment.get("PLANNER_TRUSTED_PROXIES", "").strip(),
            group_roles=_group_roles(environment.get("PLANNER_GROUP_ROLES", "")),
            database_url=environment.get("PLANNER_DATABASE_URL", "").strip() or None,
            jobs=JobSettings(**_integers(environment, _JOB_BOUNDS, JobSettings)),
            **_integers(environment, _BOUNDS, cls),
        )

    @property
    def tells_apart(self) -> bool:
        """Whether callers have names here: those of their keys, or of whom a proxy signed in."""
        return bool(self.api_keys_sha256 or self.group_roles)

    @property
    def hosts(self) -> frozenset[str]:
        """The names a call may use for this service; none: any."""
        if self.tells_apart and not self.allowed_hosts:
            return frozenset()
        return self.allowed_hosts | _LOOPBACK_NAMES | {self.host}

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys that are let in."""
        return tuple(map(Key.parse, sorted(self.api_keys_sha256)))

    @property
    def rate(self) -> int:
        """Calls a minute of one caller; 0: any number."""
        if self.calls_per_minute is None:
            return _CALLS_PER_MINUTE if self.tells_apart else 0
        return self.calls_per_minute

    def listening(self, host: str | None, port: int | None, workers: int | None = None) -> Self:
        """The same settings with what the command line says over them."""
        return replace(
            self,
            host=self.host if host is None else host,
            port=self.port if port is None else port,
            workers=workers or self.workers,
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_proxies(proxies: str, sign_in: bool) -> None:
    """Raise SettingsError for addresses that are none, or too many to believe who calls."""
    for address in proxies.split(",") if proxies and proxies != "*" else ():
        try:
            ipaddress.ip_network(address.strip())
        except ValueError:
            raise SettingsError(
                "PLANNER_TRUSTED_PROXIES is * or a list of addresses and networks, such as "
                f"127.0.0.1,10.0.0.0/8, got {address.strip()[:40]!r}"
            ) from None
    if sign_in and proxies in ("", "*"):
        raise SettingsError(
            "PLANNER_GROUP_ROLES believes a proxy who is signed in: name its address in "
            "PLANNER_TRUSTED_PROXIES, which is no * then"
        )


def _group_roles(text: str) -> dict[str, Role]:
    try:
        return parse_roles(text)
    except ValueError as error:
        raise SettingsError(
            "PLANNER_GROUP_ROLES is a list of GROUP=ROLE, * for everyone who is signed in; roles: "
            f"{', '.join(ROLES)}; got {str(error)[:40]!r}"
        ) from None


def _names(environment: Mapping[str, str], name: str) -> frozenset[str]:
    return frozenset(re.split(r"[\s,]+", environment.get(name, "").strip().lower())) - {""}


def _integers(
    environment: Mapping[str, str], bounds: Mapping[str, tuple[int, int]], defaults: type
) -> dict[str, Any]:
    """Settings that are integers, each by its name, or as this class has them."""
    return {
        name: _integer(environment, f"PLANNER_{name.upper()}", getattr(defaults, name), *ends)
        for name, ends in bounds.items()
    }


def _integer(environment: Mapping[str, str], name: str, default: Any, least: int, most: int) -> Any:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
        raise SettingsError(f"{name} must be an integer from {least} to {most}, got {text[:40]!r}")
    return int(text)
