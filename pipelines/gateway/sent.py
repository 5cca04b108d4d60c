"""What the way back has sent: release ids with a digest of their row, in a small SQLite file.

A release that was sent is not sent again, and never with other values. The file is no ledger: lose it, and every
release that is still at the source is sent once more, with the values it has there.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ...schemas.files import PRIVATE, check_replaceable, open_private, reason
from ..failures import CommandError

_TABLES = """
create table if not exists sent (release_id text primary key, digest blob not null) without rowid;
create table if not exists newest (topic text primary key, stop text not null) without rowid;
create table if not exists files (name text primary key, size integer not null, changed integer not null) without rowid;
"""


@dataclass(frozen=True, slots=True)
class ReleasedRow:
    """One released row.

    Attributes:
        release_id: its name.
        topic: the rest of its topic behind the prefix.
        stop: end of its window, ISO 8601: texts sort as instants.
        payload: the row as it is at the source, JSON.
    """

    release_id: str
    topic: str
    stop: str
    payload: bytes

    @property
    def digest(self) -> bytes:
        """A digest of the row."""
        return hashlib.blake2b(self.payload, digest_size=16).digest()


class Known(Enum):
    """What is known of a row."""

    NEW = "new"
    SENT = "sent"
    CHANGED = "changed"


class Sent:
    """The file; it belongs to one process, and to the thread that opened it.

    Args:
        path: the file; it is made if needed.

    Raises:
        CommandError: it cannot be used, or another gateway uses it.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # what SQLite keeps beside it gets the same rights; one that is there is not opened, since closing it again
            # would drop the locks of another connection of this process
            if check_replaceable(path):
                path.chmod(PRIVATE)
            else:
                os.close(open_private(path, os.O_RDWR | os.O_EXCL))
            self._database = sqlite3.connect(path, isolation_level=None, timeout=2.0)
            self._database.execute("pragma locking_mode = exclusive")
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = full")
            self._database.executescript(_TABLES)
            self._database.execute("begin exclusive")
            self._database.execute("commit")
        except (OSError, sqlite3.Error) as error:
            raise CommandError(
                f"back.state {path}: cannot be used ({reason(error)}); another gateway may have it, or it is no "
                "file of a gateway"
            ) from None

    def known(self, rows: Sequence[ReleasedRow]) -> list[Known]:
        """What is known of each row; a second row of one id among them is judged by the first."""
        digests: dict[str, bytes] = {}
        for row in rows:
            stored = self._database.execute(
                "select digest from sent where release_id = ?", (row.release_id,)
            ).fetchone()
            if stored is not None:
                digests[row.release_id] = stored[0]
        found: list[Known] = []
        for row in rows:
            digest = row.digest
            before = digests.setdefault(row.release_id, b"")
            found.append(Known.NEW if not before else Known.SENT if before == digest else Known.CHANGED)
            digests[row.release_id] = before or digest
        return found

    def newest(self, rows: Iterable[ReleasedRow]) -> list[bool]:
        """Whether each row's window is the newest of its topic so far, in their order."""
        stops: dict[str, str] = {}
        found: list[bool] = []
        for row in rows:
            if row.topic not in stops:
                before = self._database.execute("select stop from newest where topic = ?", (row.topic,)).fetchone()
                stops[row.topic] = before[0] if before else ""
            found.append(row.stop >= stops[row.topic])
            stops[row.topic] = max(stops[row.topic], row.stop)
        return found

    def add(self, rows: Iterable[ReleasedRow]) -> None:
        """Note rows that the broker has; they are on the disk when this returns."""
        rows = list(rows)
        with self._database:
            self._database.execute("begin immediate")
            self._database.executemany(
                "insert or ignore into sent values (?, ?)", [(row.release_id, row.digest) for row in rows]
            )
            self._database.executemany(
                "insert into newest values (?, ?) on conflict do update set stop = max(stop, excluded.stop)",
                [(row.topic, row.stop) for row in rows],
            )

    def file(self, name: str) -> tuple[int, int] | None:
        """Size and time of change of a file that was sent whole."""
        found = self._database.execute("select size, changed from files where name = ?", (name,)).fetchone()
        return None if found is None else (found[0], found[1])

    def add_file(self, name: str, size: int, changed: int) -> None:
        """Note a file that was sent whole."""
        self._database.execute("insert or replace into files values (?, ?, ?)", (name, size, changed))

    def forget_files(self, there: Iterable[str]) -> None:
        """Forget files that are gone."""
        kept = set(there)
        gone = [(name,) for (name,) in self._database.execute("select name from files") if name not in kept]
        if gone:
            with self._database:
                self._database.execute("begin immediate")
                self._database.executemany("delete from files where name = ?", gone)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


__all__ = ["Known", "ReleasedRow", "Sent"]
