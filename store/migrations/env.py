"""Runs the migrations on the connection of :mod:`quiltstream.store.migrations`, inside its transaction.

Alembic loads this file by its path and not as a part of the package, so it imports nothing of it.
"""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    # the caller's transaction holds all of it: the tables appear whole or not at all, on both engines
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
