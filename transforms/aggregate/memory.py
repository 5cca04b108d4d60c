"""What is remembered of a ledger outside of it: which one it is, and how far it was when rows left the job.

A ledger that is lost takes every charge with it, and an older copy of one has the same name and lacks what was charged
last. So one file elsewhere holds the ledger's id, the head of each domain, and the newest release. A worker writes it
once its transaction is committed and before it hands on a row, whole and only forward: rows that left are in no head
later than the one that is remembered. A ledger that was moved is the one that is remembered. One that was emptied, is
older, or was replaced is not, and the next run stops before it publishes anything.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import QuiltstreamError
from ...schemas.files import read_regular, reason, write_whole
from ...schemas.releases import release_ids
from ...schemas.slots import SlotGrid, format_instant
from ...store.address import replaced
from ...store.errors import StoreAway
from ...store.specs import Record, Registration
from ..formats.paths import everywhere, file_systems, is_elsewhere, is_local

if TYPE_CHECKING:
    from ...store.store import Store

_MOST_BYTES = 1 << 20


class MemoryUnreadableError(QuiltstreamError):
    """What is remembered of the ledger cannot be read, so that a lost ledger could not be told."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is remembered of a ledger."""

    store_id: str  # its random name; empty where it was given up and no other one is known yet
    ledger: str  # its address, without secrets
    heads: dict[str, str] = field(default_factory=dict[str, str])  # of each domain whose rows left, in their words
    newest: str = ""  # the newest release that left, in words
    owed: tuple[str, ...] = ()  # domains of a ledger that was given up, whose accounts are not marked for it yet

    @property
    def text(self) -> str:
        """The newest release in words."""
        return f"{self.newest or 'none'}, of ledger {self.store_id or 'unknown'}"


@dataclass(frozen=True, slots=True)
class Memory:
    """The file that remembers a ledger; a plain value that travels to any worker.

    Attributes:
        place: its path, or its URL on a file system that Beam knows.
    """

    place: str

    def read(self) -> Remembered | None:
        """What it remembers; ``None`` if it is not there.

        Raises:
            MemoryUnreadableError: it is there, and cannot be read.
        """
        try:
            if is_local(self.place):
                text = read_regular(Path(everywhere(self.place)), _MOST_BYTES).decode()
            elif is_elsewhere(self.place, "memory"):
                with file_systems().open(self.place) as file:
                    text = file.read().decode()
            else:
                return None
            plain: dict[str, Any] = json.loads(text)
            owed = tuple(plain.pop("owed"))
            return Remembered(**plain, owed=owed)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            mend = "let this user read and write it" if isinstance(error, PermissionError) else "put it back"
            raise MemoryUnreadableError(
                f"ledger: {self.place} remembers which one it is, and cannot be read ({reason(error)}); {mend}, or say "
                "--history-lost, which marks the account for ever: it is written anew then"
            ) from None

    def note(self, store: Store, domain: str, newest: str = "") -> None:
        """Remember what this process knows of a domain, before a row of it leaves; only forward.

        Raises:
            StoreAway: it cannot be written.
            StoreReplaced: the ledger is another one than is remembered, or an older copy.
        """
        from ...store.log import Head  # noqa: PLC0415 - with SQLAlchemy, which the caller has

        head = store.known_head(domain)
        with self._locked():
            now = self.read() or Remembered("", str(store.address))
            if now.store_id not in ("", store.store_id):
                raise replaced(store.address, f"another ledger is there, as {self.place} remembers", now.store_id)
            known = Head.parse(now.heads[domain]) if domain in now.heads else None
            if known is not None and not store.holds(domain, known):
                what = f"an older copy or a restored backup is there: it lacks rows that left the job, {now.newest}"
                raise replaced(store.address, f"{what}, as {self.place} remembers", now.store_id)
            if known is None or known.seq < head.seq:
                heads = now.heads | {domain: str(head)}
                owed = tuple(one for one in now.owed if one != domain)
                self._write(Remembered(store.store_id, str(store.address), heads, newest or now.newest, owed))

    def begin(self, store: Store, domain: str, *, marked: bool) -> None:
        """Remember which ledger it is, before anything is published; ``marked``: for a history that was given up.

        Raises:
            StoreAway: it cannot be written.
        """
        with self._locked():
            now = self.read() or Remembered("", "")
            owed = tuple(one for one in now.owed if one != domain or not marked)
            heads = now.heads if now.store_id == store.store_id else {}
            if not owed or now.store_id == store.store_id:
                self._write(replace(now, store_id=store.store_id, ledger=str(store.address), heads=heads, owed=owed))

    def give_up(self, domain: str, ledger: str) -> None:
        """Let go, by an operator's word, of what is remembered; until accounts are marked for it, the file says so.

        What is to be marked may be registered only when the data are read, and the run may end before that.
        """
        with self._locked():
            known = Remembered("", ledger)
            with suppress(MemoryUnreadableError):  # by that word, it is written anew
                known = self.read() or known
            owed = tuple(sorted({domain, *known.heads, *known.owed}))
            self._write(Remembered("", ledger, {}, known.newest, owed))

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the file against other workers of this machine."""
        try:
            if not is_local(self.place):
                yield
                return
            folder = Path(everywhere(self.place)).parent
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile has the handle, too
        finally:
            os.close(handle)

    def _write(self, remembered: Remembered) -> None:
        text = json.dumps(asdict(remembered), indent=1) + "\n"
        try:
            if is_local(self.place):
                write_whole(Path(everywhere(self.place)), text, private=True)
                return
            with file_systems().create(self.place, mime_type="application/json") as file:
                file.write(text.encode())
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> StoreAway:
        return StoreAway(
            f"ledger: {self.place}, by which the next run notices a ledger that was lost, cannot be written "
            f"({reason(error)}); the rows stay on record and leave when it can: make room, or grant this user the "
            "right; with workers on other machines, set memory to a path that all of them share"
        )


def newest_of(registration: Registration, records: Sequence[Record]) -> str:
    """The newest of the releases that some records are, in words: a row of its latest window; empty for none."""
    last = max((one for one in records if one.block is not None), key=lambda one: one.window, default=None)
    if last is None or last.block is None:
        return ""
    grid, names = SlotGrid(**registration.domain.grid), (registration.domain.name, registration.query.name)
    times = grid.time_of(last.window.start), grid.time_of(last.window.stop)
    row = release_ids(*names, registration.digest, times, last.block.keys[:1])
    return f"{''.join(f'{one}, ' for one in row)}window until {format_instant(times[1])} of query {names[1]!r}"
