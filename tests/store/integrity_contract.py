"""Every ledger of record: what is on record is checked when it is read, and nothing is drawn a second time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from quiltstream.schemas.slots import Window
from quiltstream.store import BlockToPublish, Registration, Store, StoreDamaged, tables
from quiltstream.store.address import forget
from quiltstream.store.integrity import is_whole
from quiltstream.store.verification import Head

from ..depth import STRIDE
from ..examined import Examined, Tally, examine
from ..present import present
from .damage import TABLES, everything, fill, flips, put_value, rewriting, rows_of, windows_of
from .engines import OnLedger
from .forging import reseal
from .proofs import never
from .samples import BELIEF, drafts, series_of


class IntegrityContract(OnLedger):
    """Inherit it together with an engine."""

    def test_an_intact_ledger_is_verified_without_a_defect(self, store: Store) -> None:
        fill(store)
        found = store.verify()
        assert found.defects == ()
        assert (found.mode, set(found.heads)) == ("private", {"homes", "shops"})
        assert found.heads == {name: store.head(name) for name in ("homes", "shops")}
        assert found.heads["homes"].charges == 3
        assert found.heads["homes"].blocks == 6
        assert found.rows["quiltstream_charges"] == len(store.entries())
        assert store.verify({name: [head] for name, head in found.heads.items()}).whole

    def test_every_flipped_bit_of_a_block_is_detected_and_not_published(self, store: Store, tally: Tally) -> None:
        held = fill(store)
        before = everything(store)
        releases, (first, *_) = tables.releases, held
        with rewriting(store) as connection:
            rows = rows_of(connection, releases)
        bits = sum(not is_whole(releases, {**row, "block": block}) for row in rows for block in flips(row["block"]))
        assert bits == sum(8 * len(row["block"]) for row in rows) > 10_000
        # and some of them in the ledger itself
        for row in rows:
            for number, block in enumerate(flips(row["block"], 499)):
                with rewriting(store) as connection:
                    put_value(connection, releases, row["id"], "block", block)
                with pytest.raises(StoreDamaged, match="quiltstream_releases, row"):
                    published_again(store, first)
                if number == 0:
                    assert any(defect.table == releases.name for defect in store.verify().defects)
            with rewriting(store) as connection:
                put_value(connection, releases, row["id"], "block", row["block"])
        assert everything(store) == before
        tally.take(examined(store))

    def test_a_changed_value_of_any_column_is_detected_or_has_no_effect(self, store: Store) -> None:
        fill(store)
        told = change_every_column(store, TABLES)
        assert all(told[table.name] for table in TABLES)

    def test_a_removed_row_is_detected_and_nothing_is_drawn_or_charged_again(
        self, url: str, store: Store, tally: Tally
    ) -> None:
        done = done_of(store, fill(store))
        self.unguarded(store)
        remove_every_row(store, url, TABLES, done)
        tally.take(examined(store))

    def unguarded(self, store: Store) -> None:
        """Let the database forget which rows belong together, as a disk does; SQLite asks no connection of others."""

    def test_two_swapped_blocks_are_detected(self, store: Store) -> None:
        (held, *_) = fill(store)
        releases = tables.releases
        with rewriting(store) as connection:
            first, second, *_ = rows_of(connection, releases)
            for row, other in ((first, second), (second, first)):
                for name in ("block", "completeness", "created_us", "row_digest"):
                    put_value(connection, releases, row["id"], name, other[name])
        with pytest.raises(StoreDamaged):
            list(store.releases("homes", "weekly"))
        with pytest.raises(StoreDamaged):
            store.publish(held, [BlockToPublish(windows_of(held)[0], 0, never)])

    def test_a_loss_rewritten_with_all_digests_is_detected_by_the_privacy_core(self, store: Store) -> None:
        fill(store)
        with rewriting(store) as connection:
            number = rows_of(connection, tables.charges)[0]["id"]
            put_value(connection, tables.charges, number, "loss_after", 0.25)
            reseal(connection)
        (defect,) = store.verify().defects
        assert "by the core" in defect.what
        assert "0.25" in defect.what

    def test_densities_rewritten_with_all_digests_disagree_with_the_scale(self, store: Store) -> None:
        """As if a query had cost half as much: in its charges, and then in its own row too."""
        fill(store)
        for table, names, said in (
            (tables.charges, ("epsilon_dp",), "its query has"),
            (tables.queries, ("epsilon_dp", "release_epsilon_dp"), "by its scale"),
        ):
            with rewriting(store) as connection:
                for row in rows_of(connection, table):
                    for name in names:
                        put_value(connection, table, row["id"], name, row[name] / 2)
                reseal(connection)
            assert any(said in defect.what for defect in store.verify().defects if defect.table == table.name)

    @pytest.mark.parametrize("decision", ["charged", "refused"])
    def test_a_decision_rewritten_with_all_digests_is_detected(self, store: Store, decision: str) -> None:
        fill(store)
        with rewriting(store) as connection:
            rows = [row for row in rows_of(connection, tables.charges) if row["domain_id"] == 2]
            number = next(row["id"] for row in rows if row["decision"] != decision)
            put_value(connection, tables.charges, number, "budget", 9.0)
            put_value(connection, tables.charges, number, "decision", decision)
            reseal(connection)
        assert any("it was not to be" in defect.what for defect in store.verify().defects)

    def test_a_removal_with_recomputed_digests_is_detected_by_an_external_head(self, store: Store) -> None:
        fill(store)
        heads = store.verify().heads
        with rewriting(store) as connection:
            rows = rows_of(connection, tables.charges)
            last = max((row for row in rows if row["domain_id"] == 1), key=lambda row: row["sequence"])
            connection.execute(tables.releases.delete().where(tables.releases.c.charge_id == last["id"]))
            connection.execute(tables.charges.delete().where(tables.charges.c.id == last["id"]))
            reseal(connection)
        assert [defect.what for defect in store.verify().defects] == []
        found = store.verify({name: [head] for name, head in heads.items()})
        assert ["is not on record as it was" in defect.what for defect in found.defects] == [True]

    def test_a_head_verifies_every_later_state_of_the_ledger(self, store: Store) -> None:
        (held, *_) = fill(store)
        head = store.head("homes")
        assert Head.parse(str(head)) == head
        store.publish(held, drafts(held))
        store.raise_budget("homes", 5.0)
        assert store.head("homes") != head
        assert store.verify({"homes": [head, store.head("homes")]}).whole
        assert not store.verify({"homes": [Head.parse(str(store.head("shops")))]}).whole
        assert not store.verify({"elsewhere": [head]}).whole
        for text in ("", "1.2.3", f"1.2.{'0' * 64}", f"1.2.x.{'0' * 64}"):
            with pytest.raises(ValueError, match="is no head"):
                Head.parse(text)


def blocks_of(store: Store, held: Registration) -> list[tuple[Window, int]]:
    """Window and shard of every block of a query."""
    return [(record.window, record.shard) for record in store.records(held.domain.name, held.query.name)]


def examined(store: Store) -> Examined:
    """What is on record of the domain with a refused window."""
    held = present(store.registered("shops", "weekly"))
    windows = [(window.start, window.stop) for window in windows_of(held)]
    return examine(store, "shops", "weekly", belief=BELIEF, budget=0.33, windows=windows, keys=series_of("shops"))


Done = list[tuple[Registration, list[Window]]]
"""Queries, each with the windows of its blocks on record."""


def done_of(store: Store, queries: Iterable[Registration]) -> Done:
    """What is on record of some queries."""
    return [(one, [window for window, _ in blocks_of(store, one)]) for one in queries]


def change_every_column(store: Store, chosen: Iterable[sa.Table]) -> Counter[str]:
    """Change each value of the last row of some tables, and see that it is told or without effect; how often it is."""
    before, told = everything(store), Counter[str]()
    for table in chosen:
        with rewriting(store) as connection:
            row = rows_of(connection, table)[-1:]
        for number, column, value in [(one["id"], name, value) for one in row for name, value in one.items()]:
            keys = table.c[column]
            if column == "id" or keys.foreign_keys or keys.unique:
                continue  # databases keep these together themselves
            step = STRIDE * (997 if isinstance(value, bytes) else 29)
            for changed in flips(value, step):
                try:
                    with rewriting(store) as connection:
                        put_value(connection, table, number, column, changed)
                except DBAPIError:
                    continue  # a check of the database
                try:
                    assert everything(store) == before, (table.name, column)
                except StoreDamaged:
                    told[table.name] += 1
                assert not store.verify().whole, (table.name, column)
            with rewriting(store) as connection:
                put_value(connection, table, number, column, value)
    assert everything(store) == before
    assert store.verify().whole
    return told


def remove_every_row(store: Store, url: str, chosen: Iterable[sa.Table], done: Done) -> None:
    """Remove each row of some tables once, and see that it is told, and nothing drawn or charged; and put it back."""
    for table in chosen:
        with rewriting(store) as connection:
            rows = rows_of(connection, table)
        for row in rows:
            with rewriting(store) as connection:
                connection.execute(table.delete().where(table.c.id == row["id"]))
            assert not store.verify().whole, (table.name, row)
            before = count(store)
            forget(store.address)  # as a process that has not seen the ledger: else it tells an older copy
            with pytest.raises(StoreDamaged), Store(url, wait=29) as other:
                run_again(other, done)
            assert count(store) == before, (table.name, row)
            with rewriting(store) as connection:
                connection.execute(table.insert(), row)
    assert store.verify().whole


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
    """How many charges and blocks there are."""
    with rewriting(store) as connection:
        return tuple(
            connection.scalar(sa.select(sa.func.count()).select_from(table))
            for table in (tables.charges, tables.releases)
        )
