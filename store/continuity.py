"""One store, one history: what a process knows of a ledger, held against every connection and every lock.

A ledger has a random name, its ``store_id``. Once a process knows it, each new connection is asked for it before its
first statement, and each lock on a domain again. A lock also compares the last sequence number of the domain with the
highest one that this process has seen: an older copy of a ledger has the same name and a lower number. The numbers
outlive the connection by which they were seen: a runner that tries a bundle again opens the ledger anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from . import tables
from .address import StoreAddress
from .errors import StoreReplaced

#: Execution option of a transaction: the :class:`Continuity` of its database.
WATCH = "quiltstream_watch"

Ask = Callable[[str], Any]
"""A statement to the first row that it finds; ``None`` for none."""


_Heads = dict[str, int]
"""The highest sequence number seen, by name of the domain."""

#: What this process has seen of each ledger at an address: by URL and name of the ledger.
_SEEN: defaultdict[tuple[str, str | None], _Heads] = defaultdict(dict)


#: The newest block of each query that left this process, by the query's number, each with its own number, for the same.
_LEFT: defaultdict[tuple[str, str | None], dict[int, tuple[int, Any]]] = defaultdict(dict)


def newest_left(address: StoreAddress) -> dict[int, tuple[int, Any]]:
    """The newest block of each query that left this process, which the caller brings up to date."""
    return _LEFT[address.url, address.store_id]


def forget(address: StoreAddress) -> None:
    """Take what is at an address for whole from now on, by the operator's word that its history is lost."""
    for seen in (_SEEN, _LEFT):
        for key in [key for key in seen if key[0] == address.url]:
            del seen[key]


@dataclass
class Continuity:
    """What this process knows of the ledger at an address.

    Attributes:
        address: where it is.
        store_id: its name; ``None`` while no ledger was seen there.
        entered: numbers that a transaction which is not committed yet has given.
    """

    address: StoreAddress
    store_id: str | None = None
    entered: _Heads = field(default_factory=dict[str, int])

    @property
    def heads(self) -> _Heads:
        """The highest sequence number that any connection of this process has seen, by name of the domain."""
        return _SEEN[self.address.url, self.store_id]

    def committed(self) -> None:
        """Keep the numbers that a transaction has given, now that they are on record."""
        for name, sequence in self.entered.items():
            # another connection of the process may have seen a later one by now
            self.heads[name] = max(self.heads.get(name, 0), sequence)
        self.entered.clear()

    def check_connection(self, ask: Ask) -> None:
        """Ask a new connection for the name of its ledger.

        Args:
            ask: gives the first row that a statement finds.

        Raises:
            StoreReplaced: it is another one, or none.
        """
        if self.store_id is None:
            return
        if not self.address.is_sqlite and ask(f"SELECT to_regclass('{tables.meta.name}')") in (None, (None,)):
            raise self.replaced("its tables are not there any more")
        found = ask(f"SELECT store_id FROM {tables.meta.name}")  # noqa: S608 - a name of this package
        self.check_store(None if found is None else found[0])

    def check_store(self, found: str | None) -> None:
        """Compare the name of a ledger with the one that is known.

        Raises:
            StoreReplaced: it is another one.
        """
        if self.store_id is not None and found != self.store_id:
            raise self.replaced("another ledger is there", found)

    def check_domain(self, name: str, row: Mapping[Any, Any] | None) -> None:
        """Compare a domain's row, read under its lock, with what this process has seen.

        Raises:
            StoreReplaced: the row has the name of another ledger, or fewer entries than were seen.
        """
        seen = self.heads.get(name, 0)
        if row is None:
            if seen:
                raise self.older(name, seen, 0)
            return
        self.check_store(row["store_id"])
        if row["last_sequence"] < seen:
            raise self.older(name, seen, row["last_sequence"])
        self.heads[name] = max(self.heads.get(name, 0), row["last_sequence"])

    def check_domains(self, found: Mapping[str, int]) -> None:
        """Compare the last sequence numbers of all domains with what this process has seen.

        Raises:
            StoreReplaced: one is lower, or a domain is not there.
        """
        for name, seen in self.heads.items():
            if found.get(name, 0) < seen:
                raise self.older(name, seen, found.get(name, 0))

    def older(self, name: str, seen: int, found: int | None = None) -> StoreReplaced:
        """The error for a ledger that has forgotten entries which this process has seen."""
        has = "the last of them is not there" if found is None else f"its last one there is number {found}"
        return self.replaced(
            f"an older copy or a restored backup is there: entry {seen} of domain {name!r} was on record, and {has}",
            self.store_id,
        )

    def replaced(self, what: str, found: str | None = None) -> StoreReplaced:
        """The error for a ledger that is not the one that was known."""
        known = "" if self.store_id is None else f" The ledger of this job has the id {self.store_id}"
        other = "" if not known or found is None or found == self.store_id else f", the one there {found}"
        end = "." if known else ""
        return StoreReplaced(
            f"ledger {self.address}: {what}.{known}{other}{end} The job stops for good before anything more is "
            "published, and no ledger is made: what the known one holds was charged, and would be drawn again. Stop "
            "all jobs that use it and put the ledger back with everything it held; if it is lost for good, "
            "`quiltstream run --history-lost` goes on without it and marks the account for ever"
        )


def check_domain(connection: Connection, name: str, row: Mapping[Any, Any] | None) -> None:
    """Compare a domain's row with what the process of a transaction has seen (:meth:`Continuity.check_domain`).

    Raises:
        StoreReplaced: the ledger is another one, or an older copy.
    """
    watch = connection.get_execution_options().get(WATCH)
    if isinstance(watch, Continuity):
        watch.check_domain(name, row)


def entered(connection: Connection, name: str, sequence: int) -> None:
    """Note the number that a transaction gives to a domain's last entry; it counts once it is committed."""
    watch = connection.get_execution_options().get(WATCH)
    if isinstance(watch, Continuity):
        watch.entered[name] = sequence


def forgotten(connection: Connection, name: str, seen: int) -> None:
    """Refuse a ledger in which an entry is not on record that this process has entered into a domain's account.

    Raises:
        StoreReplaced: always, inside a transaction of a :class:`~quiltstream.store.connection.Database`.
    """
    watch = connection.get_execution_options().get(WATCH)
    if isinstance(watch, Continuity):
        raise watch.older(name, seen)


__all__ = ["WATCH", "Continuity", "check_domain", "entered", "forget", "forgotten", "newest_left"]
