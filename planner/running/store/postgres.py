"""Connections to PostgreSQL with a time limit on every answer of the server."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.errors import OperationalError

_ANSWER_TIMEOUT_S = 10.0  # longer than the server's own statement timeout


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection that fails when the server hangs, or the network to it is cut."""

    def wait(self, gen: Any, *arguments: Any, **named: Any) -> Any:
        """The server's answer.  Raises OperationalError after a timeout."""
        named.setdefault("timeout", _ANSWER_TIMEOUT_S)
        try:
            return super().wait(gen, *arguments, **named)
        except psycopg.errors._WaitTimeout:
            self.pgconn.finish()
            raise OperationalError("the server did not answer in time") from None
