"""Alembic's way into a migration: on the connection that `planner.running.store` gives it."""

from alembic import context

from planner.running.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transaction_per_migration=False,
)
context.run_migrations()
