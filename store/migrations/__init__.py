"""Versioned changes of the ledger's tables; Alembic reads them from this folder, see :mod:`quiltstream.store.schema`."""
