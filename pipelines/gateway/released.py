"""Where released rows come from: a folder of JSON Lines that a live job writes, or a Kafka topic."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...schemas.files import open_regular
from .hops import HopError, refused_options
from .kafka_hop import reason_of
from .libraries import kafka, kafka_log
from .sent import ReleasedRow, Sent

_LOG = logging.getLogger("quiltstream.gateway")

#: Rows that are under way at once.
BATCH = 200

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

#: What stands before the digest of a longer name. No escape of a character begins like that: these are %XX, of digits
#: and letters up to F.
_DIGEST = "%sha256-"

#: Seconds after which the same is said again.
_REPEAT_S = 60.0


def row_of(payload: bytes) -> ReleasedRow | None:
    """A row from its JSON, or ``None`` if it is none.

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
    return ReleasedRow(parts[0], f"{level_of(parts[2])}/{level_of(parts[3])}", parts[1], payload)


def level_of(name: str) -> str:
    """A name as one level of a topic, another one for each name.

    What MQTT gives a meaning, and what a broker may end a connection for, is written as in URLs; a name that is too
    long then is its SHA-256.

    >>> level_of("street 5/+"), level_of("Zähler"), level_of("a" + chr(0xFEFF) + "b")
    ('street 5%2F%2B', 'Zähler', 'a%EF%BB%BFb')
    >>> level_of("x" * 5_000)[:20]
    '%sha256-c59d3c0480cc'
    """
    level = _ESCAPED.sub(lambda found: quote(found[0], safe="", errors="surrogatepass"), name)
    if len(level.encode()) <= _LONGEST:
        return level
    return _DIGEST + hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()


class ReleaseSource(ABC):
    """Gives rows, and is told when all that it gave are at the broker. It belongs to one thread."""

    @abstractmethod
    def take(self, seconds: float) -> list[bytes]:
        """Some rows, at most :data:`BATCH`; none if none came within so many seconds.

        Raises:
            HopError: an operator has to change something first.
        """

    @abstractmethod
    def done(self) -> None:
        """All rows taken so far are at the broker."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; rows taken and not done come again."""


class FolderSource(ReleaseSource):
    """The files ``*.jsonl`` of a folder, in the order of their names; each is whole when it appears.

    Args:
        folder: where.
        poll: seconds from one look to the next.
        sent: remembers which files were sent.
    """

    def __init__(self, folder: Path, poll: float, sent: Sent) -> None:
        self._folder = folder
        self._poll = poll
        self._sent = sent
        self._look_at = 0.0
        self._files: list[tuple[Path, int, int]] = []
        self._lines: list[bytes] = []
        self._open: tuple[str, int, int] | None = None
        self._told = float("-inf")

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
            except OSError:
                continue  # it was taken away or replaced between the look and now; the next look tells
            self._open = (path.name, size, changed)
            if not self._lines:
                self.done()
        taken = self._lines[-BATCH:][::-1]
        del self._lines[-BATCH:]
        return taken

    def done(self) -> None:
        """Note the file if it was the last of its lines."""
        if self._open is not None and not self._lines:
            self._sent.add_file(*self._open)
            self._open = None

    def close(self) -> None:
        """Nothing is held."""

    def _looked(self, seconds: float) -> bool:
        wait = self._look_at - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, seconds))
            return False
        self._look_at = time.monotonic() + self._poll
        try:
            there = sorted(path for path in self._folder.glob("*.jsonl") if not path.name.startswith("."))
            if not self._folder.is_dir() and time.monotonic() - self._told > _REPEAT_S:
                self._told = time.monotonic()
                _LOG.warning("back.from.folder %s: is not there yet; waiting for the job that makes it", self._folder)
            for path in there:
                about = path.stat()
                if self._sent.file(path.name) != (about.st_size, about.st_mtime_ns):
                    self._files.append((path, about.st_size, about.st_mtime_ns))
        except OSError as error:
            _LOG.warning("back.from.folder %s: cannot be read (%s)", self._folder, type(error).__name__)
            return False
        self._sent.forget_files(path.name for path in there)
        self._files.reverse()
        return bool(self._files)


class KafkaSource(ReleaseSource):
    """The values of a Kafka topic; positions are committed when their rows are at the broker.

    Args:
        servers: the brokers.
        topic: where from.
        group: who we are.
        member: which one of the group: one that was killed and comes back for the same topic takes its partitions over
            at once.
        options: librdkafka's own, secrets filled in.
        library: what makes consumers; the tests' own.
    """

    def __init__(
        self, servers: str, topic: str, group: str, member: str, options: dict[str, Any], *, library: Any = None
    ) -> None:
        self._library = kafka() if library is None else library
        self._topic = topic
        self._told = float("-inf")
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
            raise HopError(self._wrong)
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
        elif time.monotonic() - self._told > _REPEAT_S:
            self._told = time.monotonic()
            _LOG.warning("Kafka: %s; trying again", error.str())


__all__ = ["BATCH", "FolderSource", "KafkaSource", "ReleaseSource", "level_of", "row_of"]
