"""Every address of the service as a template, with the methods it takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from starlette.routing import BaseRoute, compile_path


class Addresses:
    """What a path is an address of.  An empty template stands for none."""

    def __init__(self) -> None:
        self._known: list[tuple[re.Pattern[str], str, frozenset[str]]] = []
        self.find = lru_cache(maxsize=1024)(self._find)

    def add(self, routes: Iterable[BaseRoute], prefix: str = "") -> None:
        """Know these routes; others than those of one path are left out."""
        for route in routes:
            path = getattr(route, "path", None)
            if path is not None:
                pattern, template, _ = compile_path(prefix + path)
                methods = frozenset(getattr(route, "methods", None) or ())
                self._known.append((pattern, template, methods))

    def allowed(self, path: str) -> str:
        """The methods of an address, as the header Allow has them; empty where there is none."""
        _, methods = self.find(path)
        if not methods:
            return ""
        head = {"HEAD"} if "GET" in methods else set()
        return ", ".join(sorted({*methods, *head, "OPTIONS"}))

    def _find(self, path: str) -> tuple[str, frozenset[str]]:
        """The template of a path, and the methods of all routes there."""
        matching = [known for known in self._known if known[0].match(path)]
        methods = frozenset().union(*(methods for _, _, methods in matching))
        return (matching[0][1] if matching else ""), methods
