"""Versioned changes of the ledger's tables; :mod:`quiltstream.store.schema` has Alembic run them."""
