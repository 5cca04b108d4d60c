"""Versioned changes of the ledger's tables; :mod:`quiltstream.store.table_versions` has Alembic run them."""
