"""The tables as statements name them; migrations/versions has their types and keys.

Times are seconds since 1970; documents are JSON as text, as they were sent.
"""

from __future__ import annotations

import sqlalchemy as sa

REVISION = "0006"  # the newest migration


def _table(name: str, columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns.split()))


RESULTS = _table("results", "id content bytes stored_at")
SAVED_PLANS = _table("saved_plans", "name note request answer_id saved_at owner")
# What a caller asked under a key of its own, so that asking twice does it once.
KEYS = _table("idempotency_keys", "owner key fingerprint answer_id made_at")
# owner: the caller by name; none where there were no keys.
# sent: whether the queue has it.  token: of who runs it.  attempts: how many times it was begun
# since its last finished step.
JOBS = _table(
    "jobs",
    "id kind title state phase done total text request result error attempts sent token"
    " created_at started_at finished_at owner",
)
JOBS.c.sent.type = sa.Boolean()  # which SQLite has as a number
JOB_EVENTS = _table("job_events", "job_id number event data at")
# Files of profiles and sites that servers share; content: none where it was removed.
LIBRARY = _table("library", "kind name content digest changed_at")
# The servers that share the jobs; name: DBOS's executor id, of one process that lives once.
SERVERS = _table("servers", "name lease_until lease_s")
# Calls of a key, counted by one process from its start on.
CALLS = _table("calls", "caller source total counted_at")
# shared: the right of each other caller by name, as JSON.
SITES = _table("sites", "name owner shared")
# One row: the database's own id.
IDENTITY = _table("identity", "id")
TABLES = (RESULTS, SAVED_PLANS, KEYS, JOBS, JOB_EVENTS, LIBRARY, SERVERS, CALLS, SITES, IDENTITY)
