"""Delivery targets: Avro segments in a folder, or a Kafka topic.

A message counts as delivered when no crash of any process loses it: when its block is synced, or when all in-sync
replicas acknowledged it (acks=all).

A segment is written under a hidden name. Its last bytes may be torn when the process or the machine dies; up to the
last whole block they are sound, and everything that was synced is in whole blocks. :func:`recover` cuts off the rest
and gives the file its name.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fastavro
from fastavro.write import Writer

from ...schemas.errors import QuiltstreamError
from ...schemas.files import open_private, open_regular, reason, sync_folder
from ...schemas.settings.gateway import Level
from .connection import optional_library

#: What a message costs in memory beside its text and body, about.
_OVERHEAD = 512


class Message(NamedTuple):
    """One message of the broker; a tuple, because there are thousands a second."""

    topic: str  # where it was published
    payload: bytes  # the body
    received_us: int  # when the gateway had it, microseconds since 1970
    dup: bool = False  # whether the broker says that it may have sent it before
    retain: bool = False  # whether the broker had kept it for new subscribers
    content_type: str = ""  # what the publisher says the body is, or empty

    @property
    def size(self) -> int:
        """Bytes that it holds in memory, about."""
        return len(self.payload) + 2 * len(self.topic) + _OVERHEAD


class DeliveryError(QuiltstreamError):
    """The delivery target cannot be used until an operator changes something; the message is for them."""


class DeliveryTarget(ABC):
    """A place that messages go to. All calls come from one thread; none waits, but :meth:`close`.

    A message that was offered is in exactly one of three states: in delivery, however long that takes; delivered, so
    that no crash of any process loses it; or refused for ever.
    """

    @abstractmethod
    def offer(self, number: int, message: Message) -> bool:
        """Hand a message over under a number, which is never used twice.

        Returns:
            Whether it was taken; if not, offer it again later.
        """

    @abstractmethod
    def had(self) -> list[int]:
        """The messages that the target has since the last call.

        Raises:
            DeliveryError: an operator has to change something first.
        """

    @abstractmethod
    def refused(self) -> list[int]:
        """The messages that the target refused for ever since the last call."""

    @abstractmethod
    def close(self, seconds: float) -> None:
        """Finish what is under way if that is possible in so many seconds, and let go of everything.

        :meth:`had` and :meth:`refused` may be called afterwards, once.
        """


#: One message a record, its fields in their order; plain columns, so that any reader of Avro takes them.
SEGMENT_AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Message",
    "namespace": "quiltstream.v1",
    "fields": [
        {"name": "topic", "type": "string"},
        {"name": "payload", "type": "bytes"},
        {"name": "received", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "dup", "type": "boolean"},
        {"name": "retain", "type": "boolean"},
        {"name": "content_type", "type": "string"},
    ],
}

_PARSED = fastavro.parse_schema(SEGMENT_AVRO)
_COLUMNS = [column["name"] for column in SEGMENT_AVRO["fields"]]
_OPEN = re.compile(r"\.(?P<name>[\w.-]+\.avro)\.open")


def segment_name(began_us: int) -> str:
    """A name for a new segment; names sort by the time at which segments were begun.

    >>> segment_name(1_700_000_000_000_000)[:24]
    '20231114T221320.000000Z-'
    """
    when = datetime.fromtimestamp(began_us // 1_000_000, UTC).strftime("%Y%m%dT%H%M%S")
    return f"{when}.{began_us % 1_000_000:06}Z-{uuid.uuid4().hex[:8]}.avro"


class Segment:
    """A segment that is being written.

    Raises:
        OSError: it cannot be begun.
    """

    def __init__(self, folder: Path, began_us: int) -> None:
        name = segment_name(began_us)
        self.path = folder / f".{name}.open"
        # payloads are raw: for the owner of the process
        self._file = os.fdopen(open_private(self.path, os.O_WRONLY | os.O_EXCL), "wb")
        try:
            self._writer = Writer(self._file, _PARSED, codec="null")
            self._file.flush()
            self.size = self._sync()
            # the name itself must outlive a power cut, or the synced blocks would be nowhere
            sync_folder(folder)
        except BaseException:
            self.abandon()
            # a full disk would be tried again and again, each time under another name
            with suppress(OSError):
                self.path.unlink()
            raise

    def add(self, messages: Iterable[Message]) -> None:
        """Write messages and wait until they are on the disk.

        Raises:
            OSError: they may be there or not, and the segment is not to be added to; seal it with :func:`recover`.
        """
        for message in messages:
            self._writer.write(dict(zip(_COLUMNS, message, strict=True)))
        self._writer.flush()
        self.size = self._sync()

    def seal(self) -> Path:
        """Close the file and give it its name.

        Raises:
            OSError: it has kept its hidden name, and :func:`recover` can seal it later.
        """
        self._file.close()
        return _named(self.path)

    def abandon(self) -> None:
        """Let go of the file as it is; what a failed disk does not take is no reason to stop."""
        with suppress(OSError):
            self._file.close()

    def _sync(self) -> int:
        os.fsync(self._file.fileno())
        return self._file.tell()


def left_over(folder: Path) -> list[Path]:
    """Segments of a folder that were never sealed, in the order of their names."""
    return sorted(path for path in folder.iterdir() if _OPEN.fullmatch(path.name))


def recover(path: Path, upto: int | None = None) -> Path | None:
    """Seal a segment that was left over: cut off what is torn, or is behind ``upto`` bytes, and give it its name.

    Returns:
        The file, or ``None`` if it held no message and was removed.

    Raises:
        OSError: the file cannot be read, cut or renamed.
    """
    messages, sound = whole_blocks(path, upto)
    if not messages:
        path.unlink()
        sync_folder(path.parent)
        return None
    with path.open("rb+") as file:
        file.truncate(sound)
        os.fsync(file.fileno())
    return _named(path)


def whole_blocks(path: Path, upto: int | None = None) -> tuple[int, int]:
    """How many messages are in whole blocks at the start of a segment, and the bytes up to there."""
    messages, sound = 0, 0
    size = path.stat().st_size if upto is None else upto
    with open_regular(path) as file:
        try:
            blocks = fastavro.block_reader(file)
            for block in blocks:
                end = file.tell()
                if end > size:
                    break
                messages, sound = messages + block.num_records, end
        except (ValueError, EOFError, StopIteration, OverflowError, MemoryError, IndexError, KeyError, TypeError):
            # a torn tail shows as any of these
            pass
    return messages, sound


def _named(path: Path) -> Path:
    match = _OPEN.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not the hidden name of a segment")
    named = path.with_name(match["name"])
    path.rename(named)
    sync_folder(path.parent)
    return named


_LOG = logging.getLogger("quiltstream.gateway")

#: Seconds that a first message waits for others, so that one sync serves many.
_GATHER_S = 0.003

#: Seconds to the next try after the disk failed.
DISK_RETRY_S = 1.0


class FolderDelivery(DeliveryTarget):
    """Writes segments, in a thread of its own: the disk may take its time.

    Two gateways cannot share a folder. A segment is sealed at ``size`` bytes, or after ``age`` seconds.

    Raises:
        DeliveryError: the folder cannot be used.
    """

    def __init__(self, folder: Path, *, size: int, age: float, begin: Callable[[Path, int], Segment] = Segment) -> None:
        self._folder = folder
        self._size = size
        self._age = age
        self._begin = begin
        self._lock = _locked(folder)
        self._segment: Segment | None = None
        self._began = 0.0
        self._torn: list[tuple[Path, int | None]] = []
        self._waiting: list[tuple[int, Message]] = []
        self._had: list[int] = []
        self._guard = threading.Condition()
        self._stop = False
        self._give_up = float("inf")
        self._broken: Exception | None = None
        self.sealed = 0
        self.failures = 0
        try:
            for path in left_over(folder):
                self._recover(path, None)
        except OSError as error:
            self._lock.close()
            raise DeliveryError(
                f"forward.to.folder {folder}: what a former run left cannot be sealed ({reason(error)})"
            ) from None
        self._thread = threading.Thread(target=self._work, name="quiltstream-segments", daemon=True)
        self._thread.start()

    def offer(self, number: int, message: Message) -> bool:
        """Take a message."""
        with self._guard:
            self._waiting.append((number, message))
            if len(self._waiting) == 1:
                self._guard.notify()
        return True

    def had(self) -> list[int]:
        """The messages that are on the disk since the last call.

        Raises:
            Exception: an error that is none of the disk ended the thread.
        """
        if self._broken is not None:
            raise self._broken
        with self._guard:
            had, self._had = self._had, []
        return had

    def refused(self) -> list[int]:
        """None: a folder takes everything."""
        return []

    def close(self, seconds: float) -> None:
        """Write what waits, seal the segment and end the thread."""
        with self._guard:
            self._stop = True
            self._give_up = time.monotonic() + seconds
            self._guard.notify()
        self._thread.join(seconds + 1)
        if not self._thread.is_alive():
            self._lock.close()

    def _work(self) -> None:
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - raised where messages are asked after
            _LOG.exception("folder %s: no message is written any more", self._folder)
            self._broken = error

    def _write(self) -> None:
        batch: list[tuple[int, Message]] = []
        most = 0  # how many are tried at once after the disk did not take more; 0 for all
        while True:
            batch = batch or self._next()
            stop = self._stop
            part = batch[: most or None]
            done = not part or self._written([message for _, message in part])
            if done:
                with self._guard:
                    self._had += [number for number, _ in part]
                del batch[: len(part)]
                most = 2 * most if batch else 0
                if part and not batch and self.failures:
                    _LOG.warning("folder %s: the disk takes messages again", self._folder)
                    self.failures = 0
                self._roll(end=stop and not (batch or self._waiting))
            else:
                most = max(1, len(part) // 2)
            if stop and (not (batch or self._waiting) or time.monotonic() > self._give_up):
                return
            if not done:
                with self._guard:
                    self._guard.wait(min(DISK_RETRY_S, max(0.0, self._give_up - time.monotonic())))

    def _next(self) -> list[tuple[int, Message]]:
        """The messages to write next; none where there is something else to do."""
        with self._guard:
            if not self._waiting and not self._stop:
                self._guard.wait(self._patience())
            gather = self._waiting and not self._stop
        if gather:
            time.sleep(_GATHER_S)
        with self._guard:
            batch, self._waiting = self._waiting, []
        return batch

    def _patience(self) -> float | None:
        """How long to wait for messages: until the segment is old enough, or something can be tried again."""
        if self._torn:
            return DISK_RETRY_S
        return None if self._segment is None else max(0.0, self._began + self._age - time.monotonic())

    def _written(self, messages: list[Message]) -> bool:
        """Whether messages are on the disk; if not, the segment they were for is given up."""
        try:
            self._mend()
            if self._segment is None:
                self._segment = self._begin(self._folder, time.time_ns() // 1_000)
                self._began = time.monotonic()
            sound = self._segment.size
        except OSError as error:
            self._failed(error)
            return False
        try:
            self._segment.add(messages)
        except OSError as error:
            self._failed(error)
            # what a failed sync leaves in a file is anyone's guess: it is cut where it was sound, and another is begun
            self._segment.abandon()
            self._torn.append((self._segment.path, sound))
            self._segment = None
            # now, since it would keep a full disk full until the next try
            with suppress(OSError):
                self._mend()
            return False
        return True

    def _roll(self, *, end: bool) -> None:
        """Seal the segment if it is big or old enough, or at the end."""
        segment = self._segment
        if segment is None:
            with suppress(OSError):
                self._mend()
            return
        if end or segment.size >= self._size or time.monotonic() >= self._began + self._age:
            self._segment = None
            try:
                segment.seal()
                self.sealed += 1
            except OSError as error:
                self._failed(error)
                self._torn.append((segment.path, None))

    def _mend(self) -> None:
        """Seal the segments that were given up."""
        while self._torn:
            path, sound = self._torn[-1]
            if path.exists():
                self._recover(path, sound)
            self._torn.pop()

    def _recover(self, path: Path, sound: int | None) -> None:
        self.sealed += recover(path, sound) is not None

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        if self.failures == 1:
            _LOG.error(
                "folder %s: the disk does not take messages (%s); they wait here and at the broker, and nothing is "
                "acknowledged until it does",
                self._folder,
                reason(error),
            )


def _locked(folder: Path) -> BinaryIO:
    """Hold the folder for this process alone, until the file is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(open_private(folder / ".gateway.lock", os.O_WRONLY | os.O_APPEND), "ab")
    except OSError as error:
        raise DeliveryError(
            f"forward.to.folder {folder}: cannot be written ({reason(error)}); give another, or its rights"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise DeliveryError(
            f"forward.to.folder {folder}: another gateway writes to it; each has a folder of its own"
        ) from None
    return file


def kafka() -> Any:
    """The Kafka client.

    Raises:
        CommandError: it is not installed.
    """
    return optional_library("confluent_kafka", "kafka")


def kafka_log() -> logging.Logger:
    """Where librdkafka's own log goes: nowhere, unless ``--debug`` shows the logs of libraries."""
    log = logging.getLogger("quiltstream.gateway.librdkafka")
    if not logging.getLogger().isEnabledFor(logging.INFO):
        log.setLevel(logging.CRITICAL + 1)
    return log


#: Seconds to the next try with a message that the broker did not take for now.
_RETRY_S = 1.0

#: Seconds that a topic may be missing after the broker answered: a broker that makes topics by itself needs some.
_MISSING_S = 10.0

#: Seconds from one warning to the next that a broker is away.
_REPEAT_S = 60.0


class KafkaDelivery(DeliveryTarget):
    """Hands messages to an idempotent producer.

    Partitions are chosen by ``key``: the MQTT topic, or one level of it. The options have their secrets filled in.
    """

    def __init__(
        self, servers: str, topic: str, key: str | Level, options: dict[str, Any], *, library: Any = None
    ) -> None:
        self._library = kafka() if library is None else library
        self._topic = topic
        self._servers = servers
        self._level = key.level if isinstance(key, Level) else None
        self._options = {
            "linger.ms": 5,
            "compression.type": "lz4",
            # limits.message and the broker judge how large a message may be; librdkafka's own limit is below both
            "message.max.bytes": 1_000_000_000,
            **options,
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            # a message never times out: it waits here, and the broker of the meters behind it
            "message.timeout.ms": 0,
            "error_cb": self._on_error,
            "logger": kafka_log(),
        }
        self._pending: dict[int, Message] = {}
        # messages that Kafka has not taken for something in their batch, milliseconds for those of which it was the
        # time stamp, and the one that is sent alone to find out
        self._doubtful: set[int] = set()
        self._stamps: dict[int, int] = {}
        self._alone: int | None = None
        self._clock_warned = float("-inf")
        self._again: deque[int] = deque()
        self._again_at = 0.0
        self._had: list[int] = []
        self._refused: list[int] = []
        self._wrong: str | None = None
        self._broken = False
        self._delivered = False
        self._away: float | None = None
        self._closed = threading.Event()
        self._producer = self._made()
        threading.Thread(target=self._look, args=(self._producer,), name="quiltstream-kafka", daemon=True).start()

    def offer(self, number: int, message: Message) -> bool:
        """Give a message to the producer, if there is room in its queue."""
        if self._again or self._alone is not None:
            return False
        # before it is given away: what is refused at once is reported at once
        self._pending[number] = message
        if not self._produce(number, message):
            del self._pending[number]
            return False
        return True

    def had(self) -> list[int]:
        """The messages that were reported as delivered since the last call."""
        self._served(self._producer.poll, 0)
        if self._wrong is not None:
            raise DeliveryError(self._wrong)
        if self._broken:
            # whatever it gave up for may still be so
            if time.monotonic() >= self._again_at:
                self._renew()
        elif self._again and time.monotonic() >= self._again_at:
            self._send_again()
        had, self._had = self._had, []
        return had

    def refused(self) -> list[int]:
        """The messages that Kafka does not take at all."""
        refused, self._refused = self._refused, []
        return refused

    def close(self, seconds: float) -> None:
        """Wait for the reports of what is under way."""
        self._closed.set()
        self._served(self._producer.flush, seconds)

    def _send_again(self) -> None:
        """Send what was not taken, in the order in which it came."""
        self._again = deque(sorted(self._again))
        count = len(self._again)
        if self._doubtful:
            # alone means that nothing else is under way
            count = self._alone is None and count == len(self._pending)
        # one that fails at once stands at the end again
        for _ in range(count):
            number = self._again.popleft()
            self._alone = number if self._doubtful else None
            if not self._produce(number, self._pending[number]):
                self._again.appendleft(number)
                self._alone = None
                break

    def _served(self, call: Callable[[float], Any], seconds: float) -> None:
        """Let the producer report; it raises what has made it give up."""
        try:
            call(seconds)
        except self._library.KafkaException as error:
            self._on_error(error.args[0])

    def _made(self) -> Any:
        try:
            return self._library.Producer(self._options)
        except (self._library.KafkaException, ValueError, TypeError) as error:
            # its own text quotes the value of an option, maybe a secret
            raise DeliveryError(
                f"forward.to.kafka.options: librdkafka does not take them ({type(error).__name__}); check their names "
                "and values against librdkafka's"
            ) from None

    def _produce(self, number: int, message: Message) -> bool:
        headers = [
            ("mqtt-topic", message.topic.encode()),
            ("mqtt-received-us", b"%d" % message.received_us),
            ("mqtt-dup", b"1" if message.dup else b"0"),
            ("mqtt-retain", b"1" if message.retain else b"0"),
        ]
        if message.content_type:
            headers.append(("content-type", message.content_type.encode()))

        producer = self._producer

        def reported(error: Any, _: Any) -> None:
            # one that was given up may still report, of messages that are under way again
            if producer is self._producer:
                self._reported(number, error)

        try:
            producer.produce(
                self._topic,
                value=message.payload,
                key=self._key(message.topic),
                headers=headers,
                # sent again it keeps its stamp, which may be all that says when its reading was taken
                timestamp=self._stamps.get(number, message.received_us // 1_000),
                on_delivery=reported,
            )
        except BufferError:
            return False
        except self._library.KafkaException as error:
            # it is in no batch
            self._reported(number, error.args[0], alone=True)
        return True

    def _key(self, topic: str) -> bytes:
        if self._level is None:
            return topic.encode()
        levels = topic.split("/")
        return levels[self._level - 1].encode() if self._level <= len(levels) else b""

    def _reported(self, number: int, error: Any, *, alone: bool = False) -> None:
        if number == self._alone:
            self._alone, alone = None, True
        if error is None:
            if self._pending.pop(number, None) is not None:
                self._settled(number)
                self._had.append(number)
            self._delivered = True
            if self._away is not None:
                self._away = None
                _LOG.info("Kafka: messages are taken again")
            return
        if number not in self._pending:
            return
        names = self._library.KafkaError
        code = error.code()
        own = code in {names.MSG_SIZE_TOO_LARGE, names.INVALID_MSG, names.INVALID_MSG_SIZE, names.INVALID_RECORD}
        if own and alone:
            del self._pending[number]
            self._settled(number)
            self._refused.append(number)
            return
        of_batch = own or code in {names.INVALID_TIMESTAMP, names._INVALID_DIFFERENT_RECORD}  # noqa: SLF001 - its public name
        if of_batch:
            self._doubt(number, stamp=alone and code == names.INVALID_TIMESTAMP)
        self._judge(error)
        self._broken = self._broken or error.fatal() or code == names._FATAL  # noqa: SLF001 - its public name
        self._again.append(number)
        self._again_at = time.monotonic() + (0.0 if of_batch and not alone else _RETRY_S)

    def _settled(self, number: int) -> None:
        self._doubtful.discard(number)
        self._stamps.pop(number, None)

    def _doubt(self, number: int, *, stamp: bool) -> None:
        """Kafka has not taken a message for what it is, or for what another one is that was sent with it.

        For several reasons in one batch it names none, so they are sent one by one from now on, and each is judged by
        itself. None of them is there, so none comes to be there with two stamps. With ``stamp`` it is its own time
        stamp that is refused; one of the future is wrong anyway.
        """
        self._doubtful.add(number)
        now = time.time_ns() // 1_000_000
        if not stamp and self._pending[number].received_us // 1_000 <= now:
            return
        self._stamps[number] = now
        if time.monotonic() - self._clock_warned > _REPEAT_S:
            self._clock_warned = time.monotonic()
            _LOG.warning(
                "Kafka: refuses the time stamp of a message: the clock of this machine is or was far from that of the "
                "brokers, or message.timestamp.after.max.ms or message.timestamp.before.max.ms of the topic is short; "
                "look at the clock. Messages wait for it, nothing is lost"
            )

    def _on_error(self, error: Any) -> None:
        """What concerns the producer as a whole; librdkafka itself tries again."""
        self._broken = self._broken or error.fatal()
        self._judge(error)
        if error.code() in {self._library.KafkaError._ALL_BROKERS_DOWN, self._library.KafkaError._TRANSPORT}:  # noqa: SLF001 - its public names
            now = time.monotonic()
            if self._away is None or now - self._away > _REPEAT_S:
                self._away = now
                _LOG.warning(
                    "Kafka: no broker can be reached; messages wait here and at the MQTT broker, nothing is lost; "
                    "trying again"
                )

    def _judge(self, error: Any) -> None:
        """Note what only an operator can mend."""
        names = self._library.KafkaError
        code = error.code()
        if code in {names._AUTHENTICATION, names.SASL_AUTHENTICATION_FAILED}:  # noqa: SLF001 - its public names
            self._wrong = "Kafka: the credentials are not accepted; look at forward.to.kafka.options"
        elif code in {names.TOPIC_AUTHORIZATION_FAILED, names.CLUSTER_AUTHORIZATION_FAILED}:
            self._wrong = f"Kafka: not authorised to write to the topic {self._topic!r}; give this user the right"
        elif code in {names._UNKNOWN_TOPIC, names.UNKNOWN_TOPIC_OR_PART} and not self._delivered:  # noqa: SLF001 - its public names
            self._wrong = self._missing()
        elif code == names._SSL:  # noqa: SLF001 - its public name
            self._wrong = (
                "Kafka: the TLS connection is refused; look at the certificates and security.protocol in "
                "forward.to.kafka.options"
            )

    def _missing(self) -> str:
        return f"Kafka: there is no topic {self._topic!r}; create it, or name another in forward.to.kafka.topic"

    def _look(self, producer: Any) -> None:
        """Ask for the topic until the broker answers, so that a missing one is known before any message is."""
        first: float | None = None
        while not self._closed.wait(0 if first is None else 0.5):
            try:
                found = producer.list_topics(self._topic, timeout=5)
            except self._library.KafkaException:
                self._closed.wait(1)
                continue
            error = found.topics[self._topic].error if self._topic in found.topics else None
            if error is None and self._topic in found.topics:
                return
            if error is not None and error.code() == self._library.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self._judge(error)
                return
            first = time.monotonic() if first is None else first
            if time.monotonic() - first > _MISSING_S:
                self._wrong = self._missing()
                return

    def _renew(self) -> None:
        """A new producer instead of one that gave up, and everything under way once more."""
        _LOG.warning("Kafka: the producer gave up and is made anew; what was under way is sent again")
        old, self._broken, self._alone = self._producer, False, None
        old.purge()
        self._producer = self._made()
        self._again = deque(self._pending)
        self._again_at = time.monotonic() + _RETRY_S
        self._served(old.poll, 0)
