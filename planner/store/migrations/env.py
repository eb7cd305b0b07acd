"""Alembic's way into a migration: on the connection that `planner.store` gives it."""

from alembic import context

from planner.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transaction_per_migration=False,
)
context.run_migrations()
