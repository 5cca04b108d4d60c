"""Every ledger of record: versions of its tables, and what never leaks."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from quiltstream.store import BlockToPublish, Store, StoreError, StoreMissing, migrations, tables
from quiltstream.store.errors import SchemaVersionError
from quiltstream.store.specs import Registration

from .proofs import Registered, windows_of
from .samples import SERIES, block, domain, drafts, query


class VersionContract(Registered):
    """What tables, errors and logs promise."""

    def test_new_tables_and_migrated_ones_are_the_same(self, store: Store) -> None:
        store.domains()
        with store._database().write() as connection:
            made = _described(connection)
            context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
            assert compare_metadata(context, tables.metadata) == []
            tables.metadata.drop_all(connection)
            migrations._version.drop(connection)
            assert _described(connection) == {}
            migrations.run_migrations(connection)
            assert connection.scalars(sa.select(migrations._version.c.version_num)).all() == [migrations.HEAD]
            assert compare_metadata(context, tables.metadata) == []
            assert _described(connection) == made

    def test_a_newer_schema_is_refused_and_an_older_one_is_migrated_on_demand(
        self, store: Store, url: str, registration: Registration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with store._database().write() as connection:
            connection.execute(migrations._version.update().values(version_num="9999"))
        store.close()
        for use in (Store.domains, Store.migrate, lambda s: s.register(domain(), query())):
            with Store(url, create=True) as newer, pytest.raises(SchemaVersionError, match=r"9999.*later one"):
                use(newer)
        monkeypatch.setattr(migrations, "REVISIONS", ("9999", *migrations.REVISIONS))
        with Store(url, create=True) as older, pytest.raises(SchemaVersionError, match="ledger migrate"):
            older.domains()
        assert registration.fresh

    def test_migrating_a_current_store_changes_nothing(
        self, store: Store, registration: Registration, fresh_urls: Iterator[str]
    ) -> None:
        store.migrate()
        assert store.registered("homes", "weekly") == replace(registration, fresh=False)
        with Store(next(fresh_urls), create=True) as nothing, pytest.raises(StoreMissing):
            nothing.migrate()

    def test_a_failed_write_shows_no_value_in_its_error_or_in_any_log(
        self, store: Store, registration: Registration, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The database is made to refuse the row, so that its own message quotes it where it can."""
        self.refuse_releases(store)
        marked = block(registration, 0)
        marked = replace(marked, counts=np.full_like(marked.counts, 987_654_321))
        with (
            caplog.at_level(logging.DEBUG, "sqlalchemy"),
            caplog.at_level(logging.DEBUG),
            pytest.raises(StoreError) as caught,
        ):
            store.publish(registration, [BlockToPublish(windows_of(registration)[0], 0, lambda: marked)])
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is None
        shown = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(caught.value)
        assert "987654321" not in shown
        assert "quiltstream.block" not in shown
        assert np.int64(987_654_321).tobytes().hex() not in shown
        assert not any(f"'{name}'" in shown for name in SERIES)
        assert store.entries() == []

    def refuse_releases(self, store: Store) -> None:
        """Make the database refuse every row of releases."""
        raise NotImplementedError

    def test_ordinary_work_logs_no_row_and_no_statement_parameter(
        self, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            caplog.at_level(logging.DEBUG, "sqlalchemy"),
            caplog.at_level(logging.DEBUG),
            Store(url, create=True) as store,
        ):
            held = store.register(domain(), query())
            store.publish(held, drafts(held))
            list(store.releases("homes", "weekly"))
        assert "quiltstream.block" not in caplog.text
        assert "Row (" not in caplog.text
        assert held.digest not in caplog.text
        assert store._database()._require().hide_parameters


def _described(connection: sa.Connection) -> dict[str, Any]:
    """Everything a database says of its tables, in an order of its own making."""
    inspector = sa.inspect(connection)

    def plain(found: list[Any]) -> list[str]:
        return sorted(repr(sorted((key, str(value)) for key, value in dict(one).items())) for one in found)

    return {
        name: [
            plain(list(inspector.get_columns(name))),
            plain([inspector.get_pk_constraint(name)]),
            plain(list(inspector.get_unique_constraints(name))),
            plain(list(inspector.get_foreign_keys(name))),
            plain(list(inspector.get_indexes(name))),
            plain(list(inspector.get_check_constraints(name))),
        ]
        for name in inspector.get_table_names()
    }
