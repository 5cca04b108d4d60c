"""A transaction as it reads the record and adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .codec import now_us
from .domain import Blobs, Domain
from .errors import StoreConflict
from .log import APPEND, BEGIN, MOVE, Chain, Root

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from .database import Database


class Look:
    """A transaction: the record as it is now."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.connection = connection
        self._database = database

    @property
    def root(self) -> Root:
        """The ledger's own log."""
        return self._database.root(self.connection)

    def domain(self, name: str) -> Domain | None:
        """A domain; ``None`` if it is not on record."""
        return self._database.domain(self.connection, name)

    def known(self, name: str) -> Domain:
        """A domain that is on record."""
        found = self.domain(name)
        if found is None:
            known = ", ".join(sorted(self.root.domains)) or "no domain yet"
            raise StoreConflict(f"domain {name!r} is not on record in this ledger; it has {known}")
        return found

    def blobs(self, name: str) -> Blobs:
        """What reads blobs of a domain."""
        return lambda wanted: self._database.blobs(self.connection, name, wanted)


class Writing(Look):
    """A transaction that adds rows to domains whose heads it has locked."""

    def __init__(self, database: Database, connection: Connection, names: tuple[str, ...]) -> None:
        super().__init__(database, connection)
        self._rows: list[dict[str, Any]] = []
        self._locked = {name: database.chain(connection, name, lock=True) for name in sorted(names)}
        # with how many rows each had then
        self._held = {name: (one, one.seq) for name, one in self._locked.items() if one is not None}

    @property
    def root(self) -> Root:
        """The ledger's own log."""
        found = self._held.get("")
        return super().root if found is None else found[0]  # pyright: ignore[reportReturnType] - the one without a name

    def domain(self, name: str) -> Domain | None:
        """A domain, as it is with what was added; ``None`` if it is not on record."""
        found = self._held.get(name)
        if found is None:
            return None if name in self._locked else super().domain(name)
        return found[0]  # pyright: ignore[reportReturnType] - one with a name

    def begin(self, name: str) -> Domain:
        """A domain that nothing is on record of: the ledger's own head is locked, so no other job makes it."""
        made = Domain(name, self.root.store_id)
        self._held[name] = made, 0
        self.add(self.root, f"domain/{name}", {"at": now_us()})
        return made

    def add(self, chain: Chain, key: str, body: dict[str, Any], blob: bytes | None = None) -> None:
        """Append a row."""
        self._rows.append(chain.add(key, body, blob))

    def flush(self) -> None:
        """Write everything."""
        if self._rows:
            self.connection.execute(APPEND, self._rows)
        for chain, before in self._held.values():
            if not before:
                self.connection.execute(BEGIN, chain.row)
            elif chain.seq != before:
                values = {"name": chain.name, "to": chain.seq, "becomes": chain.digest}
                self.connection.execute(MOVE, values)

    def undo(self) -> None:
        """Take everything back that was added."""
        self.forget()
        self._rows, self._held = [], {}

    def forget(self) -> None:
        """Forget chains that are ahead of the record."""
        for name, (chain, before) in self._held.items():
            if chain.seq != before:
                self._database.forget(name)

    def keep(self) -> None:
        """What was added is on record now."""
        for name, (chain, _) in self._held.items():
            self._database.adopt(name, chain)
