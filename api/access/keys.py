"""API keys: the name and the role of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

Role = Literal["read", "plan", "jobs", "admin"]  # each may do what those before it may
ROLES: tuple[Role, ...] = get_args(Role)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_WORD = re.compile(
    rf"(?:(?P<name>[a-z0-9_.@-]{{1,64}}):(?P<role>{'|'.join(ROLES)}):)?(?P<sha256>[0-9a-f]{{64}})\Z"
)
# Endpoints that start jobs, or change what a site has learned.
_RUNS = re.compile(r"/v1/(validations|calibrations|dryruns|sweeps|sites)(/|\Z)")


@dataclass(frozen=True)
class Key:
    """A key by its SHA-256; keys of one name are one caller, so that a key can be replaced."""

    name: str
    role: Role
    sha256: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`SHA256`, or `NAME:ROLE:SHA256`.  Raises ValueError."""
        match = _WORD.match(text)
        if match is None:
            raise ValueError(text)
        sha256 = match["sha256"]
        role = cast(Role, match["role"] or "jobs")
        return cls(match["name"] or f"key-{sha256[:8]}", role, sha256)

    def may(self, role: Role) -> bool:
        """Whether it has this role, or one that includes it."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def may_change(self, owner: str | None) -> bool:
        """Whether it may change what this caller made; None: what was made without a key."""
        return owner in (None, "", self.name) or self.may("admin")


ANYONE = Key("", "admin", "")  # calls where no key is asked for


def required_role(method: str, path: str) -> Role:
    """The role that a call needs."""
    if method in SAFE:
        return "read"
    return "jobs" if _RUNS.match(path) else "plan"
