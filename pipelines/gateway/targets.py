"""Where messages go. A target acknowledges a message when it is there for good; none of its calls waits for long."""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro

from ...schemas.files import reason, whole_file
from ...schemas.settings.gateway import FolderTarget, KafkaTarget, seconds
from ..errors import CommandError, ExitCode

LOG = logging.getLogger("quiltstream.gateway")

#: Messages in a file at most, and bytes that are held: with as many nothing is read.
_BATCH, BYTES = 2_500, 64 << 20

_STAMP = {"type": "long", "logicalType": "timestamp-micros"}
_KINDS = {"topic": "string", "payload": "bytes", "received": _STAMP, "dup": "boolean", "retain": "boolean"}
_FIELDS = [{"name": name, "type": kind} for name, kind in (_KINDS | {"content_type": "string"}).items()]
_SCHEMA = fastavro.parse_schema({"type": "record", "name": "Message", "namespace": "quiltstream.v1", "fields": _FIELDS})


class Target:
    """Counts what it holds: messages that are not there for good yet, and their bytes."""

    held = size = 0


class Folder(Target):
    """A file for each batch: written under a hidden name, synced and renamed, so nobody sees a torn one.

    Raises:
        CommandError: the folder cannot be made or read.
    """

    def __init__(self, folder: str, given: FolderTarget) -> None:
        self._folder, self._age, self._free = Path(folder), seconds(given.age), given.free
        self._batch: list[tuple[dict[str, Any], Callable[[], None]]] = []
        self._due, self._waits = 0.0, False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in self._folder.glob(".*.avro.*.part"):  # of a run that was killed, and acknowledged none of it
                left.unlink()
        except OSError as error:
            lasting = isinstance(error, (PermissionError, FileExistsError, NotADirectoryError))
            text = f"forward.to.folder {folder}: cannot be written ({reason(error)}); mount it, or give another"
            raise CommandError(text, ExitCode.SETTINGS if lasting else ExitCode.AWAY) from None

    def put(self, message: dict[str, Any], acknowledge: Callable[[], None]) -> None:
        """Take a message, as a record of a file."""
        self._due = self._due if self._batch else time.monotonic() + self._age
        self._batch.append((message, acknowledge))
        self.held, self.size = self.held + 1, self.size + len(message["payload"])

    def turn(self, *, end: bool = False) -> None:
        """Write the batch if it is large or old enough; where the disk does not take it, it waits for a second."""
        large = not self._waits and (self.held >= _BATCH or self.size >= BYTES)
        if not self.held or not (end or large or time.monotonic() >= self._due):
            return
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{uuid.uuid4().hex[:8]}.avro"
        try:
            disk = shutil.disk_usage(self._folder)
            if disk.free - self.size < self._free * disk.total:
                raise OSError(0, f"less than {self._free:.0%} of the disk is free")  # noqa: TRY301 - as of a full disk
            with whole_file(self._folder / name, private=True) as part, part.open("wb") as file:
                fastavro.writer(file, _SCHEMA, (message for message, _ in self._batch))
        except OSError as error:
            if not self._waits:
                LOG.warning("folder %s takes nothing (%s); messages wait at the broker", self._folder, reason(error))
            self._waits, self._due = True, time.monotonic() + 1
            return
        batch, self._batch, self._waits, self.held, self.size = self._batch, [], False, 0, 0
        for _, acknowledge in batch:
            acknowledge()


#: What an operator has to mend where Kafka took no message before; anything else may go well at the next start.
_LASTING = {"_AUTHENTICATION", "_SSL", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED"}


class Kafka(Target):
    """An idempotent producer, which tries again for ever; a message's key is its topic.

    Raises:
        CommandError: the options cannot be used.
    """

    def __init__(self, given: KafkaTarget, options: dict[str, Any], library: Any) -> None:
        self._topic, self._library = given.topic, library
        self._taken, self._wrong = False, None
        log = logging.getLogger("quiltstream.librdkafka")
        is_debug = logging.getLogger().isEnabledFor(logging.INFO)
        log.setLevel(logging.NOTSET if is_debug else logging.CRITICAL + 1)
        own = {"bootstrap.servers": given.servers, "enable.idempotence": True, "acks": "all", "message.timeout.ms": 0}
        own |= {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20}  # above ours
        own |= {"logger": log, "error_cb": self._noticed}
        try:
            self._producer = library.Producer({"linger.ms": 5, "compression.type": "lz4", **options, **own})
        except (library.KafkaException, ValueError, TypeError):  # its text quotes the value of an option
            raise CommandError("forward.to.kafka.options: librdkafka does not take them; check each") from None

    def put(self, message: dict[str, Any], acknowledge: Callable[[], None]) -> None:
        """Take a message."""
        size = len(message["payload"])
        headers = [("mqtt-topic", message["topic"]), ("mqtt-received-us", str(message["received"]))]
        headers += [(f"mqtt-{flag}", str(int(message[flag]))) for flag in ("dup", "retain")]
        headers += [("content-type", message["content_type"])] if message["content_type"] else []

        def reported(error: Any, _: Any) -> None:
            self.held, self.size = self.held - 1, self.size - size
            if error is None:
                self._taken = True
                acknowledge()
            else:
                self._failed(error)

        more = {"on_delivery": reported, "timestamp": message["received"] // 1_000, "headers": headers}
        try:
            self._producer.produce(self._topic, message["payload"], message["topic"], **more)
        except self._library.KafkaException as error:
            self._failed(error.args[0])
            return
        self.held, self.size = self.held + 1, self.size + size

    def turn(self, *, end: bool = False) -> None:  # noqa: ARG002 - nothing is kept back
        """Let the producer report.

        Raises:
            CommandError: Kafka does not take a message.
        """
        with suppress(self._library.KafkaException):  # of what is told to `error_cb` as well
            self._producer.poll(0)
        if self._wrong is not None:
            raise self._wrong

    def _noticed(self, error: Any) -> None:
        if error.fatal() or error.name() in _LASTING:
            self._failed(error)
        elif error.name() != "_TRANSPORT":  # of one broker, which may be told many times a second
            LOG.warning("Kafka: %s; messages wait here and at the MQTT broker, nothing is lost", error.name())

    def _failed(self, error: Any) -> None:
        name = error.name()
        lasting = name == "MSG_SIZE_TOO_LARGE" or (name in _LASTING and not self._taken)
        text = "look at forward.to.kafka, the topic's rights and limits, and the clock. Messages stay at the broker"
        code = ExitCode.SETTINGS if lasting else ExitCode.AWAY
        self._wrong = self._wrong or CommandError(f"Kafka topic {self._topic!r}: {name}; {text}", code)
