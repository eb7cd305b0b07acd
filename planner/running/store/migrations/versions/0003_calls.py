"""Calls of each key at each server, so that its rate counts them all."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "calls",
        sa.Column("caller", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(64), primary_key=True),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("counted_at", sa.Double, nullable=False, index=True),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("calls")
