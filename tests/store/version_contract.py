"""Every ledger of record: versions of its tables, and what never leaks."""

from __future__ import annotations

import logging
import traceback
from dataclasses import replace

import numpy as np
import pytest

from quiltstream.store import BlockToPublish, Store, StoreError
from quiltstream.store.errors import StoreConflict
from quiltstream.store.log import heads
from quiltstream.store.specs import Registration

from .damage import rewriting
from .proofs import Registered, windows_of
from .samples import SERIES, block, domain, drafts, query


class VersionContract(Registered):
    """What tables, errors and logs promise."""

    def test_a_ledger_of_another_version_is_refused(self, url: str, store: Store) -> None:
        assert store.domains() == ()
        with rewriting(store) as connection:
            connection.execute(heads.update().values(version=9999))
        for use in (Store.domains, lambda store: store.register(domain(), query())):
            with Store(url, create=True, wait=29) as newer, pytest.raises(StoreConflict, match=r"9999.*wrote it"):
                use(newer)

    def test_a_failed_write_shows_no_value_in_its_error_or_in_any_log(
        self, store: Store, registration: Registration, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The database is made to refuse the row, so that its own message quotes it where it can."""
        self.refuse_blocks(store)
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

    def refuse_blocks(self, store: Store) -> None:
        """Make the database refuse every row with a block."""
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
