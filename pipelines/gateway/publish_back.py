"""The way back: released rows from a folder or topic, published at the broker at least once.

What was sent is remembered in a small SQLite file: release ids with a digest of their row, the newest window of each
topic, and whole files. The same row twice is harmless, since a subscriber knows it by its release id; three other
doubles are not, and are why the file is kept:

- a second row under one release id is a second draw of noise, as a ledger restored from a backup makes it: it would
  tell more than was charged, so it is dropped and counted;
- an older row after a newer one would replace it as the retained message of the topic, so it is sent without retain;
- a folder has no position, so after each restart every file of it would be sent once more.

The file is no ledger: without it every release that is still at the source is sent once more, with the values it has
there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ...schemas.files import PRIVATE, check_replaceable, is_folder, open_private, open_regular, reason
from ..errors import CommandError
from .connection import Connection, row_properties
from .delivery import DISK_RETRY_S, DeliveryError, kafka, kafka_log, reason_of, refused_options
from .metrics import Dropped, RejectFile, Stall, Tally

_TABLES = """
create table if not exists sent (release_id text primary key, digest blob not null) without rowid;
create table if not exists newest (topic text primary key, stop text not null) without rowid;
create table if not exists files (name text primary key, size integer not null, changed integer not null) without rowid;
"""


@dataclass(frozen=True, slots=True)
class ReleasedRow:
    """One released row."""

    release_id: str  # its name
    topic: str  # the rest of its topic behind the prefix
    # end of its window, ISO 8601 in UTC without its ``Z``: such texts sort as instants, with fractions or not
    stop: str
    payload: bytes  # the row as it is at the source, JSON

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
    """The file, made if needed; it belongs to one process, and to the thread that opened it.

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
            with ExitStack() as undo:
                self._database = undo.enter_context(closing(sqlite3.connect(path, isolation_level=None, timeout=2.0)))
                self._database.execute("pragma locking_mode = exclusive")
                self._database.execute("pragma journal_mode = wal")
                self._database.execute("pragma synchronous = full")
                self._database.executescript(_TABLES)
                self._database.execute("begin exclusive")
                self._database.execute("commit")
                undo.pop_all()
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


_LOG = logging.getLogger("quiltstream.gateway")

#: Rows that are under way at once, and messages of them that may be unconfirmed.
BATCH = 200
_UNCONFIRMED = 20

#: Characters for which a broker may end the connection ([MQTT 5] 1.5.4): control characters, surrogates and
#: non-characters; and U+FEFF, which some libraries refuse or take for a mark of the order of bytes.
_REFUSED = r"\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufeff" + "".join(
    f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17)
)
_UNSAYABLE = re.compile(f"[{_REFUSED}]")

#: Characters that become %XX in a level of a topic; what MQTT gives a meaning is among them.
_ESCAPED = re.compile(f"[%/+#{_REFUSED}]")

#: Bytes of a level at most; all that a topic may have is 65,535, and some brokers allow 4,096.
_LONGEST = 1_024

#: Seconds after which the same is said again.
_REPEAT_S = 60.0


def row_of(payload: bytes) -> ReleasedRow | None:
    """A row from its JSON, or ``None`` if it is none, or has a name that is too long for a topic.

    >>> row_of(b'{"release_id": "1", "query": "load", "key": "a/b", "window_stop": "2013-01-08T00:00:00Z"}').topic
    'load/a%2Fb'
    """
    try:
        row = json.loads(payload)
        parts = [row["release_id"], row["window_stop"], row["query"], row["key"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(part, str) and part for part in parts):
        return None
    # neither is escaped anywhere, and a broker ends the connection for what it does not take in a property
    if any(len(part) > _LONGEST or _UNSAYABLE.search(part) for part in parts[:2]):
        return None
    query, key = map(level_of, parts[2:])
    if any(len(level.encode()) > _LONGEST for level in (query, key)):
        return None
    return ReleasedRow(parts[0], f"{query}/{key}", parts[1].removesuffix("Z"), payload)


def level_of(name: str) -> str:
    """A name as one level of a topic, another one for each name.

    What MQTT gives a meaning, and what a broker may end a connection for, is written as in URLs.

    >>> level_of("street 5/+"), level_of("Zähler"), level_of("a" + chr(0xFEFF) + "b")
    ('street 5%2F%2B', 'Zähler', 'a%EF%BB%BFb')
    """
    return _ESCAPED.sub(lambda found: quote(found[0], safe="", errors="surrogatepass"), name)


class ReleaseSource(ABC):
    """A source of released rows; ``done`` says that the broker has all that it gave. One thread uses it."""

    @abstractmethod
    def take(self, seconds: float) -> list[bytes]:
        """Some rows, at most :data:`BATCH`; none if none came within so many seconds.

        Raises:
            DeliveryError: an operator has to change something first.
        """

    @abstractmethod
    def done(self) -> None:
        """All rows taken so far are at the broker."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; rows taken and not done come again."""


@dataclass
class FolderSource(ReleaseSource):
    """The files ``*.jsonl`` of a folder, in the order of their names; each is whole when it appears."""

    folder: Path  # where
    poll: float  # seconds from one look to the next
    sent: Sent  # remembers which files were sent

    _look_at: float = 0.0
    _files: list[tuple[Path, int, int]] = field(default_factory=list[tuple[Path, int, int]])
    _lines: list[bytes] = field(default_factory=list[bytes])
    _open: tuple[str, int, int] | None = None
    _warned: float = float("-inf")

    def take(self, seconds: float) -> list[bytes]:
        """The next lines of the file at hand."""
        while not self._lines:
            if not self._files and not self._looked(seconds):
                return []
            path, size, changed = self._files.pop()
            try:
                # the last line is dealt with first: taken from the end
                with open_regular(path) as file:
                    self._lines = [line for line in file.read().split(b"\n") if line][::-1]
            except FileNotFoundError:
                continue  # it was taken away between the look and now; the next look tells
            except OSError as error:
                self._warn(path, f"cannot be read ({reason(error)}); trying again, and going on with later files")
                return []
            self._open = (path.name, size, changed)
            if not self._lines:
                self.done()
        taken = self._lines[-BATCH:][::-1]
        del self._lines[-BATCH:]
        return taken

    def done(self) -> None:
        """Note the file if it was the last of its lines."""
        if self._open is not None and not self._lines:
            self.sent.add_file(*self._open)
            self._open = None

    def close(self) -> None:
        """Nothing is held."""

    def _looked(self, seconds: float) -> bool:
        wait = self._look_at - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, seconds))
            return False
        self._look_at = time.monotonic() + self.poll
        try:
            # not by a pattern: what may not be listed would match nothing
            names = (path for path in self.folder.iterdir() if path.suffix == ".jsonl")
            there = sorted(path for path in names if not path.name.startswith("."))
            looked = [(path, path.stat()) for path in there]
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not is_folder(self.folder):
                self._warn(self.folder, "is not there yet; waiting for the job that makes it")
            else:
                self._warn(error.filename, f"cannot be read ({reason(error)}); trying again")
            return False
        self.sent.forget_files(path.name for path in there)
        self._files = [
            (path, about.st_size, about.st_mtime_ns)
            for path, about in reversed(looked)
            if self.sent.file(path.name) != (about.st_size, about.st_mtime_ns)
        ]
        return bool(self._files)

    def _warn(self, place: Path | str, what: str) -> None:
        if time.monotonic() - self._warned > _REPEAT_S:
            self._warned = time.monotonic()
            _LOG.warning("back.from.folder: %s %s", place, what)


class KafkaSource(ReleaseSource):
    """The values of a Kafka topic; positions are committed when their rows are at the broker.

    A ``member`` of the group that was killed and comes back for the same topic takes its partitions over at once.
    """

    def __init__(
        self, servers: str, topic: str, group: str, member: str, options: dict[str, Any], *, library: Any = None
    ) -> None:
        self._library = kafka() if library is None else library
        self._topic = topic
        self._warned = float("-inf")
        settings = {
            "auto.offset.reset": "earliest",
            # a member that comes back keeps its partitions without a look at what it subscribes to: one of another
            # topic is another member
            "group.instance.id": f"{member}:{topic}",
            **options,
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "logger": kafka_log(),
            "error_cb": self._on_error,
        }
        self._wrong: str | None = None
        self._taken: list[Any] = []
        try:
            self._consumer = self._library.Consumer(settings)
        except (self._library.KafkaException, ValueError, TypeError) as error:
            raise refused_options("back.from.kafka.options", error) from None
        self._consumer.subscribe([topic])

    def take(self, seconds: float) -> list[bytes]:
        """The next values; records without a value delete an older one and are passed over."""
        rows: list[bytes] = []
        for message in self._consumer.consume(BATCH, seconds):
            error = message.error()
            if error is not None:
                self._on_error(error)
                continue
            self._taken.append(message)
            if message.value() is not None:
                rows.append(message.value())
        if self._wrong is not None:
            raise DeliveryError(self._wrong)
        if self._taken and not rows:
            self.done()
        return rows

    def done(self) -> None:
        """Commit the positions behind what was taken."""
        if not self._taken:
            return
        behind: dict[int, int] = {}
        for message in self._taken:
            behind[message.partition()] = max(behind.get(message.partition(), -1), message.offset() + 1)
        self._taken = []
        offsets = [self._library.TopicPartition(self._topic, part, offset) for part, offset in behind.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._library.KafkaException as error:
            # the partitions may be somebody else's by now: the rows come again there, and are known
            _LOG.warning("Kafka: a position could not be committed (%s)", reason_of(error))

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _on_error(self, error: Any) -> None:
        names = self._library.KafkaError
        code = error.code()
        if code in {names._AUTHENTICATION, names.SASL_AUTHENTICATION_FAILED, names._SSL}:  # noqa: SLF001 - its public names
            self._wrong = "Kafka: the credentials or the certificate are not accepted; look at back.from.kafka.options"
        elif code in {names.TOPIC_AUTHORIZATION_FAILED, names.GROUP_AUTHORIZATION_FAILED}:
            self._wrong = (
                f"Kafka: not authorised to read the topic {self._topic!r} in this group; give this user the right"
            )
        elif error.fatal():
            self._wrong = (
                f"Kafka: reading gave up ({error.str()}); another gateway of this group may have the same client id"
            )
        elif time.monotonic() - self._warned > _REPEAT_S:
            self._warned = time.monotonic()
            _LOG.warning("Kafka: %s; trying again", error.str())


_WAIT_S = 0.2
_BUSY_S = 0.05

_Made = TypeVar("_Made")


@dataclass
class Back:
    """Publishes rows of a source, some at a time: the next ones when the broker has these."""

    source: ReleaseSource  # where rows come from
    sent: Sent  # what was sent before
    _: KW_ONLY
    prefix: str  # what topics begin with
    retain: bool  # whether the broker is to keep the newest row of each topic
    tally: Tally  # where to count
    rejects: RejectFile  # the file of messages that hold no released row

    _under_way: dict[int, tuple[ReleasedRow, bool]] = field(default_factory=dict[int, tuple[ReleasedRow, bool]])
    _stall: Stall = field(default_factory=Stall)

    def run(self, outlet: Connection, stop: Callable[[], bool], patience: float) -> None:
        """Publish until a stop; what is under way may take so many seconds then.

        Raises:
            BrokerError: the broker refuses for good.
            DeliveryError: the source does.
        """
        try:
            while not stop():
                self._turn(outlet, 0)
                over = _until(stop, patience)
                rows = self._new(self._on_disk(lambda: self.source.take(_WAIT_S), outlet, over) or [])
                if self._published(outlet, rows, over) and self._on_disk(partial(self._noted, rows), outlet, over):
                    self._on_disk(self.source.done, outlet, over)
        finally:
            outlet.close()
            self.source.close()

    def confirmed(self, packet: int) -> None:
        """The broker has a message, by its packet id."""
        self._under_way.pop(packet, None)
        self._stall.moved()

    def _turn(self, outlet: Connection, wait_s: float) -> None:
        outlet.turn(wait_s)
        self.tally.back_refused, self.tally.back_reconnects = int(outlet.refused), outlet.reconnects

    def _noted(self, rows: Sequence[tuple[ReleasedRow, bool]]) -> bool:
        self.sent.add(row for row, _ in rows)
        self.tally.sent += len(rows)
        return True

    def _on_disk(self, step: Callable[[], _Made], outlet: Connection, over: Callable[[], bool]) -> _Made | None:
        """Take a step that notes something, again until the disk takes it; ``None`` where no time is left.

        Rows whose note is lost by a stop are published again, with the same release ids.
        """
        warned: float | None = None
        while True:
            try:
                made = step()
            except sqlite3.OperationalError as error:
                if warned is None or time.monotonic() - warned > _REPEAT_S:
                    warned = time.monotonic()
                    _LOG.error("back.state: the disk takes no note of what was sent (%s); trying again", error)
            else:
                if warned is not None:
                    _LOG.warning("back.state: the disk takes notes again")
                return made
            again = time.monotonic() + DISK_RETRY_S
            while time.monotonic() < again:
                if over():
                    return None
                self._turn(outlet, _BUSY_S)

    def _new(self, taken: list[bytes]) -> list[tuple[ReleasedRow, bool]]:
        """The rows that are to be sent, each with whether it is the newest of its topic."""
        rows: list[ReleasedRow] = []
        for payload in taken:
            row = row_of(payload)
            if row is None:
                self._drop(Dropped.NO_RELEASE, payload)
            else:
                rows.append(row)
        new: list[ReleasedRow] = []
        for row, known in zip(rows, self.sent.known(rows), strict=True):
            if known is Known.NEW:
                new.append(row)
            elif known is Known.SENT:
                self.tally.known += 1
            else:
                self._drop(Dropped.CHANGED, row.payload)
        return list(zip(new, self.sent.newest(new), strict=True))

    def _drop(self, reason: Dropped, payload: bytes) -> None:
        self.tally.dropped[reason] += 1
        self.rejects.add(reason, b"", len(payload))

    def _published(self, outlet: Connection, rows: list[tuple[ReleasedRow, bool]], over: Callable[[], bool]) -> bool:
        """Whether the broker has all rows; if not, there was no time left."""
        waiting = rows[::-1]
        epoch = outlet.epoch
        self._stall.moved()
        while waiting or self._under_way:
            if over():
                return False
            if outlet.epoch != epoch:
                # packet ids of the old connection mean nothing now: what it did not confirm is published again
                waiting += list(self._under_way.values())[::-1]
                self._under_way.clear()
                epoch = outlet.epoch
            while outlet.connected and waiting and len(self._under_way) < min(_UNCONFIRMED, outlet.quota):
                row, newest = waiting.pop()
                packet = outlet.publish(
                    f"{self.prefix}/{row.topic}",
                    row.payload,
                    retain=self.retain and newest,
                    properties=row_properties(row.release_id),
                )
                self._under_way[packet] = (row, newest)
            self._turn(outlet, _BUSY_S)
            if not outlet.connected:
                self._stall.moved()  # the connection says itself what it waits for
            elif (seconds := self._stall.to_report()) is not None:
                _LOG.warning(
                    "the broker has confirmed no release for %.0f s; %d are under way, and no further ones are sent",
                    seconds,
                    len(self._under_way),
                )
        return True


def _until(stop: Callable[[], bool], patience: float) -> Callable[[], bool]:
    """A check whether so many seconds have passed since it first found a stop."""
    stopped: list[float] = []

    def over() -> bool:
        if not stop():
            return False
        if not stopped:
            stopped.append(time.monotonic())
        return time.monotonic() - stopped[0] > patience

    return over
