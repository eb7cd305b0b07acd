"""Names of catalog entries: canonical ids, declared aliases, and the nearest when unknown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping


class UnknownName(LookupError):
    """A name that the catalog does not have, with up to three nearest ones, and all it has."""

    def __init__(
        self, kind: str, name: str, nearest: tuple[str, ...] = (), known: tuple[str, ...] = ()
    ) -> None:
        self.known = known
        self.kind = kind
        self.name = name
        self.nearest = nearest
        hint = f"; did you mean {', '.join(nearest)}?" if nearest else ""
        super().__init__(f"unknown {kind} {name!r}{hint}")


def normal(name: str) -> str:
    """The form in which names are compared: no outer blanks, lower case."""
    return name.strip().lower()


def resolve(name: str, ids_by_alias: Mapping[str, str], kind: str) -> str:
    """The canonical id of a name; the keys of `ids_by_alias` are in `normal` form.

    Raises UnknownName with the nearest ids.
    """
    key = normal(name)
    if key in ids_by_alias:
        return ids_by_alias[key]
    # A pasted file is no name: comparing it with every alias would cost quadratic time.
    close = difflib.get_close_matches(key[:200], ids_by_alias, n=12, cutoff=0.5)
    nearest = tuple(dict.fromkeys(ids_by_alias[alias] for alias in close))[:3]
    raise UnknownName(kind, name, nearest, tuple(dict.fromkeys(ids_by_alias.values())))
