"""Every ledger of record: what is on record is checked when it is read, and nothing is drawn a second time."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from quiltstream.schemas.slots import Window
from quiltstream.store import BlockToPublish, Registration, Store, StoreDamaged, StoreError
from quiltstream.store.address import forget
from quiltstream.store.log import Head, digest_of, heads, log

from ..depth import STRIDE
from ..examined import Examined, Tally, examine
from ..present import present
from .damage import TABLES, everything, fill, flips, put_value, rewriting, rows_of, this, windows_of
from .engines import OnLedger
from .forging import Row, forge, said
from .proofs import never
from .samples import BELIEF, drafts, series_of

#: Rows that one test removes, in pairs that it reorders; at night all of a small ledger.
_EACH = 1 if STRIDE == 1 else 4


class IntegrityContract(OnLedger):
    """Inherit it together with an engine."""

    def test_an_intact_ledger_is_verified_without_a_defect(self, store: Store) -> None:
        fill(store)
        found = store.verify()
        assert found.defects == ()
        assert (found.mode, set(found.heads)) == ("private", {"homes", "shops"})
        assert found.heads == {name: store.head(name) for name in ("homes", "shops")}
        assert found.rows["entry"] == len(store.entries())
        assert store.verify({name: [head] for name, head in found.heads.items()}).whole

    def test_every_flipped_bit_of_a_block_is_detected_and_not_published(self, store: Store, tally: Tally) -> None:
        first, *_ = fill(store)
        before = everything(store)
        with rewriting(store) as connection:
            rows = [row for row in rows_of(connection, log) if row["key"].startswith("block/")]
        digests = [(digest_of(row["blob"]), digest_of(blob)) for row in rows for blob in flips(row["blob"])]
        assert len(digests) == sum(8 * len(row["blob"]) for row in rows) > 10_000
        assert all(one != other for one, other in digests)
        # and some of them in the ledger itself
        for row in rows:
            for number, blob in enumerate(flips(row["blob"], 499)):
                with rewriting(store) as connection:
                    put_value(connection, log, row, "blob", blob)
                with pytest.raises(StoreDamaged):
                    published_again(store, first)
                if number == 0:
                    assert any(defect.row == f"row {row['seq']}" for defect in store.verify().defects)
            with rewriting(store) as connection:
                put_value(connection, log, row, "blob", row["blob"])
        assert everything(store) == before
        tally.take(examined(store))

    def test_a_changed_value_of_any_column_is_detected_or_has_no_effect(self, url: str, store: Store) -> None:
        fill(store)
        before, told = everything(store), 0
        for table in TABLES:
            with rewriting(store) as connection:
                rows = rows_of(connection, table)
            for row in rows[:: _EACH if table is log else 1]:
                for column in (name for name, value in row.items() if value is not None and name != "domain"):
                    for changed in flips(row[column], STRIDE * (997 if isinstance(row[column], bytes) else 29)):
                        if not changes(store, table, row, column, changed):
                            continue  # a check of the database
                        assert not store.verify().whole, (row, column)
                        told += is_told(url, before)
                        changes(store, table, {**row, column: changed}, column, row[column])
        assert told
        assert everything(store) == before
        assert store.verify().whole

    def test_a_removed_or_moved_row_is_detected_and_nothing_is_drawn_or_charged_again(
        self, url: str, store: Store, tally: Tally
    ) -> None:
        done = done_of(store, fill(store))
        with rewriting(store) as connection:
            rows = [(table, row) for table in TABLES for row in rows_of(connection, table)]
        both = pairwise(row for table, row in rows if table is log)
        moved = [(one, other) for one, other in both if one["domain"] == other["domain"]]
        for table, row in rows[::_EACH]:
            with rewriting(store) as connection:
                connection.execute(table.delete().where(this(table, row)))
            self._is_told_by_a_new_job(store, url, done)
            with rewriting(store) as connection:
                connection.execute(table.insert(), row)
        for one, other in moved[::_EACH]:
            for first, second in ((one, other), (other, one)):  # and back again
                with rewriting(store) as connection:
                    connection.execute(log.delete().where(sa.or_(this(log, first), this(log, second))))
                    for row, seq in ((first, second["seq"]), (second, first["seq"])):
                        connection.execute(log.insert(), {**row, "seq": seq if first is one else row["seq"]})
                if first is one:
                    self._is_told_by_a_new_job(store, url, done)
        assert store.verify().whole
        tally.take(examined(store))

    def _is_told_by_a_new_job(self, store: Store, url: str, done: Done) -> None:
        assert not store.verify().whole
        before = count(store)
        forget(store.address)  # as a process that has not seen the ledger: else it tells an older copy
        with pytest.raises(StoreDamaged), Store(url, wait=29) as other:
            run_again(other, done)
        assert count(store) == before

    @pytest.mark.parametrize(
        ("kind", "values", "words"),
        [
            ("entry/", {"after": 0.25}, "by the core"),
            ("entry/", {"epsilon_dp": 0.001}, "its query has"),
            ("query/", {"release_epsilon_dp": 0.001}, "by its scale"),
            ("entry/", {"charged": False}, "it was not to be"),
        ],
    )
    def test_what_is_rewritten_with_all_digests_is_detected_by_the_privacy_core(
        self, store: Store, kind: str, values: Row, words: str
    ) -> None:
        fill(store)
        with rewriting(store) as connection:
            forge(connection, said(kind, **values))
            if "charged" in values:  # without the blocks, which nothing would have paid for
                forge(connection, lambda key, body: None if key.startswith("block/") else body)
        assert any(words in defect.what for defect in store.verify().defects)

    def test_a_removal_with_recomputed_digests_is_detected_by_an_external_head(self, store: Store) -> None:
        fill(store)
        expected = {name: [head] for name, head in store.verify().heads.items()}
        last = store.entries("homes")[-1]
        with rewriting(store) as connection:
            forge(connection, lambda key, body: None if f"/{last.window_start}/" in key else body)
        found = store.verify(expected)
        assert {"is not on record as it was" in defect.what for defect in found.defects} == {True}
        assert found.heads["homes"].seq < expected["homes"][0].seq

    def test_a_head_verifies_every_later_state_of_the_ledger(self, store: Store) -> None:
        (held, *_) = fill(store)
        head = store.head("homes")
        assert Head.parse(str(head)) == head
        store.publish(held, drafts(held))
        store.raise_budget("homes", 5.0)
        assert store.head("homes") != head
        assert store.verify({"homes": [head, store.head("homes")]}).whole
        assert not store.verify({"homes": [store.head("shops")]}).whole
        assert not store.verify({"elsewhere": [head]}).whole
        for text in ("", "1.2", f"1.x{'0' * 63}", f"x.{'0' * 64}", f"{'9' * 19}.{'0' * 64}"):
            with pytest.raises(ValueError, match="is no head"):
                Head.parse(text)


def changes(store: Store, table: sa.Table, row: dict[str, Any], column: str, value: Any) -> bool:
    """Change one value; whether the database takes it."""
    try:
        with rewriting(store) as connection:
            put_value(connection, table, row, column, value)
    except DBAPIError:
        return False
    return True


def is_told(url: str, before: dict[str, Any]) -> bool:
    """Whether a new process tells of damage; else it must read what was there before."""
    with Store(url, wait=29) as other:
        try:
            with suppress(KeyError):
                forget(other.address)
            assert everything(other) == before
        except StoreError:
            return True
    return False


def examined(store: Store) -> Examined:
    """What is on record of the domain with a refused window."""
    held = present(store.registered("shops", "weekly"))
    windows = [(window.start, window.stop) for window in windows_of(held)]
    return examine(store, "shops", "weekly", belief=BELIEF, budget=0.33, windows=windows, keys=series_of("shops"))


Done = list[tuple[Registration, list[Window]]]
"""Queries, each with the windows of its blocks on record."""


def done_of(store: Store, queries: Iterable[Registration]) -> Done:
    """What is on record of some queries."""
    return [(one, [record.window for record in store.records(one.domain.name, one.query.name)]) for one in queries]


def published_again(store: Store, first: Registration) -> None:
    """Publish what is on record of one query, and read that of the other."""
    store.publish(first, [BlockToPublish(window, shard, never) for window in windows_of(first)[:3] for shard in (0, 1)])
    list(store.releases("shops", "weekly"))


def run_again(store: Store, done: Done) -> None:
    """What a job does that begins again, and then what shows and exports the ledger."""
    for held, windows in done:
        found = store.register(held.domain, held.query)
        store.publish(found, [BlockToPublish(window, shard, never) for window in windows for shard in (0, 1)])
    everything(store)


def count(store: Store) -> tuple[Any, ...]:
    """How many rows there are."""
    with rewriting(store) as connection:
        return tuple(connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in (heads, log))
