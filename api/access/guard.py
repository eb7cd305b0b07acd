"""Checks before every call: the Host header, the caller's rate, and the API key."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.keys import ANYONE, SAFE, Key, required_role
from api.access.people import person
from api.problems import Refused, refuse
from api.settings import Settings
from planner.evidence.uncertainty.asker import HERE, CallerIdentity

# What may be asked without a key: the page, the documentation, and whether the service lives.
_NEED_KEY = ("/v1/", "/plans/", "/metrics")
_UNLIMITED = ("/healthz", "/readyz")
_FOREIGN = ("cross-site", "same-site")  # values of Sec-Fetch-Site
Elsewhere = dict[tuple[str, str], int]  # calls by caller and server
_MAX_CALLERS = 10_000  # callers remembered; the longest silent one is forgotten first


class Guard:
    """Refuses a call that is not for us.

    The others carry `state.caller`, a digest of who calls, `state.key` and `state.asker`.

    Without keys, the service answers to names of this machine alone: a page of another site may
    give its own name our address (DNS rebinding), and would then share our origin.
    """

    def __init__(self, app: ASGIApp, settings: Settings, rates: Rates | None) -> None:
        self.app = app
        self.settings = settings
        self.keys = settings.keys
        self.rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        key = _key(request.headers, self.keys)
        address = request.client.host if request.client else ""
        caller = key.sha256 if key else hashlib.sha256(address.encode()).hexdigest()
        request.state.caller, request.state.key = caller, key or ANYONE
        rate_headers: dict[str, str] = {}
        try:
            self._check_host(request)
            _check_site(request, self.settings.allowed_hosts)
            if key is None and (key := person(request, self.settings.group_roles)):
                caller = key.sha256
                request.state.caller, request.state.key = caller, key
            request.state.asker = self._asker(request.state.key)
            if self.rates is not None and scope["path"] not in _UNLIMITED:
                rate_headers = self.rates.take(caller)
            if self.settings.tells_apart and _needs_key(scope["path"]):
                self._check_key(request, key, rate_headers)
        except Refused as error:
            await refuse(request, error)(scope, receive, send)
            return

        async def send_with_rate(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(rate_headers)
            await send(message)

        await self.app(scope, receive, send_with_rate if rate_headers else send)

    def _asker(self, key: Key) -> CallerIdentity:
        """Who asks, before anything is known of sites: then callers with names see none."""
        return CallerIdentity(key.name, None) if self.settings.tells_apart else HERE

    def _check_key(self, request: Request, key: Key | None, rate_headers: dict[str, str]) -> None:
        if key is None:
            headers = {"WWW-Authenticate": "Bearer", **rate_headers}
            signed_in = ", or to be signed in at the proxy" if self.settings.group_roles else ""
            raise Refused("unauthorized", f"a known API key is needed{signed_in}", headers)
        role = required_role(request.method, request.scope["path"])
        if not key.may(role):
            detail = f"{key.name} has the role {key.role!r}; this needs {role!r}"
            raise Refused("forbidden", detail, rate_headers)

    def _check_host(self, request: Request) -> None:
        allowed = self.settings.hosts
        host = _name(request.headers.get("host", ""))
        if allowed and host not in allowed:
            raise Refused("forbidden", "the Host header does not name this service")


def _needs_key(path: str) -> bool:
    return path.startswith(_NEED_KEY)


def _name(host: str) -> str:
    """The host of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def _check_site(request: Request, hosts: frozenset[str]) -> None:
    """Raise Refused where a page of another site has a browser change something here.

    hosts: further names of this service.  Browsers say Sec-Fetch-Site over TLS and on this machine,
    and else Origin alone.
    """
    if request.method in SAFE:
        return
    site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
    foreign = site in _FOREIGN
    if site is None and origin is not None:
        address = origin.partition("://")[2].lower()
        same_origin = address == request.headers.get("host", "").lower()
        foreign = not same_origin and _name(address) not in hosts
    if foreign:
        raise Refused("forbidden", "a request from a page of another site is refused")


def _key(headers: Headers, keys: tuple[Key, ...]) -> Key | None:
    """The key that a call has, where it is a known one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    digest = hashlib.sha256(key.encode()).hexdigest()
    # All are compared, each in constant time, so that timing says nothing of the keys.
    matches = [key for key in keys if hmac.compare_digest(digest, key.sha256)]
    return matches[0] if matches else None


class Rates:
    """A bucket of calls per caller: `per_minute` at once, and as many again in each minute.

    shared: callers whose calls count at all servers together: see `exchange`.
    """

    def __init__(self, per_minute: int, shared: Iterable[str] = ()) -> None:
        self.per_minute = per_minute
        self._totals = dict.fromkeys(shared, 0)
        self._known: dict[str, int] = {}
        self._elsewhere: Elsewhere | None = None
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> dict[str, str]:
        """Count a call; headers that say how many are left.  Raises Refused."""
        now, per_s = time.monotonic(), self.per_minute / 60
        calls, since = self._buckets.pop(caller, (float(self.per_minute), now))
        calls = min(self.per_minute, calls + (now - since) * per_s)
        fine = calls >= 1
        if fine and caller in self._totals:
            self._totals[caller] += 1
        self._buckets[caller] = (calls - fine, now)
        if len(self._buckets) > _MAX_CALLERS:
            self._buckets.popitem(last=False)
        headers = {
            "RateLimit-Limit": str(self.per_minute),
            "RateLimit-Remaining": str(int(calls - fine)),
            "RateLimit-Reset": str(round((self.per_minute - calls + fine) / per_s)),
        }
        if not fine:
            headers["Retry-After"] = str(max(1, round((1 - calls) / per_s)))
            raise Refused("rate-limited", f"more than {self.per_minute} calls a minute", headers)
        return headers

    async def exchange(self, share: Callable[..., Awaitable[Elsewhere]]) -> None:
        """Tell other servers how many calls there were here, and count theirs."""
        totals = {
            caller: total
            for caller, total in self._totals.items()
            if total != self._known.get(caller, 0)
        }
        elsewhere = await share(totals)
        self._known |= totals
        # What there was before this server started is no call of now.
        known = elsewhere if self._elsewhere is None else self._elsewhere
        for (caller, server), total in elsewhere.items():
            if (more := total - known.get((caller, server), 0)) and caller in self._totals:
                self._spend(caller, more)
        self._elsewhere = known | elsewhere

    def _spend(self, caller: str, more: int) -> None:
        calls, since = self._buckets.get(caller, (float(self.per_minute), time.monotonic()))
        self._buckets[caller] = (max(0.0, calls - more), since)
