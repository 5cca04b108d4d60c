"""One store, one history: what an opening does when the ledger is not the one that was known."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.pool import NullPool

from quiltstream.store import Store, StoreAddress, StoreConflict
from quiltstream.store.address import forget
from quiltstream.store.errors import StoreReplaced
from quiltstream.store.log import Head, metadata
from quiltstream.store.specs import Registration

from .proofs import Registered, prices, windows_of
from .samples import domain, drafts, query, seen


def first_of(registration: Registration, many: int) -> list[Any]:
    return drafts(registration, windows_of(registration)[:many])


#: Everything that a store can be asked to do, each by its name.
ASKED: dict[str, Callable[[Store, Registration], Any]] = {
    "register": lambda store, held: store.register(held.domain, held.query),
    "registered": lambda store, _: store.registered("homes", "weekly"),
    "current": lambda store, held: store.current(held),
    "join": lambda store, held: store.join(held, [("another", None)]),
    "charge_windows": lambda store, held: store.charge_windows(held, windows_of(held)[-1:]),
    "publish": lambda store, held: store.publish(held, drafts(held)),
    "missing": lambda store, held: list(store.missing(held)),
    "next_start": lambda store, held: store.next_start(held),
    "entries": lambda store, _: store.entries(),
    "records": lambda store, _: list(store.records("homes", "weekly")),
    "releases": lambda store, _: list(store.releases("homes", "weekly")),
    "domains": lambda store, _: store.domains(),
    "summary": lambda store, _: store.summary("homes"),
    "raise_budget": lambda store, _: store.raise_budget("homes", 9.0),
    "note_history_lost": lambda store, _: store.note_history_lost("homes", releases=1),
    "head": lambda store, _: store.head("homes"),
    "holds": lambda store, _: store.holds("homes", Head(1, "00" * 32)),
    "unknown_releases": lambda store, _: store.unknown_releases(["0" * 32]),
    "check_writable": lambda store, _: store.check_writable(),
    "store_id": lambda store, _: store.store_id,
}


class ContinuityContract(Registered):
    """What is promised of a ledger that vanishes, is emptied, or has another or an older one put in its place."""

    @pytest.mark.parametrize("how", ["the same store", "a copy that travelled", "an address with its id"])
    def test_no_store_call_recreates_a_known_ledger(
        self, url: str, store: Store, registration: Registration, how: str
    ) -> None:
        store.publish(registration, first_of(registration, 2))
        known = {
            "the same store": lambda: store,
            "a copy that travelled": lambda: pickle.loads(pickle.dumps(store)),
            "an address with its id": lambda: Store(store.address, create=True, over=True),
        }[how]()
        name = store.store_id
        store.close()
        self.vanish(url)
        for ask in (*ASKED.values(), *ASKED.values()):
            with pytest.raises(StoreReplaced, match=name):
                ask(known, registration)
            assert self.is_bare(url)
        known.close()

    def test_a_store_never_opened_reports_a_missing_ledger_and_creates_none(self, url: str) -> None:
        for address in (url, StoreAddress(url)):
            with Store(address) as store, pytest.raises(StoreConflict, match="there is none"):
                store.domains()
        with Store(StoreAddress(url).pinned("0" * 32), create=True) as store, pytest.raises(StoreReplaced):
            store.domains()
        assert self.is_bare(url)

    def test_another_ledger_at_the_address_is_never_charged(
        self, url: str, store: Store, registration: Registration
    ) -> None:
        """Also where it has the same domain and query: another job may have made it."""
        store.publish(registration, first_of(registration, 2))
        travelled = pickle.dumps(store)
        self.vanish(url)
        with Store(url, create=True, wait=29) as other:  # a connection of its own
            held = other.register(domain(), query())
            other.publish(held, first_of(held, 1))
            before = other.entries()
            for one in (store, pickle.loads(travelled)):
                with pytest.raises(StoreReplaced):
                    one.publish(registration, drafts(registration))
                with pytest.raises(StoreReplaced):
                    one.register(domain(), query())
                one.close()
            assert other.entries() == before

    def test_an_older_copy_is_detected_by_any_process_with_newer_entries(
        self, url: str, store: Store, registration: Registration
    ) -> None:
        """The same ledger with fewer entries, under an open connection: as after a server was restored."""
        store.publish(registration, first_of(registration, 1))
        early = rows_of_all(url)
        with Store(url, wait=29) as other:
            other.publish(registration, first_of(registration, 3))
        store.charge_windows(registration, windows_of(registration)[:2])
        store.publish(registration, first_of(registration, 2))  # it only reads, and sees that there are three
        put_back(url, early)
        with pytest.raises(StoreReplaced, match="older copy or a restored backup is there: row "):
            store.publish(registration, drafts(registration))
        with pytest.raises(StoreReplaced):
            store.entries()

    @pytest.mark.parametrize("ask", ["current", "next_start", "summary", "join", "head", "publish"])
    def test_a_name_missing_in_a_replaced_ledger_is_reported_as_a_replacement(
        self, url: str, store: Store, fresh_urls: Iterator[str], ask: str
    ) -> None:
        """Under an open connection: as after a server's tables were restored, or dropped and made anew."""
        store.domains()
        early = rows_of_all(url)
        registration = store.register(domain(), query())
        store.publish(registration, first_of(registration, 2))
        put_back(url, early)
        with pytest.raises(StoreReplaced, match=r"row \d+ .* its last one there is number"):
            ASKED[ask](store, registration)
        anew = next(fresh_urls)
        with Store(anew, create=True) as other:
            other.domains()
        put_back(url, rows_of_all(anew))
        with pytest.raises(StoreReplaced, match="stops for good before anything more is published"):
            ASKED[ask](store, registration)

    def test_a_head_is_held_by_no_older_copy_and_by_no_other_draw(
        self, url: str, store: Store, registration: Registration
    ) -> None:
        """Also where its window was charged before."""
        windows = windows_of(registration)[:3]
        store.charge_windows(registration, windows)
        given: list[Head] = []
        for window, shard in ((windows[2], 1), (windows[0], 0), (windows[1], 1), (windows[0], 1)):
            early = rows_of_all(url)
            store.publish(registration, drafts(registration, [window], [shard]))
            given.append(store.head("homes"))
        assert [store.holds("homes", one) for one in given] == [True] * 4
        assert not store.holds("homes", Head(given[-1].seq + 1, given[-1].digest))
        assert not store.holds("elsewhere", given[0])
        put_back(url, early)
        forget(store.address)  # as another process
        with Store(url, wait=28) as other:
            assert [other.holds("homes", one) for one in given] == [True] * 3 + [False]
            # its bundle is tried again there: another draw
            (record,) = other.publish(registration, drafts(registration, [window], [shard]))
            assert record.fresh
            assert [other.holds("homes", one) for one in given] == [True] * 3 + [False]

    def test_a_pickled_store_continues_on_its_ledger(self, store: Store, registration: Registration) -> None:
        first = store.publish(registration, first_of(registration, 2))
        store.close()
        again = pickle.loads(pickle.dumps(store))
        assert seen(again.publish(registration, drafts(registration))).items() >= seen(first).items()
        prices(again.entries(), 1.0)
        again.close()


def rows_of_all(url: str) -> dict[str, list[dict[str, Any]]]:
    """A copy of everything on record."""
    with other_process(url) as connection:
        return {
            table.name: [dict(row) for row in connection.execute(table.select()).mappings()]
            for table in metadata.sorted_tables
        }


def put_back(url: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Put a copy in the place of what is on record, as a server is restored under whoever has it open."""
    with other_process(url) as connection:
        for table in metadata.sorted_tables:
            connection.execute(table.delete())
            if rows[table.name]:
                connection.execute(table.insert(), rows[table.name])


@contextmanager
def other_process(url: str) -> Generator[Connection]:
    """A connection that shares nothing with those of the stores."""
    with sa.create_engine(StoreAddress(url).resolve(), poolclass=NullPool).begin() as connection:
        yield connection
