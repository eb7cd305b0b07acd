"""Alembic's way into a migration: on the connection that `planner.running.store` gives it."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"], transaction_per_migration=False
)
context.run_migrations()
