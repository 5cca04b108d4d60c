"""The two tables of a ledger, and the chain that every row is a link of.

``quiltstream_log`` is append only: a row is a fact about a domain, by its number there and by a key that no other row
of the domain has. ``body`` is canonical JSON and may be shown; ``blob`` holds what is not, such as names of series and
noisy counts, and ``body`` holds its digest. ``quiltstream_heads`` has one row a domain: how many rows there are and the
digest of all of them. It is the domain's lock: who writes selects it ``FOR UPDATE``, reads what is new, appends, and
moves it. The domain without a name is the ledger itself, which lists the domains.

Kinds of rows, by the first part of the key: ``domain``, ``query/NAME``, ``roster/NUMBER/QUERY``, ``entry/SLOT/QUERY``
(a window charged or refused), ``block/SLOT/SHARD/QUERY``, ``decision/NUMBER`` (budget raised, belief joined or
switched, schedule moved, history lost, ...), ``belief/NUMBER`` (what is known anew of one that was changed). Of the
ledger: ``ledger``, ``mode``, ``domain/NAME``.

A chain is folded from its rows and holds no more than they say. So one changed bit, a removed row, another order or an
older copy show in one comparison, that of the fold with the head. None of this is secret: who may write to the database
can make all digests anew, and against that only a head kept elsewhere helps.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..schemas.digests import canonical_json
from ..schemas.errors import ArgumentError
from .errors import damaged

#: The only version of the tables that there is.
VERSION = 1

#: Bytes of the digest of a blob, and of the name of an entry; and of that of a row.
MARK, _DIGEST = 16, 32

#: Rows read in one statement.
PAGE = 4_096


class _Bytes(sa.LargeBinary):
    """Bytes as the driver gives them: what is none of them in a damaged row is found by its digest."""

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> None:  # noqa: ARG002 - as in the base class
        return None


metadata = sa.MetaData()

heads = sa.Table(
    "quiltstream_heads",
    metadata,
    sa.Column("domain", sa.String, primary_key=True),
    sa.Column("store_id", sa.String, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("digest", _Bytes, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
)

log = sa.Table(
    "quiltstream_log",
    metadata,
    sa.Column("domain", sa.String, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("key", sa.String, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("blob", _Bytes),
    sa.UniqueConstraint("domain", "key", name="quiltstream_log_key"),
)

# Statements that every window asks are made once: to put one together takes as long as to have it answered.

HEAD = sa.select(heads).where(heads.c.domain == sa.bindparam("name"))
LOCKED = HEAD.with_for_update()
HEADS = sa.select(heads).where(heads.c.domain.in_(sa.bindparam("names", expanding=True)))

#: Blobs that are read with their rows: those of beliefs, which are few.
_SMALL = sa.case((sa.or_(log.c.key == "domain", log.c.key.like("decision/%"), log.c.key.like("belief/%")), log.c.blob))

ROWS = (
    sa.select(log.c.seq, log.c.key, log.c.body, _SMALL)
    .where(log.c.domain == sa.bindparam("name"), log.c.seq > sa.bindparam("after"), log.c.seq <= sa.bindparam("last"))
    .order_by(log.c.seq)
    .limit(PAGE)
)
BLOBS = sa.select(log.c.seq, log.c.blob).where(
    log.c.domain == sa.bindparam("name"), log.c.seq.in_(sa.bindparam("numbers", expanding=True))
)
APPEND = log.insert()
BEGIN = heads.insert()
MOVE = (
    heads.update()
    .where(heads.c.domain == sa.bindparam("name"))
    .values(seq=sa.bindparam("to"), digest=sa.bindparam("becomes"))
)


def pages(connection: Connection, name: str, last: int) -> Iterator[Any]:
    """The rows of a domain up to a number, with few of them in memory."""
    after = 0
    while rows := connection.execute(ROWS, {"name": name, "after": after, "last": last}).all():
        yield from rows
        after = rows[-1][0]


class Head(NamedTuple):
    """What was on record of a domain at a moment: so many rows, and one digest of all of them.

    Whoever keeps it elsewhere can ask later whether all of that is still on record as it was, whatever was written to
    the ledger since.
    """

    seq: int
    digest: str  # hexadecimal

    def __str__(self) -> str:
        return f"{self.seq}.{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of ``str``."""
        number, _, digest = text.strip().lower().partition(".")
        whole = number.isascii() and number.isdigit() and len(number) < 19 and len(digest) == 2 * _DIGEST  # noqa: PLR2004 - below 2**63
        if not whole or not set(digest) <= set("0123456789abcdef"):
            raise ArgumentError(f"{text!r} is no head; one is like 12. and {2 * _DIGEST} hexadecimal digits")
        return cls(int(number), digest)


def begin_of(store_id: str, domain: str) -> bytes:
    """The digest before a domain's first row: chains of two ledgers never agree."""
    return hashlib.blake2b(repr(("quiltstream", store_id, domain)).encode(), digest_size=_DIGEST).digest()


def link(before: bytes, seq: int, key: str, body: str) -> bytes:
    """The digest of a row and of all before it."""
    text = body.encode("utf-8", "surrogateescape")
    made = hashlib.blake2b(before, digest_size=_DIGEST)
    made.update(repr((seq, key, len(text))).encode("utf-8", "backslashreplace"))
    made.update(text)
    return made.digest()


def digest_of(blob: bytes) -> str:
    """The digest of a blob, as the row's body has it."""
    return hashlib.blake2b(blob, digest_size=MARK).hexdigest()


def text_of(body: dict[str, Any], blob: bytes | None) -> str:
    """The body of a row as it is written."""
    return canonical_json(body if blob is None else {**body, "blob": digest_of(blob)})


#: What a row may raise that is not what was written: of JSON and UTF-8, zlib, fractions, schedules and rosters.
UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, OSError, MemoryError, zlib.error)


class Chain:
    """What this process knows of one domain: a function of its rows up to ``seq``."""

    def __init__(self, name: str, store_id: str) -> None:
        self.name = name  # of the domain; empty for the ledger's own
        self.store_id = store_id  # random name of the ledger
        self.seq = 0  # how many rows it knows
        self.digest = begin_of(store_id, name)  # of all of them
        self._digests = bytearray()  # at each row

    @property
    def said(self) -> str:
        """What it is, in a message."""
        return f"domain {self.name!r}" if self.name else "its own log"

    @property
    def head(self) -> Head:
        """What is on record up to here, in short."""
        return Head(self.seq, self.digest.hex())

    def digest_at(self, seq: int) -> bytes:
        """The digest at a row."""
        return bytes(self._digests[(seq - 1) * _DIGEST : seq * _DIGEST])

    def holds(self, seq: int, digest: bytes) -> bool:
        """Whether the chain has a digest at a row."""
        return 0 < seq <= self.seq and self.digest_at(seq) == digest

    def take(self, seq: int, key: str, text: str, blob: bytes | None) -> None:
        """Enter the next row."""
        if seq != self.seq + 1:
            raise damaged(self.said, f"has no row {self.seq + 1}")
        self.seq, self.digest = seq, link(self.digest, seq, key, text)
        self._digests += self.digest
        try:
            body = json.loads(text)
            if blob is not None and digest_of(blob) != body["blob"]:
                raise damaged(self.said, f"has a row {self.seq} whose blob is not what was written")
            self.apply(key, body, blob)
        except UNREADABLE as error:
            why = f"has a row {seq} that is not what was written ({type(error).__name__})"
            raise damaged(self.said, why) from None

    def apply(self, key: str, body: dict[str, Any], blob: bytes | None) -> None:
        """Enter what a row says."""
        raise NotImplementedError

    def add(self, key: str, body: dict[str, Any], blob: bytes | None = None) -> dict[str, Any]:
        """Enter a new row; as it is to be written."""
        text = text_of(body, blob)
        self.take(self.seq + 1, key, text, blob)
        return {"domain": self.name, "seq": self.seq, "key": key, "body": text, "blob": blob}

    @property
    def row(self) -> dict[str, Any]:
        """The row of its head."""
        said = {"domain": self.name, "store_id": self.store_id, "seq": self.seq, "digest": self.digest}
        return {**said, "version": VERSION}


class Root(Chain):
    """The ledger's own log: whether rows are real ones or those of tests, and which domains there are."""

    def __init__(self, store_id: str) -> None:
        super().__init__("", store_id)
        self.mode: str | None = None
        self.domains: list[str] = []

    def apply(self, key: str, body: dict[str, Any], blob: bytes | None) -> None:  # noqa: ARG002 - it has none
        """Enter what a row says."""
        kind, _, name = key.partition("/")
        if kind == "mode":
            self.mode = str(body["noise"])
        elif kind == "domain":
            self.domains.append(name)
        elif kind != "ledger":
            raise damaged(self.said, f"has a row {self.seq} of an unknown kind")
