"""People whom a proxy has signed in (OIDC), by the headers that it adds.

They are those of oauth2-proxy (--pass-user-headers, on by default): X-Forwarded-Email,
X-Forwarded-User and X-Forwarded-Groups (pkg/apis/options/legacy_options.go, v7.15).  They are
trusted only on calls from an address in PLANNER_TRUSTED_PROXIES.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from api.access.keys import ROLES, Key, Role
from api.problems import Refused

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

EVERYONE = "*"  # stands for a group of all who are signed in
_NAME_HEADERS = ("x-forwarded-email", "x-forwarded-user")  # the first that is sent counts
_GROUPS = "x-forwarded-groups"
_PERSON_PREFIX = "user:"  # precedes the name of a person: no key's name has a colon
_MAX_NAME_LENGTH = 64  # limit on an owner's name in the store


class Proxies(ProxyHeadersMiddleware):
    """Takes a caller's address from a trusted proxy, and then sets `state.by_proxy`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        """Serve one call."""
        client = scope.get("client")
        if scope["type"] == "http":
            by_proxy = client is not None and client[0] in self.trusted_hosts
            scope.setdefault("state", {})["by_proxy"] = by_proxy
        await super().__call__(scope, receive, send)  # type: ignore[arg-type]


def parse_roles(text: str) -> dict[str, Role]:
    """The roles of groups, of words GROUP=ROLE between commas or spaces.  Raises ValueError."""
    roles: dict[str, Role] = {}
    for pair in text.replace(",", " ").split():
        group, _, role = pair.rpartition("=")
        if not group or role not in ROLES:
            raise ValueError(pair)
        roles[group] = role
    return roles


def person(request: Request, roles: Mapping[str, Role]) -> Key | None:
    """Who is signed in, with the role of the group that may do most.

    None if nobody is signed in, or the call did not come from a trusted proxy.
    Raises Refused if none of the person's groups has a role.
    """
    if not roles or not getattr(request.state, "by_proxy", False):
        return None
    headers = request.headers
    # A header that is sent and no good names nobody: the next one may say another name.
    sent = next((header for header in _NAME_HEADERS if headers.getlist(header)), "")
    name = _single_header(headers, sent)
    if not name:
        return None
    groups = {group.strip() for group in _single_header(headers, _GROUPS).split(",")}
    granted = [role for group, role in roles.items() if group == EVERYONE or group in groups]
    if not granted:
        raise Refused("forbidden", "none of your groups has a role in PLANNER_GROUP_ROLES")
    digest = hashlib.sha256(f"person {name}".encode()).hexdigest()
    name = f"{_PERSON_PREFIX}{name}"
    # One that is as long as a shortened one is shortened too: nobody can choose another's.
    if len(name) >= _MAX_NAME_LENGTH:
        name = f"{name[: _MAX_NAME_LENGTH - 17]}-{digest[:16]}"
    return Key(name, max(granted, key=ROLES.index), digest)


def _single_header(headers: Headers, name: str) -> str:
    """The value of a header, empty unless it is one printable line.

    A second line may be the caller's own, beside that of a proxy which adds instead of replacing.
    """
    lines = headers.getlist(name)
    if len(lines) != 1:
        return ""
    try:
        text = lines[0].encode("latin-1").decode("utf-8").strip()
    except UnicodeDecodeError:  # names that differ in such bytes alone would be one
        return ""
    return text if text.isprintable() else ""
