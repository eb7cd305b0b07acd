"""An id of the database, by which a service knows it again."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table, with a new id."""
    table = op.create_table("identity", sa.Column("id", sa.String(64), primary_key=True))
    op.bulk_insert(table, [{"id": uuid.uuid4().hex}])


def downgrade() -> None:
    """Remove it."""
    op.drop_table("identity")
