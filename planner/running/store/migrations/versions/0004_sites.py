"""Whose sites are, and with whom they are shared."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "sites",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("shared", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("sites")
