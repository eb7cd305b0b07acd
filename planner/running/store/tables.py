"""The tables; a change here needs a migration beside it.

Times are seconds since 1970; documents are JSON as text, as they were sent.
"""

from __future__ import annotations

import sqlalchemy as sa

REVISION = "0003"  # the newest migration
METADATA = sa.MetaData()

RESULTS = sa.Table(
    "results",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("stored_at", sa.Double, nullable=False, index=True),
)
SAVED_PLANS = sa.Table(
    "saved_plans",
    METADATA,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("answer_id", sa.String(64)),
    sa.Column("saved_at", sa.Double, nullable=False),
    sa.Column("owner", sa.String(64)),
)
# What a caller asked under a key of its own, so that asking twice does it once.
KEYS = sa.Table(
    "idempotency_keys",
    METADATA,
    sa.Column("owner", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("answer_id", sa.String(64), nullable=False),
    sa.Column("made_at", sa.Double, nullable=False, index=True),
)
# owner: the caller by name; none where there were no keys.
# sent: whether the queue has it.  token: of who runs it.  attempts: how many times it was begun
# since its last finished step.
JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("phase", sa.String(64), nullable=False),
    sa.Column("done", sa.Integer, nullable=False),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("result", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("sent", sa.Boolean, nullable=False),
    sa.Column("token", sa.String(64)),
    sa.Column("created_at", sa.Double, nullable=False, index=True),
    sa.Column("started_at", sa.Double),
    sa.Column("finished_at", sa.Double, index=True),
    sa.Column("owner", sa.String(64)),
)
JOB_EVENTS = sa.Table(
    "job_events",
    METADATA,
    sa.Column(
        "job_id",
        sa.String(64),
        sa.ForeignKey(JOBS.c.id, ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("event", sa.String(16), nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
# Files of profiles and sites that servers share; content: none where it was removed.
LIBRARY = sa.Table(
    "library",
    METADATA,
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("content", sa.Text),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("changed_at", sa.Double, nullable=False),
)
# The servers that share the jobs; name: DBOS's executor id, of one process that lives once.
SERVERS = sa.Table(
    "servers",
    METADATA,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("lease_until", sa.Double, nullable=False),
)
# Calls of a key, counted by one process from its start on.
CALLS = sa.Table(
    "calls",
    METADATA,
    sa.Column("caller", sa.String(64), primary_key=True),
    sa.Column("source", sa.String(64), primary_key=True),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("counted_at", sa.Double, nullable=False, index=True),
)
