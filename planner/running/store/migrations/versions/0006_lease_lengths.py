"""The length of a server's lease, which others measure by their own monotonic clocks."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add it, empty for servers of earlier releases."""
    op.add_column("servers", sa.Column("lease_s", sa.Double))


def downgrade() -> None:
    """Remove it."""
    with op.batch_alter_table("servers") as changed:
        changed.drop_column("lease_s")
