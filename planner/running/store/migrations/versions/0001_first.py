"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables.  Longer than 60 lines: each statement is the declaration of a table."""
    op.create_table(
        "results",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("bytes", sa.Integer, nullable=False),
        sa.Column("stored_at", sa.Double, nullable=False, index=True),
    )
    op.create_table(
        "saved_plans",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("answer_id", sa.String(64)),
        sa.Column("saved_at", sa.Double, nullable=False),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("answer_id", sa.String(64), nullable=False),
        sa.Column("made_at", sa.Double, nullable=False, index=True),
    )
    op.create_table(
        "jobs",
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
    )
    op.create_table(
        "job_events",
        sa.Column(
            "job_id", sa.String(64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("event", sa.String(16), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_table(
        "servers",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("lease_until", sa.Double, nullable=False),
    )
