"""Who asks, and which sites are hidden from them; on a machine of one's own, none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class CallerIdentity:
    """name: of the caller of a service; empty: whoever has this machine.

    hidden: sites, with their profiles, that this caller may not read; None: all.
    """

    name: str = ""
    hidden: frozenset[str] | None = frozenset()

    def sees(self, site: str) -> bool:
        """Whether they may read a site."""
        return self.hidden is not None and site not in self.hidden


HERE = CallerIdentity()  # whoever has this machine
_asker: ContextVar[CallerIdentity] = ContextVar("asker", default=HERE)


def asker() -> CallerIdentity:
    """Who asks what runs here."""
    return _asker.get()


@contextmanager
def as_caller(who: CallerIdentity) -> Iterator[None]:
    """What runs inside is asked by them."""
    token = _asker.set(who)
    try:
        yield
    finally:
        _asker.reset(token)
