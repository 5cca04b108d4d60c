"""What is on record is checked when it is read: digests of rows, and a chain of each domain's charges (contract 28).

Every row carries ``row_digest``, a BLAKE2b digest of its table, its key and its content. The charges of a domain form a
chain in the order of their sequence numbers, whose head stands in the domain's row; a charge knows the blocks that were
drawn for it; and a parent row holds the number of its children. So one changed bit, a removed row and a row in another
one's place are found by the next statement that depends on them.

None of this is secret: a program that may write to the ledger can make all digests anew. Against that only a head that
is kept elsewhere helps (:mod:`.verification`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from . import tables
from .errors import StoreDamaged

Row = Mapping[Any, Any]

#: Bytes of the digest of a row.
DIGEST_BYTES = 16

#: Rows in memory at a time where they are long.
_AT_ONCE = 256

#: Bytes of the head of a chain, which is written down and compared later.
HEAD_BYTES = 32

ADVICE = (
    "restore the newest backup, and know that what was charged after it is forgotten then; `quiltstream ledger verify` "
    "lists everything that is damaged"
)

#: Columns that say which row it is, in messages.
_NAMED_BY = {
    tables.meta: (),
    tables.domains: ("name",),
    tables.domain_events: ("kind", "query"),
    tables.rosters: (),
    tables.queries: ("name",),
    tables.reservations: ("start", "stop"),
    tables.charges: ("sequence", "window_start"),
    tables.releases: ("window_start", "shard"),
    tables.roster_versions: ("start",),
}

#: Tables whose digests leave the row's number out: nothing depends on it that does not hold it against other columns.
_NUMBERED_LATE = frozenset({tables.rosters, tables.reservations, tables.charges, tables.releases})

_LINK = struct.Struct(f">qqqqd{DIGEST_BYTES}s")
_DRAWN = struct.Struct(f">I{DIGEST_BYTES}s")


def damaged(what: str, why: str) -> StoreDamaged:
    """The error for damage of a part of the ledger, in which no value of a block is named."""
    return StoreDamaged(f"ledger: {what} {why}: the record is damaged; {ADVICE}")


def named(table: sa.Table, row: Row) -> str:
    """A row in a message."""
    said = ", ".join(f"{name} {_short(row[name])}" for name in _NAMED_BY[table])
    return f"{table.name}, row {_short(row['id'])}" + (f" ({said})" if said else "")


def row_digest(table: sa.Table, row: Row) -> bytes:
    """The digest of a row: of its table's name, and of its key and content with their types."""
    form = _forms()[table]
    return _digest(table.name, form.values(row), [row[name] for name in form.blobs])


def _digest(name: str, values: tuple[Any, ...], blobs: Sequence[Any]) -> bytes:
    found = hashlib.blake2b(repr((name, values)).encode(), digest_size=DIGEST_BYTES)
    for blob in blobs:
        if not isinstance(blob, bytes):
            return b""
        found.update(len(blob).to_bytes(8, "big"))
        found.update(blob)
    return found.digest()


def draw_digest(row: Row) -> str:
    """What tells the draw of a block from another one of the same window and shard."""
    found = hashlib.blake2b(repr(("draw", row["completeness"])).encode(), digest_size=DIGEST_BYTES)
    found.update(row["block"])
    return found.hexdigest()


def is_whole(table: sa.Table, row: Row) -> bool:
    """Whether a row is what was written."""
    return row["row_digest"] == row_digest(table, row)


def checked(table: sa.Table, row: Row) -> Row:
    """A row that is what was written."""
    if row["row_digest"] != row_digest(table, row):
        raise damaged(named(table, row), "is not what was written")
    return row


def checked_rows(
    connection: Connection, table: sa.Table, chosen: sa.Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[Row]:
    """The rows that a statement chooses of a table, each with all of its columns, and each checked."""
    rows = _checked_at(table, connection.execute(chosen, parameters).all())
    return [row._mapping for row in rows]  # noqa: SLF001 - public by its documents


def checked_stream(
    connection: Connection, table: sa.Table, chosen: sa.Select[Any], names: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Some columns of the same rows, of which few are in memory at a time."""
    given = itemgetter(*map(list(table.columns.keys()).index, names))
    for rows in connection.execute(chosen.execution_options(yield_per=_AT_ONCE)).partitions():
        yield from map(given, _checked_at(table, rows))


def _checked_at(table: sa.Table, rows: Sequence[Any]) -> Sequence[Any]:
    """The rows, looked at by the places of their columns: of many rows it takes half as long."""
    form, name = _forms()[table], table.name
    values, blobs, at = form.values_at, form.blobs_at, form.digest_at
    for row in rows:
        if row[at] != _digest(name, values(row), [row[place] for place in blobs] if blobs else ()):
            raise damaged(named(table, row._mapping), "is not what was written")  # noqa: SLF001 - public by its documents
    return rows


def counted(rows: list[Row], expected: Any, what: str) -> list[Row]:
    """Rows, as many as their parent has; a damaged index may give one of them twice in the place of another."""
    found = len({row["id"] for row in rows})
    if not found == len(rows) == expected:
        raise damaged(what, f"are {found} on record and {_short(expected)} were written")
    return rows


def with_digest(table: sa.Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a new row with its digest, in the types in which they are read back."""
    made = {
        column.name: _as_read(column, values.get(column.name))
        for column in table.columns
        if column.name != "row_digest"
    }
    made["row_digest"] = row_digest(table, made)
    if made["id"] is None:
        del made["id"]
    return made


def put(connection: Connection, table: sa.Table, values: Mapping[str, Any]) -> Row:
    """Insert a row with its digest; the row as it is on record."""
    made = with_digest(table, values)
    number = _number(connection.execute(table.insert(), made))
    if table in _NUMBERED_LATE or "id" in made:
        return {**made, "id": number}
    return rewrite(connection, table, {**made, "id": number})


def alter(connection: Connection, table: sa.Table, number: int, *, more: str | None = None, **values: Any) -> Row:
    """Change a row that is whole, and its digest with it; the caller holds its lock. The row as it is then.

    Args:
        connection: a transaction that may write.
        table: the table.
        number: of the row.
        more: a column that counts the row's children, of which there is one more now.
        values: what changes otherwise.

    Raises:
        StoreDamaged: the row is gone, or not what was written.
    """
    row = connection.execute(sa.select(table).where(table.c.id == number)).mappings().first()
    if row is None:
        raise damaged(f"{table.name}, row {number}", "is missing")
    old = checked(table, row)
    return rewrite(connection, table, old, **values, **({} if more is None else {more: old[more] + 1}))


def rewrite(connection: Connection, table: sa.Table, row: Row, **values: Any) -> Row:
    """Change a row that was read and checked in this transaction and not changed since; the row as it is then."""
    made = with_digest(table, {**{column.name: row[column.name] for column in table.columns}, **values})
    changed = {name: made[name] for name in (*values, "row_digest")}
    connection.execute(table.update().where(table.c.id == row["id"]).values(changed))
    return made


class Chain:
    """The digest of a domain's charges in the order of their sequence numbers.

    The head of so many charges is the digest of all of them, so it is also the head of every longer chain at that
    place: kept elsewhere, it shows later whether anything up to there was changed or removed.
    """

    def __init__(self, domain: str) -> None:
        self._hash = hashlib.blake2b(repr(("quiltstream chain", domain)).encode(), digest_size=HEAD_BYTES)
        self._length = 0

    def add(self, links: Collection[tuple[Any, ...]]) -> None:
        """Put charges behind those there are: of each the values of :data:`LINK`."""
        self._hash.update(b"".join([_link_bytes(*link) for link in links]))
        self._length += len(links)

    def heads(self, links: Iterable[tuple[Any, ...]]) -> list[bytes]:
        """Add charges; the head up to each of them."""
        found: list[bytes] = []
        for link in links:
            self.add([link])
            found.append(self.head)
        return found

    @property
    def head(self) -> bytes:
        """The digest of all that were added."""
        return self._hash.copy().digest()

    def check(self, domain: Row) -> None:
        """Hold a whole chain against the row of its domain.

        Raises:
            StoreDamaged: a charge was changed or removed.
        """
        if (self._length, self.head) != (domain["last_sequence"], domain["head"]):
            raise broken(domain["name"])


def broken(domain: str) -> StoreDamaged:
    """The error where a domain's entries are not those that its row knows."""
    return damaged(f"domain {domain!r}: its charges", "are not those that were made: some were changed or removed")


def _link_bytes(*link: Any) -> bytes:
    sequence, entry_id, query_id, start, stop, decision, epsilon_dp, digest = link
    try:
        return _LINK.pack(sequence, query_id, start, stop, epsilon_dp, digest) + f"{entry_id} {decision}\n".encode()
    except (struct.error, UnicodeError):  # damaged, and so another head
        return repr(link).encode()


#: What of a charge is part of the chain: what the account is made of, and the digest of all the rest.
LINK = ("sequence", "entry_id", "query_id", "window_start", "window_stop", "decision", "epsilon_dp", "row_digest")

link_of: Callable[[Row], tuple[Any, ...]] = itemgetter(*LINK)


def drawn_of(charge: Row) -> dict[int, bytes]:
    """The digests of the blocks that were drawn for a charge, by shard."""
    data = charge["drawn"]
    if data is None:
        return {}
    body = data[:-DIGEST_BYTES] if isinstance(data, bytes) else b""
    if not body or len(body) % _DRAWN.size or data != body + _drawn_digest(charge["entry_id"], body):
        raise damaged(named(tables.charges, charge), "does not say which blocks were drawn for it")
    return dict(_DRAWN.iter_unpack(body))


def drawn_bytes(entry_id: str, drawn: Mapping[int, bytes]) -> bytes | None:
    """The inverse of :func:`drawn_of`; ``None`` where nothing was drawn."""
    if not drawn:
        return None
    body = b"".join(_DRAWN.pack(shard, drawn[shard]) for shard in sorted(drawn))
    return body + _drawn_digest(entry_id, body)


def check_drawn(charge: Row, shard: int, block: Row | None) -> None:
    """Hold a block of record, or that there is none, against what its window's charge says."""
    found = None if block is None else block["row_digest"]
    if drawn_of(charge).get(shard) == found:
        return
    what = f"{named(tables.charges, charge)}, shard {shard}: its block"
    raise damaged(what, "was drawn and is missing" if block is None else "is not the one that was drawn")


def _drawn_digest(entry_id: Any, body: bytes) -> bytes:
    return hashlib.blake2b(repr(("drawn", entry_id)).encode() + body, digest_size=DIGEST_BYTES).digest()


def _number(result: sa.CursorResult[Any]) -> int:
    key = result.inserted_primary_key
    if key is None:
        raise damaged("a row", "was written and has no number")
    return int(key[0])


def _short(value: Any, limit: int = 60) -> str:
    text = ascii(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _as_read(column: sa.Column[Any], value: Any) -> Any:
    return None if value is None else column.type.python_type(value)


class _Form(NamedTuple):
    """What of a table's rows is part of their digests, by name, and by place in rows that have all columns."""

    values: Callable[[Any], tuple[Any, ...]]
    blobs: tuple[str, ...]
    values_at: Callable[[Any], tuple[Any, ...]]
    blobs_at: tuple[int, ...]
    digest_at: int


@cache
def _forms() -> dict[sa.Table, _Form]:
    """The form of each table."""
    found: dict[sa.Table, _Form] = {}
    for table in tables.metadata.sorted_tables:
        left_out = {"row_digest", "drawn"} | ({"id"} if table in _NUMBERED_LATE else set[str]())
        columns = [column for column in table.columns if column.name not in left_out]
        long = tuple(column.name for column in columns if isinstance(column.type, sa.LargeBinary))
        names, every = [column.name for column in columns if column.name not in long], list(table.columns.keys())
        found[table] = _Form(
            values=itemgetter(*names),
            blobs=long,
            values_at=itemgetter(*map(every.index, names)),
            blobs_at=tuple(map(every.index, long)),
            digest_at=every.index("row_digest"),
        )
    return found
