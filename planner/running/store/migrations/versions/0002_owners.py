"""Who owns jobs and saved plans; profiles and sites that servers share."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add what is owned and shared."""
    for table in ("jobs", "saved_plans"):
        op.add_column(table, sa.Column("owner", sa.String(64)))
    op.create_table(
        "library",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("content", sa.Text),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Leave what the first tables have."""
    op.drop_table("library")
    for table in ("jobs", "saved_plans"):
        with op.batch_alter_table(table) as changed:
            changed.drop_column("owner")
